"""The store of layers in a real S3 server."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from objectserver import BUCKET, ObjectServer, object_server
from obstore.store import S3Store

from sandfleet_common.errors import BadRequest, Denied, NotFound, Unreachable
from sandfleet_common.messages import LayerKind
from sandfleet_node.layers import Store, open_store
from sandfleet_node.layers.index import CHUNK_BYTES, index_of, parse
from sandfleet_node.layers.objects import PART_BYTES

pytestmark = pytest.mark.integration
MIB = 1024**2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Generator[ObjectServer]:
    with object_server(tmp_path_factory.mktemp("objects")) as running:
        yield running


@pytest.fixture
def store(server: ObjectServer, request: pytest.FixtureRequest) -> Store:
    server.start()
    name = str(abs(hash(request.node.name)))
    return open_store(f"{server.url}/{name}", server.endpoint, 5)


@pytest.fixture
def objects(server: ObjectServer, request: pytest.FixtureRequest) -> S3Store:
    """What lies below the store of the same test."""
    return S3Store(
        BUCKET,
        prefix=f"store/{abs(hash(request.node.name))}",
        endpoint=server.endpoint,
        virtual_hosted_style_request=False,
        client_options={"allow_http": True},
    )


def folder(place: Path, size: int) -> Path:
    place.mkdir()
    (place / "meta").write_bytes(os.urandom(5000))
    (place / "data").write_bytes(os.urandom(size))
    return place


async def test_a_layer_comes_back_as_it_was_sent(store: Store, tmp_path: Path) -> None:
    made = folder(tmp_path / "layer", PART_BYTES + 3 * MIB + 7)
    meta, data = (made / "meta").read_bytes(), (made / "data").read_bytes()
    told: list[tuple[int, int]] = []
    layer = await store.add(
        made, LayerKind.BASE, created_at=1, progress=lambda done, of: told.append((done, of))
    )
    assert told[-1] == (layer.size_bytes, layer.size_bytes)
    assert await store.layer(layer.digest) == layer
    index = parse(await store.index(layer.digest), layer.digest)
    assert (index.meta_bytes, index.data_bytes) == (len(meta), len(data))
    assert await store.read(layer.digest, "meta", 0, 10_000) == meta
    across = await store.read(layer.digest, "data", PART_BYTES - CHUNK_BYTES, 2 * CHUNK_BYTES)
    assert across == data[PART_BYTES - CHUNK_BYTES : PART_BYTES + CHUNK_BYTES]
    end = await store.read(layer.digest, "data", len(data) - 5, CHUNK_BYTES)
    assert end == data[-5:]
    assert [found.digest for found in await store.layers()] == [layer.digest]
    assert store.files(layer.digest) is None
    await store.remove_layer(layer.digest)
    assert await store.layers() == []
    with pytest.raises(NotFound):
        await store.layer(layer.digest)


async def test_an_upload_that_was_cut_off_goes_on(
    store: Store, server: ObjectServer, tmp_path: Path
) -> None:
    made = folder(tmp_path / "layer", 2 * PART_BYTES)
    first = asyncio.Event()
    task = asyncio.create_task(
        store.add(made, LayerKind.BASE, created_at=1, progress=lambda done, of: first.set())
    )
    await first.wait()
    server.kill()
    with pytest.raises(Unreachable):
        await task
    server.start()
    assert await store.layers() == []  # half a layer is none
    layer = await store.add(made, LayerKind.BASE, created_at=1)
    index = parse(await store.index(layer.digest), layer.digest)
    for number in range(index.chunks):
        chunk = await store.read(layer.digest, "data", number * CHUNK_BYTES, CHUNK_BYTES)
        assert index.is_chunk(number, chunk)


@pytest.mark.parametrize("name", ["meta", "data/00000", "data/00001"])
async def test_a_damaged_part_of_the_right_size_is_sent_again(
    store: Store, objects: S3Store, tmp_path: Path, name: str
) -> None:
    made = folder(tmp_path / "layer", PART_BYTES + 3 * MIB + 7)
    meta, data = (made / "meta").read_bytes(), (made / "data").read_bytes()
    index = index_of(made / "meta", made / "data")
    size = {"meta": len(meta), "data/00000": PART_BYTES, "data/00001": len(data) - PART_BYTES}
    place = f"layers/{index.digest.removeprefix('sha256:')}/{name}"
    await objects.put_async(place, os.urandom(size[name]))
    layer = await store.add(made, LayerKind.BASE, created_at=1)
    assert layer.digest == index.digest
    assert await store.read(layer.digest, "meta", 0, len(meta)) == meta
    assert await store.read(layer.digest, "data", 0, len(data)) == data


async def test_a_part_that_is_there_unharmed_is_not_sent_again(
    store: Store, objects: S3Store, tmp_path: Path
) -> None:
    made = folder(tmp_path / "layer", PART_BYTES + MIB)
    index = index_of(made / "meta", made / "data")
    place = f"layers/{index.digest.removeprefix('sha256:')}/data/00000"
    await objects.put_async(place, (made / "data").read_bytes()[:PART_BYTES])
    before = (await objects.head_async(place))["last_modified"]
    await asyncio.sleep(1.1)  # what the server tells has a resolution of a second
    await store.add(made, LayerKind.BASE, created_at=1)
    assert (await objects.head_async(place))["last_modified"] == before


async def test_two_who_add_the_same_at_once_end_with_one(store: Store, tmp_path: Path) -> None:
    one = folder(tmp_path / "one", MIB)
    other = tmp_path / "other"
    other.mkdir()
    for name in ("meta", "data"):
        (other / name).write_bytes((one / name).read_bytes())
    added = await asyncio.gather(
        store.add(one, LayerKind.BASE, created_at=1),
        store.add(other, LayerKind.BASE, created_at=1),
    )
    assert added[0] == added[1]
    assert len(await store.layers()) == 1


async def test_records_are_made_once_listed_and_removed(store: Store) -> None:
    assert await store.names("environments") == []
    assert await store.put_record("environments", "debian/1", b"one", new=True)
    assert not await store.put_record("environments", "debian/1", b"two", new=True)
    await store.put_record("environments", "debian/2", b"two")
    await store.put_record("environments", "deb/1", b"x")
    assert await store.names("environments", "debian/") == ["debian/1", "debian/2"]
    assert await store.names("environments", "deb") == ["deb/1", "debian/1", "debian/2"]
    assert await store.record("environments", "debian/1") == b"one"
    await store.remove_record("environments", "debian/1")
    await store.remove_record("environments", "debian/1")
    assert await store.record("environments", "debian/1") is None
    assert await store.names("environments", "debian/") == ["debian/2"]


async def test_of_many_who_make_the_same_record_one_wins(store: Store) -> None:
    made = await asyncio.gather(
        *(store.put_record("keys", "k", str(n).encode(), new=True) for n in range(8))
    )
    assert sum(made) == 1


async def test_a_store_that_went_away_is_noticed_in_time(
    store: Store, server: ObjectServer
) -> None:
    server.kill()
    try:
        began = time.monotonic()
        with pytest.raises(Unreachable, match="does not answer"):
            await store.record("environments", "debian/1")
        assert time.monotonic() - began < 60  # it is bounded at all
    finally:
        server.start()
    assert await store.record("environments", "debian/1") is None


async def test_wrong_credentials_are_refused_and_not_repeated(
    server: ObjectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-the-secret")
    store = open_store(server.url, server.endpoint, 5)
    with pytest.raises(Denied) as problem:
        await store.record("environments", "debian/1")
    assert "not-the-secret" not in str(problem.value)


@pytest.mark.parametrize("url", ["", "ftp://host/x", "s3://", "file://host/path", "relative/path"])
def test_what_is_no_store_is_refused(url: str) -> None:
    with pytest.raises(BadRequest, match="is not the URL"):
        open_store(url)
