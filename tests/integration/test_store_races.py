"""Publishers and collectors at once, and a store that goes away: real directory, real S3."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Generator
from pathlib import Path

import pytest
from objectserver import ObjectServer, object_server
from obstore.store import S3Store

from sandfleet_common.errors import Busy, NotFound, Unreachable
from sandfleet_common.ids import new_ulid
from sandfleet_common.logs import Logger
from sandfleet_common.messages import EnvironmentList, EnvironmentPublish, LayerKind
from sandfleet_node.layers import Catalog, DirectoryStore, Store, open_store
from sandfleet_node.layers.collection import Collector, Wish
from sandfleet_node.layers.environments import Environments

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ObjectServer]:
    """Return a running S3 server."""
    with object_server(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture(params=["directory", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """Return an empty store of each kind."""
    if request.param == "directory":
        return open_store((tmp_path / "store").as_uri())
    server: ObjectServer = request.getfixturevalue("server")
    server.start()
    return open_store(f"{server.url}/{new_ulid()}", server.endpoint, 5)


async def add(store: Store, place: Path, text: str) -> str:
    """Add a layer that holds something else than all others, and return its digest."""
    await asyncio.to_thread(_write, place, text)
    return (await store.add(place, LayerKind.TOOLKIT, created_at=0)).digest


def _write(place: Path, text: str) -> None:
    place.mkdir()
    (place / "meta").write_text(text)
    (place / "data").write_bytes(b"")


def is_well(catalog: Catalog) -> bool:
    """Return whether a catalog takes its store for well."""
    return catalog.failing_since is None


def environments(store: Store) -> Environments:
    """Return what one node would use."""
    return Environments(store, Catalog(store, Logger("test")))


async def test_publishers_at_once_on_different_nodes_lose_no_version(
    store: Store, tmp_path: Path
) -> None:
    digests = [await add(store, tmp_path / str(n), str(n)) for n in range(4)]
    nodes = [environments(store) for _ in range(3)]
    bodies = [EnvironmentPublish(name="app", layers=[digest]) for digest in digests]
    made = await asyncio.gather(*(node.publish(body) for node in nodes for body in bodies))
    page = await nodes[0].page(EnvironmentList(versions=True))
    assert {info.version for info in made} == {entry.version for entry in page.environments}
    assert {info.layers[0].digest for info in made} == set(digests)
    for info in made:
        found = await nodes[1].get(f"app:{info.version}")
        assert found.layers == info.layers


async def test_what_was_published_during_collections_has_all_its_layers(
    store: Store, tmp_path: Path
) -> None:
    chance = random.Random(7)
    digests = [await add(store, tmp_path / str(n), str(n)) for n in range(12)]
    collector = Collector(store, Logger("test"))
    is_over = asyncio.Event()

    async def collect() -> None:
        """Collect again and again, interrupted now and then as if killed."""
        while not is_over.is_set():
            with contextlib.suppress(Busy, TimeoutError):
                async with asyncio.timeout(chance.choice((0.01, 0.05, 10))):
                    await collector.collect(Wish(keep_seconds=0))
            await asyncio.sleep(0.01)

    async def publish(number: int) -> str | None:
        """Publish two layers, which may have been removed already."""
        await asyncio.sleep(chance.random() * 0.3)
        body = EnvironmentPublish(name=f"app{number}", layers=[digests[number], digests[-1]])
        try:
            await environments(store).publish(body)
        except NotFound:
            return None
        return f"app{number}"

    collecting = asyncio.ensure_future(collect())
    published = await asyncio.gather(*(publish(number) for number in range(11)))
    is_over.set()
    await collecting
    await collector.collect(Wish(keep_seconds=0))
    needed: set[str] = set()
    for name in published:
        if name is None:
            continue
        info = await environments(store).get(name)
        needed.update(layer.digest for layer in info.layers)
        for layer in info.layers:
            assert await store.layer(layer.digest) == layer
    assert {layer.digest for layer in await store.layers()} == needed
    assert await store.names("leases") == []


class Died(Exception):
    """A writer was killed."""


async def test_an_upload_that_was_given_up_is_swept_away(
    server: ObjectServer, tmp_path: Path
) -> None:
    server.start()
    url = f"{server.url}/{new_ulid()}"
    store = open_store(url, server.endpoint, 5)
    seen = S3Store.from_url(url, endpoint=server.endpoint, client_options={"allow_http": True})
    digest = await add(store, tmp_path / "whole", "whole")
    whole = await _paths(seen)

    def die(done: int, of: int) -> None:
        raise Died

    await asyncio.to_thread(_write, tmp_path / "half", "half")
    with pytest.raises(Died):
        await store.add(tmp_path / "half", LayerKind.TOOLKIT, created_at=0, progress=die)
    left = await _paths(seen)
    assert left > whole
    await store.sweep(3600)
    assert await _paths(seen) == left
    await store.sweep(-60)
    assert await _paths(seen) == whole
    assert [layer.digest for layer in await store.layers()] == [digest]


async def _paths(objects: S3Store) -> set[str]:
    """Return the paths of all objects."""
    return {entry["path"] async for page in objects.list_async() for entry in page}


async def test_what_dead_writers_left_in_a_directory_is_swept_away(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "store")
    digest = await add(store, tmp_path / "whole", "whole")
    left = store.temporary("layer")
    await asyncio.to_thread(_write, left, "half")
    await store.sweep(3600)
    assert left.exists()
    await store.sweep(-60)
    assert not left.exists()
    assert [layer.digest for layer in await store.layers()] == [digest]


async def test_a_layer_that_is_added_again_is_young_again(store: Store, tmp_path: Path) -> None:
    await add(store, tmp_path / "first", "same")
    (first,) = await store.layers()
    await asyncio.sleep(1.1)
    await add(store, tmp_path / "again", "same")
    (again,) = await store.layers()
    assert again.digest == first.digest and again.stored_at > first.stored_at


async def test_while_the_store_is_away_what_is_known_goes_on(
    server: ObjectServer, tmp_path: Path
) -> None:
    server.start()
    store = open_store(f"{server.url}/{new_ulid()}", server.endpoint, 2)
    digest = await add(store, tmp_path / "layer", "one")
    await environments(store).publish(EnvironmentPublish(name="app", layers=[digest]))
    await environments(store).publish(EnvironmentPublish(name="rare", layers=[digest]))
    catalog = Catalog(store, Logger("test"))
    await catalog.refresh()
    await catalog.resolve("app")
    server.kill()
    try:
        async with asyncio.timeout(20):
            with pytest.raises(Unreachable, match="the store of layers does not answer"):
                await catalog.resolve("rare")
            assert not is_well(catalog)
            for reference in ("app", "app:1"):
                assert (await catalog.resolve(reference)).layers == (digest,)
            with pytest.raises(Unreachable):
                await catalog.refresh()
        assert catalog.names() == ["app", "rare"]
    finally:
        server.start()
    found = None
    async with asyncio.timeout(60):
        while found is None:  # one part of the server is up before the other
            with contextlib.suppress(Unreachable):
                found = await catalog.resolve("rare")
            await asyncio.sleep(0.1)
    assert found.layers == (digest,)
    assert is_well(catalog)
