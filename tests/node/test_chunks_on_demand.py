"""Sandboxes on layers that are read on demand from a real object store."""

from __future__ import annotations

import asyncio
import contextlib
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
from sandfleet_node.layers.index import CHUNK_BYTES

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]
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


TOUCH_MUCH = ["sh", "-c", "cat /usr/lib/python3*/*.py /usr/bin/[a-m]* >/dev/null && echo read"]


async def test_a_store_that_comes_back_is_waited_for(
    house: NodeHouse, far: dict[str, Any], server: ObjectServer
) -> None:
    async with house.running(**far) as node:
        sandbox = await node.create(environment="debian")
        await reads(node, sandbox)
        server.kill()
        reading = asyncio.create_task(reads(node, sandbox, TOUCH_MUCH))
        while (await stats(node))["failing_since"] is None:
            await asyncio.sleep(0.1)
        await reads(node, sandbox)  # what is here is read all the while
        server.start()
        await reading
        seen = await stats(node)
        assert (seen["failing_since"], seen["given_up"]) == (None, 0)


async def test_a_store_that_stays_away_fails_reads_and_nothing_else(
    house: NodeHouse, far: dict[str, Any], server: ObjectServer
) -> None:
    async with house.running(**{**far, "chunk_wait_seconds": 2}) as node:
        sandbox = await node.create(environment="debian")
        await reads(node, sandbox)
        server.kill()
        try:
            # A program that nobody has read so far: what fails is reading it.
            touching = ["python3", "-c", "open('/usr/bin/perl', 'rb').read()"]
            state = await node.run(sandbox, *touching, wait_seconds=60)
            assert state.exit_code == 1
            assert b"Input/output error" in output(state, "stderr")
            assert (await stats(node))["given_up"] > 0
            await reads(node, sandbox)
        finally:
            server.start()
        await reads(node, sandbox, TOUCH_MUCH)  # nothing bad was kept


class Liar:
    """Passes TCP on, and turns one bit over in every answer as long as it is told to."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self.lies = 0
        """How many long answers are still to be falsified."""
        self.told = 0
        self._connections: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """End all connections: those who keep some open for later outlive the test's loop."""
        for connection in self._connections:
            connection.cancel()
        if self._connections:
            await asyncio.wait(self._connections)

    async def take(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection until either side or the test ends it."""
        connection = asyncio.create_task(self._serve(reader, writer))
        self._connections.add(connection)
        await asyncio.wait({connection})

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)

        async def back() -> None:
            while piece := bytearray(await up_reader.read(65_536)):
                if self.lies and len(piece) > 20_000:
                    self.lies -= 1
                    self.told += 1
                    piece[15_000] ^= 1
                writer.write(piece)
                await writer.drain()

        task = asyncio.create_task(back())
        try:
            while piece := await reader.read(65_536):
                up_writer.write(piece)
                await up_writer.drain()
        except OSError:
            pass
        finally:
            task.cancel()
            await asyncio.wait({task})
            for each in (up_writer, writer):
                each.close()
                with contextlib.suppress(OSError):
                    await each.wait_closed()


async def test_damaged_chunks_are_noticed_and_fetched_again(
    house: NodeHouse, far: dict[str, Any], server: ObjectServer
) -> None:
    liar = Liar(server.port)
    async with await asyncio.start_server(liar.take, "127.0.0.1", 0) as listener:
        port = listener.sockets[0].getsockname()[1]
        settings = {**far, "store_endpoint": f"http://127.0.0.1:{port}"}
        async with house.running(**settings) as node:
            sandbox = await node.create(environment="debian")
            liar.lies = 3
            await reads(node, sandbox)
            seen = await stats(node)
            assert liar.told == 3
            assert (seen["corrupt"] >= 1, seen["given_up"]) == (True, 0)
            liar.lies = 0
        await liar.close()


async def test_what_an_earlier_server_kept_is_verified_before_it_is_read(
    house: NodeHouse, far: dict[str, Any], base: Resolved
) -> None:
    async with house.running(**far) as node:
        await reads(node, await node.create(environment="debian"))
        kept = Path(node.node.places.chunks, base.layers[0].removeprefix("sha256:"))
        present = (kept / "present").read_bytes()
        os.kill((await stats(node))["pid"], signal.SIGKILL)
        with (kept / "data").open("r+b") as file:
            for number in (n for n, is_there in enumerate(present) if is_there):
                file.seek(number * CHUNK_BYTES)
                file.write(bytes(16))
        await asyncio.to_thread(Path("/proc/sys/vm/drop_caches").write_text, "1")
        sandbox = await node.create(environment="debian")
        await reads(node, sandbox)
        assert (await stats(node))["fetched_bytes"] > 0


async def test_a_small_cache_is_slower_and_not_broken(
    house: NodeHouse, far: dict[str, Any]
) -> None:
    bound = 16 * 1024**2
    async with house.running(**{**far, "chunk_cache_bytes": bound}) as node:
        sandbox = await node.create(environment="debian")
        await reads(node, sandbox, TOUCH_MUCH)
        await reads(node, sandbox)
        seen = await stats(node)
        assert seen["evictions"] > 0
        assert seen["cache_bytes"] <= bound


async def test_a_node_service_that_is_killed_leaves_sandboxes_reading(
    house: NodeHouse, far: dict[str, Any]
) -> None:
    settings = {name: str(value) for name, value in far.items()}
    async with house.process(**settings) as (process, node):
        sandbox = await node.create(environment="debian")
        await reads(node, sandbox)
        await process.kill()
        await process.start()
        await reads(node, sandbox, TOUCH_MUCH)
        await reads(node, await node.create(environment="debian"))


async def test_what_sandboxes_read_first_is_fetched_ahead_on_another_node(
    house: NodeHouse, far: dict[str, Any], server: ObjectServer, base: Resolved
) -> None:
    store = open_store(server.url, server.endpoint)
    name = base.layers[0].removeprefix("sha256:")
    await store.put_record("prefetch", name, b"[0,1,2,3,40,41,999999,-1,true]")
    async with house.running(**{**far, "chunk_foresight": True}) as node:
        await node.create(environment="debian")
        while (await stats(node))["ahead_bytes"] < 6 * CHUNK_BYTES:
            await asyncio.sleep(0.05)
    await store.remove_record("prefetch", name)


async def test_a_node_with_other_settings_replaces_the_server_and_sandboxes_go_on(
    house: NodeHouse, far: dict[str, Any]
) -> None:
    async with house.running(**far) as node:
        sandbox = await node.create(environment="debian")
        await reads(node, sandbox)
        first = (await stats(node))["pid"]
    async with house.running(**far) as node:
        await reads(node, sandbox)
        assert (await stats(node))["pid"] == first
    async with house.running(**{**far, "chunk_wait_seconds": 7}) as node:
        await reads(node, await node.create(environment="debian"))
        assert (await stats(node))["pid"] != first
        await reads(node, sandbox, TOUCH_MUCH)
