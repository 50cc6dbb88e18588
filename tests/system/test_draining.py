"""Draining a node: by the administrator alone, from the command line."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio

from sandfleet import AsyncClient
from sandfleet_common.errors import Denied, NoCapacity

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]


def drain(state: Path, *words: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "sandfleet.cli", "--state", str(state), "drain", *words]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


@pytest_asyncio.fixture
async def name(client: AsyncClient, platform: Path) -> AsyncGenerator[str]:
    """Return the name of the one node; whatever happens, it takes sandboxes again in the end."""
    name = (await client.nodes())[0].node
    yield name
    assert drain(platform, name, "--undo").returncode == 0


async def test_a_drained_node_takes_nothing_keeps_what_it_has_and_can_be_had_back(
    client: AsyncClient, platform: Path, name: str
) -> None:
    async with await client.create() as sandbox:
        done = drain(platform, name)
        assert (done.returncode, done.stderr) == (0, "")
        with pytest.raises(NoCapacity, match="draining"):
            await client.create(deadline=1)
        assert (await sandbox.run(["echo", "alive"])).exit_code == 0
    assert drain(platform, name, "--undo").returncode == 0
    async with await client.create() as sandbox:
        assert (await sandbox.run(["true"])).exit_code == 0


async def test_a_trainer_may_not_drain_a_node(client: AsyncClient, name: str) -> None:
    with pytest.raises(Denied):
        await client.drain(name)
    assert (await client.nodes())[0].state == "ready"


def test_draining_a_node_that_is_not_there_says_so(platform: Path) -> None:
    done = drain(platform, "nowhere")
    assert done.returncode == 1
    assert "nowhere" in done.stderr
