"""Snapshots whose store is an object store: by way of the node's own layers."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from node.caps_tools import sh
from node.nodes import NodeHouse, RunningNode, output
from objectserver import ObjectServer, object_server

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import Unreachable
from sandfleet_common.ids import new_sandbox_id, new_snapshot_id
from sandfleet_node.layers import DirectoryStore, open_store

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest_asyncio.fixture
async def node(
    house: NodeHouse, server: ObjectServer, tiny_layers: Path
) -> AsyncGenerator[RunningNode]:
    """Return a node that has the base itself, and whose store is far away."""
    server.start()
    own = house.state_dir / "node" / house.name / "layers"
    shutil.copytree(tiny_layers / "blobs", own / "blobs", symlinks=True)
    url = f"{server.url}/{house.name}"
    far, near = open_store(url, server.endpoint, 5), DirectoryStore(tiny_layers)
    record = await near.record("environments", "tiny/1")
    assert record is not None
    await far.put_record("environments", "tiny/1", record)
    async with house.running(
        store_url=url, store_endpoint=server.endpoint, store_timeout_seconds=2
    ) as node:
        yield node


async def take(
    node: RunningNode, sandbox: str, snapshot_id: str | None = None, wait: float = 20
) -> m.SnapshotInfo:
    body = m.SandboxSnapshot(
        sandbox_id=sandbox, snapshot_id=snapshot_id or new_snapshot_id(node.name),
        wait_seconds=wait,
    )  # fmt: skip
    return await node.ask(s.SNAPSHOT, body)


async def told(node: RunningNode, sandbox: str, script: str) -> str:
    state = await sh(node, sandbox, script)
    assert state.exit_code == 0, output(state)
    return output(state).decode()


async def test_the_whole_stack_is_in_the_store_when_it_is_ready(node: RunningNode) -> None:
    parent = await node.create()
    await told(node, parent, "echo 1 > /root/one")
    child = new_sandbox_id(node.name)
    body = m.SandboxFork(
        sandbox_id=parent, snapshot_id=new_snapshot_id(node.name), children=[child]
    )
    forked: m.SandboxForked = await node.ask(s.FORK, body)
    assert forked.outcomes[0].status == "ready", forked
    await told(node, child, "echo 2 > /root/two")
    info = await take(node, child)
    assert info.state is m.SnapshotState.READY, info
    assert len(info.layers) == 3
    in_store = {layer.digest for layer in await node.node.layers.layers()}
    assert set(info.layers) <= in_store
    # Another snapshot of another child lies on the same layers.
    again = await take(node, child)
    assert again.layers == info.layers
    other = await node.create(environment=info.snapshot_id)
    assert await told(node, other, "cat /root/one /root/two") == "1\n2\n"


async def test_while_the_store_is_away_nothing_begins(
    node: RunningNode, server: ObjectServer
) -> None:
    sandbox = await node.create()
    await told(node, sandbox, "echo x > /root/x")
    first = await take(node, sandbox)
    assert first.state is m.SnapshotState.READY, first
    await told(node, sandbox, "echo y > /root/x")
    snapshot = new_snapshot_id(node.name)
    server.freeze()
    try:
        # Asking whether there is such a snapshot already takes the store.
        with pytest.raises(Unreachable):
            await take(node, sandbox, snapshot, wait=0)
    finally:
        server.thaw()
    info = await take(node, sandbox, snapshot)
    assert info.state is m.SnapshotState.READY, info
    for _ in range(100):
        if not list(node.node.places.staging.iterdir()):
            break
        await asyncio.sleep(0.05)
    assert list(node.node.places.staging.iterdir()) == []


async def test_a_store_that_goes_away_fails_it_and_hears_of_it_later(
    node: RunningNode, server: ObjectServer
) -> None:
    sandbox = await node.create()
    await told(node, sandbox, "dd if=/dev/urandom of=/root/x bs=1M count=60 2>/dev/null")
    snapshot = new_snapshot_id(node.name)
    info = await take(node, sandbox, snapshot, wait=0)
    assert info.state is m.SnapshotState.PACKING
    server.freeze()
    try:
        while info.state is not m.SnapshotState.FAILED:
            info = await take(node, sandbox, snapshot, wait=1)
        assert info.failure is not None
        assert info.failure.fields["phase"] == "storing"
        assert await told(node, sandbox, "echo lives") == "lives\n"
    finally:
        server.thaw()
    while list(node.node.places.staging.iterdir()):
        await asyncio.sleep(0.05)
    record = await node.node.layers.record("snapshots", snapshot)
    assert m.SnapshotInfo.decode(record).failure == info.failure
