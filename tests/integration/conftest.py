"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from processes import Fleet, running_fleet
from sdk_peer import Peer, serving
from sdk_ways import gateway, trainer_address
from servers import Connect, Servers

from sandfleet import AsyncClient, AsyncSandbox
from sandfleet_common.logs import Logger


@pytest_asyncio.fixture
async def make_fleet(servers: Servers, log: Logger) -> AsyncGenerator[Fleet]:
    """Return a fleet without schedulers and nodes; ask it for them."""
    async with running_fleet(servers, log) as fleet:
        yield fleet


@pytest_asyncio.fixture
async def peer(connect: Connect, tmp_path: Path) -> AsyncGenerator[Peer]:
    """Return the SDK's other end: a node and a scheduler that fail on request."""
    async with serving(await connect("node"), await connect("scheduler"), tmp_path) as peer:
        yield peer


@pytest.fixture(scope="module")
def gateway_address(
    running_servers: Servers, tmp_path_factory: pytest.TempPathFactory
) -> Generator[str]:
    """Return where a gateway in front of the bus is; one for all tests of a module."""
    with gateway(running_servers, tmp_path_factory.mktemp("gateway") / "log") as address:
        yield address


@pytest_asyncio.fixture(params=["nats", "gateway"])
async def client(
    servers: Servers, peer: Peer, request: pytest.FixtureRequest
) -> AsyncGenerator[AsyncClient]:
    """Return a client of either way: every promise holds for both."""
    if request.param == "nats":
        client = AsyncClient.connect(nats=trainer_address(servers))
    else:
        client = AsyncClient.connect(url=request.getfixturevalue("gateway_address"))
    async with client:
        yield client


@pytest_asyncio.fixture
async def sandbox(client: AsyncClient) -> AsyncSandbox:
    """Return a sandbox of the peer's."""
    return await client.create()
