"""Sandboxes on layers that are read on demand from a real object store."""

from __future__ import annotations

import os
import signal
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest
from layering import finish, resolve
from node.nodes import NodeHouse, RunningNode, output
from objectserver import ObjectServer, object_server
from requirements import REPOSITORY

from sandfleet_common.errors import NotFound
from sandfleet_node.layers import DirectoryStore, Resolved, Store, open_store

pytestmark = [pytest.mark.root, pytest.mark.integration]
PYTHON = ["python3", "-c", "import json, http.client; print('read')"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture(scope="module")
def base(server: ObjectServer, tmp_path_factory: pytest.TempPathFactory) -> Resolved:
    """Upload the Debian base; return what it is."""
    shared = Path(os.environ.get("SANDFLEET_STATE_DIR", REPOSITORY / ".sandfleet")) / "layers"
    local = DirectoryStore(shared)
    try:
        found = resolve(local, "debian")
    except NotFound:
        pytest.skip("doctor line `base layer`: build it with `sandfleet up`")
    finish(_copy(local, open_store(server.url, server.endpoint), found, tmp_path_factory))
    return found


async def _copy(
    local: DirectoryStore, target: Store, found: Resolved, places: pytest.TempPathFactory
) -> None:
    for digest in found.layers:
        layer, files = await local.layer(digest), local.files(digest)
        assert files is not None
        folder = places.mktemp("upload")
        for name, path in (("meta", files.meta), ("data", files.data)):
            (folder / name).symlink_to(path)
        await target.add(folder, layer.kind, created_at=layer.created_at)
    name = found.reference.replace(":", "/")
    record = await local.record("environments", name)
    assert record is not None
    await target.put_record("environments", name, record)


@pytest.fixture
def far(server: ObjectServer, base: Resolved, house: NodeHouse) -> dict[str, Any]:
    """Return the settings of a node whose layers are all in the object store."""
    server.start()
    return {
        "store_url": server.url,
        "store_endpoint": server.endpoint,
        "store_timeout_seconds": 2,
        "chunk_wait_seconds": 20,
        "chunk_foresight": False,
    }


async def stats(node: RunningNode) -> dict[str, Any]:
    return await node.node.chunks._ask({"op": "stats"})  # pyright: ignore[reportPrivateUsage]


async def reads(node: RunningNode, sandbox_id: str, argv: list[str] = PYTHON) -> None:
    """Run a command that must succeed."""
    state = await node.run(sandbox_id, *argv, wait_seconds=60)
    assert (state.exit_code, output(state)) == (0, b"read\n"), state


async def test_a_sandbox_reads_only_what_it_touches(
    house: NodeHouse, far: dict[str, Any], base: Resolved
) -> None:
    async with house.running(**far) as node:
        sandbox = await node.create(environment="debian")
        await reads(node, sandbox)
        first = await stats(node)
        index = node.node.layers
        size = (await index.layer(base.layers[0])).size_bytes
        assert 0 < first["fetched_bytes"] < size / 3
        other = await node.create(environment="debian")
        await reads(node, other)
        assert (await stats(node))["fetched_bytes"] == first["fetched_bytes"]
        assert first["corrupt"] == first["given_up"] == 0


async def test_the_server_may_die_while_sandboxes_read(
    house: NodeHouse, far: dict[str, Any]
) -> None:
    async with house.running(**far) as node:
        sandbox = await node.create(environment="debian")
        await reads(node, sandbox)
        os.kill((await stats(node))["pid"], signal.SIGKILL)
        touching = ["sh", "-c", "cat /usr/lib/python3*/*.py /usr/bin/* >/dev/null && echo read"]
        await reads(node, sandbox, touching)
        assert (await stats(node))["corrupt"] == 0
