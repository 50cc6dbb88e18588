"""What references stand for, as the catalog remembers it; the store is a real directory."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandfleet_common.errors import Broken, Conflict, NotFound
from sandfleet_common.ids import new_snapshot_id
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    EnvironmentInfo,
    Layer,
    LayerKind,
    SnapshotInfo,
    SnapshotState,
)
from sandfleet_node.layers import Catalog, DirectoryStore
from sandfleet_node.layers.catalog import NAMES_MAX


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    """Return an empty store."""
    return DirectoryStore(tmp_path)


@pytest.fixture
def catalog(store: DirectoryStore) -> Catalog:
    """Return a catalog that knows nothing yet."""
    return Catalog(store, Logger("test"))


def layer(number: int, **notes: str) -> Layer:
    """Return a layer that is not in the store: the catalog does not look."""
    return Layer(
        digest=f"sha256:{number:064x}", kind=LayerKind.BASE, size_bytes=1, created_at=0, notes=notes
    )


async def put(store: DirectoryStore, name: str, version: str, *layers: Layer) -> None:
    """Write an environment's record."""
    info = EnvironmentInfo(name=name, version=version, layers=list(layers or (layer(1),)))
    await store.put_record("environments", f"{name}/{version}", info.encode())


async def test_a_name_stands_for_its_newest_version(
    store: DirectoryStore, catalog: Catalog
) -> None:
    for version in ("9", "10", "2"):
        await put(store, "app", version)
    assert (await catalog.resolve("app")).reference == "app:10"
    assert (await catalog.resolve("app:9")).reference == "app:9"


async def test_what_was_resolved_is_recalled_without_waiting(
    store: DirectoryStore, catalog: Catalog
) -> None:
    await put(store, "app", "1")
    assert catalog.recall("app") is None
    found = await catalog.resolve("app")
    assert catalog.recall("app") == catalog.recall("app:1") == found


async def test_a_new_version_is_seen_once_the_old_is_forgotten(
    store: DirectoryStore, catalog: Catalog
) -> None:
    await put(store, "app", "1")
    await catalog.resolve("app")
    await put(store, "app", "2")
    assert (await catalog.resolve("app")).reference == "app:1", "believed for two seconds"
    catalog.forget("app")
    assert (await catalog.resolve("app")).reference == "app:2"


async def test_forgetting_one_name_leaves_the_others(
    store: DirectoryStore, catalog: Catalog
) -> None:
    for name in ("app", "app-2"):
        await put(store, name, "1")
        await catalog.resolve(name)
    catalog.forget("app")
    assert catalog.recall("app:1") is None
    assert catalog.recall("app-2:1") is not None


async def test_a_removed_version_is_noticed_by_the_next_look_around(
    store: DirectoryStore, catalog: Catalog
) -> None:
    await put(store, "app", "1")
    await catalog.resolve("app:1")
    await store.remove_record("environments", "app/1")
    assert (await catalog.resolve("app:1")).reference == "app:1"
    await catalog.refresh()
    with pytest.raises(NotFound):
        await catalog.resolve("app:1")


async def test_many_who_ask_at_once_hear_the_same(store: DirectoryStore, catalog: Catalog) -> None:
    await put(store, "app", "1")
    found = await asyncio.gather(*(catalog.resolve("app") for _ in range(50)))
    assert {one.reference for one in found} == {"app:1"}
    problems = await asyncio.gather(
        *(catalog.resolve("none") for _ in range(50)), return_exceptions=True
    )
    assert {type(problem) for problem in problems} == {NotFound}


async def test_one_who_gives_up_does_not_take_the_answer_from_others(
    store: DirectoryStore, catalog: Catalog
) -> None:
    await put(store, "app", "1")
    first = asyncio.ensure_future(catalog.resolve("app"))
    await asyncio.sleep(0)
    others = [asyncio.ensure_future(catalog.resolve("app")) for _ in range(3)]
    await asyncio.sleep(0)
    first.cancel()
    assert {(await other).reference for other in others} == {"app:1"}


async def test_an_unknown_environment_is_refused_with_those_there_are(
    store: DirectoryStore, catalog: Catalog
) -> None:
    await put(store, "app", "1")
    with pytest.raises(NotFound, match="there is no environment 'other'; there are: app"):
        await catalog.resolve("other")
    with pytest.raises(NotFound, match="no such version; there are: 1"):
        await catalog.resolve("app:2")
    for bad in ("", "../etc", "app:", "App", "sn-x-1"):
        with pytest.raises(NotFound):
            await catalog.resolve(bad)


async def test_a_damaged_record_hides_only_itself(store: DirectoryStore, catalog: Catalog) -> None:
    await put(store, "app", "1")
    await store.put_record("environments", "bad/1", b"{")
    with pytest.raises(Broken, match="damaged"):
        await catalog.resolve("bad")
    assert (await catalog.resolve("app")).reference == "app:1"


async def test_a_snapshot_is_an_environment_once_it_is_ready(
    store: DirectoryStore, catalog: Catalog
) -> None:
    info = SnapshotInfo(
        snapshot_id=new_snapshot_id("n1"),
        sandbox_id="x",
        node="n1",
        state=SnapshotState.PACKING,
        layers=[layer(2).digest, layer(1).digest],
        env={"A": "b"},
        created_at=0,
    )
    await store.put_record("snapshots", info.snapshot_id, info.encode())
    with pytest.raises(Conflict, match="not ready"):
        await catalog.resolve(info.snapshot_id)
    ready = info.model_copy(update={"state": SnapshotState.READY})
    await store.put_record("snapshots", info.snapshot_id, ready.encode())
    found = await catalog.resolve(info.snapshot_id)
    assert (found.reference, list(found.layers), found.env) == (
        info.snapshot_id, info.layers, {"A": "b"},
    )  # fmt: skip


async def test_more_names_than_a_heartbeat_holds_are_said_to_be_more(
    store: DirectoryStore, catalog: Catalog
) -> None:
    await asyncio.gather(*(put(store, f"app{number:04}", "1") for number in range(NAMES_MAX)))
    await catalog.refresh()
    assert catalog.is_complete and catalog.followed() == catalog.names()
    await put(store, "zzz", "1")
    await catalog.refresh()
    assert not catalog.is_complete and catalog.followed() is None
    assert len(catalog.names()) == NAMES_MAX
    assert (await catalog.resolve("zzz")).reference == "zzz:1"


async def test_what_does_not_fit_is_warned_of_when_it_is_resolved(
    store: DirectoryStore, catalog: Catalog
) -> None:
    await put(store, "app", "1", layer(2, **{"built_on.python": "3.12"}), layer(1, python="3.11"))
    found = await catalog.resolve("app")
    assert len(found.warnings) == 1
