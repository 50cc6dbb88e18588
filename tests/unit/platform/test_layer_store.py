"""A store of layers and environments that is a directory, and the catalog before it."""

from __future__ import annotations

import asyncio
import stat
from pathlib import Path

import pytest
from layering import publish

from sandfleet_common.errors import Broken, NotFound
from sandfleet_common.ids import new_snapshot_id
from sandfleet_common.logs import Logger
from sandfleet_common.messages import Layer, LayerKind
from sandfleet_node.layers import Catalog, DirectoryStore
from sandfleet_node.layers.index import CHUNK_BYTES, parse


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    made = DirectoryStore(tmp_path / "layers")
    made.make()
    return made


@pytest.fixture
def catalog(store: DirectoryStore) -> Catalog:
    return Catalog(store, Logger("test"))


def folder(store: DirectoryStore, content: bytes, name: str = "image") -> Path:
    """Return a folder with the two files of a layer; what is in them does not matter here."""
    made = store.temporary(name)
    made.mkdir()
    (made / "meta").write_bytes(b"meta")
    (made / "data").write_bytes(content)
    return made


async def add(store: DirectoryStore, content: bytes) -> Layer:
    return await store.add(folder(store, content), LayerKind.BASE, created_at=1.0)


async def test_every_chunk_can_be_verified_from_the_digest_alone(store: DirectoryStore) -> None:
    content = bytes(range(256)) * 1024 * 3 + b"the end"
    layer = await add(store, content)
    index = parse(await store.index(layer.digest), layer.digest)
    assert (index.chunks, index.chunk_size(3)) == (4, 7)
    for number in range(index.chunks):
        chunk = await store.read(layer.digest, "data", number * CHUNK_BYTES, CHUNK_BYTES)
        assert index.is_chunk(number, chunk)
        assert not index.is_chunk(number, chunk[:-1] + bytes([chunk[-1] ^ 1]))
    assert index.is_meta(await store.read(layer.digest, "meta", 0, 100))


async def test_a_damaged_index_is_noticed(store: DirectoryStore) -> None:
    layer = await add(store, b"image")
    path = store.folder(layer.digest) / "index"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.chmod(0o644)
    path.write_bytes(content)
    with pytest.raises(Broken, match="damaged"):
        await store.index(layer.digest)


@pytest.mark.parametrize("cut", [0, 3, 24, 55, 56, 87, 89])
async def test_what_is_no_index_is_refused(store: DirectoryStore, cut: int) -> None:
    layer = await add(store, b"image")
    content = await store.index(layer.digest)
    assert len(content) == 88
    wrong = content[:cut] if cut < len(content) else content + b"x"
    with pytest.raises(Broken):
        parse(wrong)


async def test_a_layer_in_the_store_cannot_be_written(store: DirectoryStore) -> None:
    files = store.files((await add(store, b"image")).digest)
    assert files is not None
    assert {stat.S_IMODE(path.stat().st_mode) for path in (files.meta, files.data)} == {0o444}


async def test_the_same_bytes_added_twice_keep_the_first_manifest(store: DirectoryStore) -> None:
    first = await add(store, b"image")
    again = folder(store, b"image")
    layer = await store.add(again, LayerKind.SNAPSHOT, created_at=2.0, description="later")
    assert layer == first
    assert list(again.iterdir()) == []


async def test_many_who_add_the_same_at_once_end_with_one(store: DirectoryStore) -> None:
    folders = [folder(store, b"image" * 100_000, f"image{n}") for n in range(8)]
    added = await asyncio.gather(
        *(store.add(f, LayerKind.BASE, created_at=float(n)) for n, f in enumerate(folders))
    )
    assert len({layer.digest for layer in added}) == 1
    assert [found.digest for found in await store.layers()] == [added[0].digest]


async def test_nothing_unfinished_stays_in_the_store(store: DirectoryStore) -> None:
    layer = await add(store, b"image")
    await store.put_record("environments", "debian/1", b"{}")
    left = sorted(path.name for path in store.root.rglob("*") if path.is_file())
    assert left == ["1.json", "data", "index", "manifest.json", "meta"]
    await store.remove_layer(layer.digest)
    assert store.files(layer.digest) is None
    assert await store.layers() == []


async def test_a_record_is_made_once_and_replaced_whole(store: DirectoryStore) -> None:
    assert await store.put_record("environments", "debian/1", b"one", new=True)
    assert not await store.put_record("environments", "debian/1", b"two", new=True)
    assert await store.record("environments", "debian/1") == b"one"
    assert await store.put_record("environments", "debian/1", b"three")
    assert await store.record("environments", "debian/1") == b"three"
    await store.remove_record("environments", "debian/1")
    await store.remove_record("environments", "debian/1")
    assert await store.record("environments", "debian/1") is None


@pytest.mark.parametrize("name", ["", "../x", "a/../b", "a/b/c", ".x", "a/.b", "x\n", "/etc/x"])
async def test_a_records_name_cannot_lead_out_of_the_store(
    store: DirectoryStore, name: str
) -> None:
    with pytest.raises(NotFound):
        await store.put_record("keys", name, b"")


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../etc/passwd", "md5:" + "0" * 64])
async def test_a_digest_cannot_lead_out_of_the_store(store: DirectoryStore, digest: str) -> None:
    with pytest.raises(NotFound):
        store.files(digest)


async def test_an_unknown_environment_is_refused_with_the_known_ones(
    store: DirectoryStore, catalog: Catalog
) -> None:
    layer = await add(store, b"image")
    publish(store, "debian", "1", [layer])
    publish(store, "alpine", "1", [layer])
    with pytest.raises(NotFound, match=r"'debain'; there are: alpine, debian"):
        await catalog.resolve("debain")


@pytest.mark.parametrize("name", ["", "../debian", "a/b", "Debian", "debian:", "debian:x", "d\n"])
async def test_what_is_no_name_is_not_found(
    store: DirectoryStore, catalog: Catalog, name: str
) -> None:
    publish(store, "debian", "1", [await add(store, b"image")])
    with pytest.raises(NotFound):
        await catalog.resolve(name)


async def test_the_newest_version_is_the_one_with_the_highest_numbers(
    store: DirectoryStore, catalog: Catalog
) -> None:
    layer = await add(store, b"image")
    for version in ("12.9", "12.10", "2.30"):
        publish(store, "debian", version, [layer])
    assert (await catalog.resolve("debian")).reference == "debian:12.10"
    assert (await catalog.resolve("debian:12.9")).reference == "debian:12.9"
    with pytest.raises(NotFound, match=r"there are: 2\.30, 12\.9, 12\.10"):
        await catalog.resolve("debian:3")


async def test_what_is_known_is_recalled_without_asking_the_store(
    store: DirectoryStore, catalog: Catalog
) -> None:
    publish(store, "debian", "1", [await add(store, b"image")])
    assert catalog.recall("debian") is None
    found = await catalog.resolve("debian")
    assert catalog.recall("debian") is found
    assert catalog.recall("debian:1") is found
    catalog.forget("debian")
    assert catalog.recall("debian") is None
    assert catalog.recall("debian:1") is None


async def test_a_damaged_environment_says_so(store: DirectoryStore, catalog: Catalog) -> None:
    await store.put_record("environments", "debian/2", b"{")
    with pytest.raises(Broken, match="damaged"):
        await catalog.resolve("debian")


async def test_a_snapshot_that_nobody_took_is_not_found(catalog: Catalog) -> None:
    with pytest.raises(NotFound, match="no snapshot"):
        await catalog.resolve(new_snapshot_id("n1"))


async def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    catalog = Catalog(DirectoryStore(tmp_path / "nowhere"), Logger("test"))
    await catalog.refresh()
    assert (catalog.names(), catalog.is_complete) == ([], True)
    with pytest.raises(NotFound, match="none yet"):
        await catalog.resolve("debian")
