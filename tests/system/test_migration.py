"""Sandboxes that move between two nodes which share a store."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from servers import free_port

from sandfleet import AsyncClient, Client, NotFound, SandboxSpec
from sandfleet.local.configuration import environment
from sandfleet.local.layout import Layout
from sandfleet_common.states import State

pytestmark = [pytest.mark.root, pytest.mark.timeout(90)]
SECOND = "second"


@pytest.fixture(scope="module")
def second(platform: Path) -> Generator[subprocess.Popen[bytes]]:
    """Run a second node beside the platform's own."""
    variables = environment("node", Layout(platform)) | {
        "SANDFLEET_NODE_NAME": SECOND,
        "SANDFLEET_NODE_UID_BASE": str(0x5000_0000),
        "SANDFLEET_NODE_METRICS_PORT": str(free_port()),
        "SANDFLEET_NODE_DEPARTURE_SECONDS": "5",
        "SANDFLEET_NODE_STOP_SANDBOXES_ON_EXIT": "true",
    }
    argv = [sys.executable, "-m", "sandfleet_node"]
    with (platform / "second.log").open("wb") as log:
        node = subprocess.Popen(argv, env=variables, stdout=log, stderr=log)
    yield node
    with Client(state=platform) as client:
        for snapshot in client.snapshots.list():
            if snapshot.info_now.node == SECOND:
                snapshot.remove()
    node.terminate()
    node.wait(30)
    clean = [sys.executable, "-m", "sandfleet_node", "clean"]
    subprocess.run(clean, env=variables, check=False, capture_output=True)


@pytest_asyncio.fixture
async def both(second: object, client: AsyncClient) -> AsyncGenerator[str]:
    """Wait until both nodes are there; give the name of the platform's own."""
    names: set[str] = set()
    for _ in range(200):
        names = {beat.node for beat in await client.nodes()}
        if SECOND in names and len(names) == 2:
            break
        await asyncio.sleep(0.1)
    yield next(iter(names - {SECOND}))


async def test_a_sandbox_moves_with_its_files_and_the_old_handle_finds_it(
    both: str, client: AsyncClient
) -> None:
    async with await client.create(SandboxSpec(ttl_seconds=300)) as sandbox:
        first = sandbox.info_now.node
        other = SECOND if first == both else both
        await sandbox.run("echo kept > /root/file; rm /etc/issue", check=True)
        info = await sandbox.migrate()
        assert (info.sandbox_id, info.node, info.state) == (sandbox.id, other, State.RUNNING)
        told = await sandbox.run("cat /root/file; ls /etc/issue 2>&1 || true")
        assert told.text.startswith("kept\n")
        assert "No such file" in told.text
        again = await client.get(sandbox.id)
        assert again.info_now.node == other
        assert [s.id async for s in client.list() if s.id == sandbox.id] == [sandbox.id]
        back = await sandbox.migrate(first)
        assert back.node == first
        assert (await sandbox.run("cat /root/file")).text == "kept\n"
    assert (await client.get(sandbox.id)).info_now.state is State.STOPPED


async def test_one_that_is_paused_stays_paused(both: str, client: AsyncClient) -> None:
    async with await client.create(SandboxSpec(ttl_seconds=300)) as sandbox:
        await sandbox.run("echo kept > /root/file", check=True)
        await sandbox.pause()
        before = sandbox.info_now.node
        assert (await sandbox.migrate()).node != before
        assert (await sandbox.info()).state is State.PAUSED
        assert (await sandbox.run("cat /root/file")).text == "kept\n"


async def test_one_that_nobody_takes_goes_on_where_it_was(both: str, client: AsyncClient) -> None:
    async with await client.create(SandboxSpec(ttl_seconds=300)) as sandbox:
        with pytest.raises(NotFound, match="nowhere"):
            await sandbox.migrate("nowhere")
        here = (await sandbox.info()).node
        assert (await sandbox.migrate(here)).node == here
        assert (await sandbox.run("echo on")).text == "on\n"
