"""A cage, a sensor that watches it, and what the sensor says."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from servers import Connect, Servers
from watching import Cage, Heard, Running, cgroup2_mount, running

from sandfleet_common import subjects


@pytest.fixture
def cage() -> Generator[Cage]:
    """Return the directory of a node's sandboxes; it and what runs there goes with the test."""
    cage = Cage(cgroup2_mount())
    cage.directory.mkdir(parents=True)
    try:
        yield cage
    finally:
        cage.remove()


@pytest_asyncio.fixture
async def heard(connect: Connect) -> Heard:
    """Return the facts that sensors publish from now on."""
    heard = Heard()
    bus = await connect("admin")
    await bus.listen(subjects.SECURITY_FACTS, heard.hear)
    await bus.flush()
    return heard


@pytest_asyncio.fixture
async def sensor(
    cage: Cage, servers: Servers, heard: Heard, tmp_path: Path
) -> AsyncGenerator[Running]:
    """Run a sensor that has attached and watches the cage."""
    async with running(
        "sensor",
        servers,
        tmp_path / "sensor.log",
        node=cage.node,
        cgroup_directory=cage.root.name,
    ) as service:
        await service.until(lambda _, health: not health["warnings"])
        yield service


@pytest_asyncio.fixture
async def monitor(servers: Servers, connect: Connect, tmp_path: Path) -> AsyncGenerator[Running]:
    """Run a monitor, with JetStream's streams there."""
    await (await connect("admin")).ensure_streams()
    async with running("monitor", servers, tmp_path / "monitor.log") as service:
        yield service
