"""What a node answers about environments, layers and snapshots: real service, real directory."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from layering import add_tree
from node.caps_tools import sh
from node.nodes import NodeHouse, RunningNode, output
from servers import Servers

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest, Busy, Conflict, NotFound
from sandfleet_common.ids import new_snapshot_id
from sandfleet_common.logs import Logger
from sandfleet_node.launcher import LauncherRefused
from sandfleet_node.layers import DirectoryStore
from sandfleet_node.layers.__main__ import main
from sandfleet_node.layers.leases import Lease

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]


@pytest_asyncio.fixture
async def node(
    servers: Servers, tmp_path: Path, tiny_layers: Path, log: Logger
) -> AsyncGenerator[RunningNode]:
    """Return a node with a store of its own, which a test may empty."""
    shutil.copytree(tiny_layers, tmp_path / "layers", copy_function=os.link)
    house = NodeHouse(servers, tmp_path, log)
    try:
        async with house.running() as node:
            yield node
    finally:
        house.clean()


@pytest.fixture
def store(node: RunningNode, tmp_path: Path) -> DirectoryStore:
    """Return the node's store."""
    return DirectoryStore(tmp_path / "layers")


def add(store: DirectoryStore, text: str, **notes: str) -> m.Layer:
    """Pack a layer with one file."""
    tree = store.temporary("tree")
    tree.mkdir()
    (tree / "said").write_text(text)
    made = add_tree(store, tree, m.LayerKind.TOOLKIT)
    manifest = store.folder(made.digest) / "manifest.json"
    made = made.model_copy(update={"notes": notes})
    manifest.chmod(0o644)
    manifest.write_bytes(made.encode())
    return made


async def base_of(node: RunningNode) -> m.EnvironmentInfo:
    """Return the environment that every node of these tests has."""
    return await node.ask(s.ENVIRONMENT_GET, m.EnvironmentGet(environment="tiny"))


async def publish(
    node: RunningNode, name: str, *layers: m.Layer, **fields: Any
) -> m.EnvironmentInfo:
    """Publish layers on top of the base."""
    digests = [layer.digest for layer in (*layers, *(await base_of(node)).layers)]
    body = m.EnvironmentPublish(name=name, layers=digests, **fields)
    return await node.ask(s.ENVIRONMENT_PUBLISH, body)


async def collect(node: RunningNode, **fields: Any) -> m.StoreCollected:
    """Collect."""
    fields.setdefault("keep_seconds", 0)
    return await node.ask(s.STORE_COLLECT, m.StoreCollect(**fields))


async def said(node: RunningNode, environment: str) -> str:
    """Return what the file of a layer says in a new sandbox."""
    sandbox = await node.create(environment=environment)
    state = await sh(node, sandbox, "cat /said")
    return output(state).decode()


async def test_a_published_environment_is_what_sandboxes_are_made_of(
    node: RunningNode, store: DirectoryStore
) -> None:
    made = await publish(node, "app", add(store, "one"), env={"A": "b"}, user="user")
    assert (made.version, made.warnings) == ("1", [])
    assert await said(node, "app") == "one"
    assert (await publish(node, "app", add(store, "two"))).version == "2"
    assert await said(node, "app") == "two"
    assert await said(node, "app:1") == "one"


async def test_a_sandbox_knows_the_exact_version_it_was_made_of(
    node: RunningNode, store: DirectoryStore
) -> None:
    await publish(node, "app", add(store, "one"))
    outcome = (await node.order(node.item(environment="app")))[0]
    assert outcome.info is not None and outcome.info.environment == "app:1"


async def test_the_same_stack_again_is_no_new_version(
    node: RunningNode, store: DirectoryStore
) -> None:
    layer = add(store, "one")
    first = await publish(node, "app", layer)
    assert await publish(node, "app", layer) == first
    assert (await publish(node, "app", layer, workdir="/root")).version == "2"


async def test_publishers_at_once_lose_no_version(node: RunningNode, store: DirectoryStore) -> None:
    layers = [add(store, str(number)) for number in range(6)]
    made = await asyncio.gather(*(publish(node, "app", x) for x in layers for _ in range(2)))
    page = await node.ask(s.ENVIRONMENT_LIST, m.EnvironmentList(versions=True, prefix="app"))
    kept = {entry.version for entry in page.environments}
    assert {info.version for info in made} == kept
    tops = {info.layers[0].digest for info in made}
    assert tops == {layer.digest for layer in layers}


async def test_a_version_that_was_asked_for_is_taken_once(
    node: RunningNode, store: DirectoryStore
) -> None:
    one, two = add(store, "one"), add(store, "two")
    assert (await publish(node, "app", one, version="2.10")).version == "2.10"
    assert (await publish(node, "app", one, version="2.10")).version == "2.10"
    with pytest.raises(Conflict, match=r"app:2\.10 exists already"):
        await publish(node, "app", two, version="2.10")
    assert (await publish(node, "app", two)).version == "2.11"


async def test_an_environment_of_a_missing_layer_is_refused(node: RunningNode) -> None:
    body = m.EnvironmentPublish(name="app", layers=[f"sha256:{7:064x}"])
    with pytest.raises(NotFound, match="is not in the store"):
        await node.ask(s.ENVIRONMENT_PUBLISH, body)


async def test_what_does_not_fit_is_warned_of(node: RunningNode, store: DirectoryStore) -> None:
    below, above = add(store, "a", python="3.11.2"), add(store, "b", **{"built_on.python": "3.12"})
    made = await publish(node, "app", above, below)
    again = await node.ask(s.ENVIRONMENT_GET, m.EnvironmentGet(environment="app:1"))
    assert len(made.warnings) == 1 and again.warnings == made.warnings
    assert await said(node, "app") == "b"  # a warning, not an error


async def test_environments_are_listed_page_by_page(
    node: RunningNode, store: DirectoryStore
) -> None:
    layer = add(store, "one")
    for name in ("a-b", "a", "a.b"):
        for version in ("9", "10"):
            await publish(node, name, layer, version=version)
    seen: list[str] = []
    after = None
    for _ in range(10):
        body = m.EnvironmentList(versions=True, limit=2, after=after, prefix="a")
        page = await node.ask(s.ENVIRONMENT_LIST, body)
        seen += [f"{e.name}:{e.version}" for e in page.environments]
        after = page.next
        if after is None:
            break
    assert seen == ["a:9", "a:10", "a-b:9", "a-b:10", "a.b:9", "a.b:10"]
    newest = await node.ask(s.ENVIRONMENT_LIST, m.EnvironmentList(prefix="a"))
    assert [e.version for e in newest.environments] == ["10"] * 3
    with pytest.raises(BadRequest):
        await node.ask(s.ENVIRONMENT_LIST, m.EnvironmentList(after="..//"))
    outside = await node.ask(s.ENVIRONMENT_LIST, m.EnvironmentList(prefix="../snapshots/"))
    assert outside.environments == []


async def test_a_removed_environment_is_gone_and_its_sandboxes_go_on(
    node: RunningNode, store: DirectoryStore
) -> None:
    layer = add(store, "one")
    await publish(node, "app", layer)
    sandbox = await node.create(environment="app")
    await node.ask(s.ENVIRONMENT_REMOVE, m.EnvironmentRemove(environment="app"))
    refused = (await node.order(node.item(environment="app:1")))[0]
    assert refused.failure is not None and refused.failure.code == "not_found"
    with pytest.raises(NotFound):
        await node.ask(s.ENVIRONMENT_REMOVE, m.EnvironmentRemove(environment="app"))
    for _ in range(200):
        lease = await store.record("leases", f"node.{node.name}")
        if lease is not None and layer.digest.encode() in lease:
            break
        await asyncio.sleep(0.05)
    assert (await collect(node)).removed == 0
    assert output(await sh(node, sandbox, "cat /said")) == b"one"


async def test_only_what_nobody_needs_is_collected(
    node: RunningNode, store: DirectoryStore
) -> None:
    named, keyed, loose = add(store, "named"), add(store, "keyed"), add(store, "loose")
    await publish(node, "app", named)
    await store.put_record("keys", "k1", keyed.digest.encode())
    assert (await collect(node, keep_seconds=3600)).removed == 0
    dry = await collect(node, dry_run=True)
    assert (dry.removed, dry.kept) == (1, 3)
    assert store.files(loose.digest) is not None
    assert await collect(node) == dry
    assert store.files(loose.digest) is None
    found = await node.ask(s.LAYER_FIND, m.LayerFind(key="k1"))
    assert found.layer is not None and found.layer.digest == keyed.digest
    assert await said(node, "app") == "named"


async def test_a_snapshot_keeps_its_layers_from_being_collected(
    node: RunningNode, store: DirectoryStore
) -> None:
    sandbox = await node.create()
    await sh(node, sandbox, "echo kept > /kept")
    body = m.SandboxSnapshot(sandbox_id=sandbox, snapshot_id=new_snapshot_id(node.name))
    info = await node.ask(s.SNAPSHOT, body)
    assert info.layer is not None
    await collect(node)
    assert store.files(info.layer.digest) is not None
    shown = await node.ask(s.ENVIRONMENT_GET, m.EnvironmentGet(environment=info.snapshot_id))
    assert [layer.digest for layer in shown.layers] == info.layers
    await node.ask(s.SNAPSHOT_REMOVE, m.SnapshotRemove(snapshot_id=info.snapshot_id))
    assert (await collect(node)).removed == 1


async def test_a_key_whose_layer_has_gone_finds_nothing(
    node: RunningNode, store: DirectoryStore
) -> None:
    layer = add(store, "one")
    await store.put_record("keys", "k1", layer.digest.encode())
    await store.remove_layer(layer.digest)
    found = await node.ask(s.LAYER_FIND, m.LayerFind(key="k1"))
    assert found.layer is None
    assert await store.names("keys") == []


async def test_one_collection_at_a_time(node: RunningNode, store: DirectoryStore) -> None:
    add(store, "loose")
    under_way = Lease(at=time.time(), digests=[])
    await store.put_record("leases", "collecting", under_way.encode())
    with pytest.raises(Busy, match="another collection"):
        await collect(node)
    abandoned = Lease(at=time.time() - 3600, digests=[])
    await store.put_record("leases", "collecting", abandoned.encode())
    assert (await collect(node)).removed == 1
    assert await store.record("leases", "collecting") is None


async def test_what_is_being_removed_cannot_be_published(
    node: RunningNode, store: DirectoryStore
) -> None:
    layer = add(store, "one")
    condemned = Lease(at=time.time(), digests=[layer.digest])
    await store.put_record("leases", "collecting", condemned.encode())
    publishing = asyncio.ensure_future(publish(node, "app", layer))
    done, _ = await asyncio.wait({publishing}, timeout=0.5)
    assert not done
    await store.remove_layer(layer.digest)
    await store.remove_record("leases", "collecting")
    with pytest.raises(NotFound):
        await publishing


async def test_snapshots_are_listed_named_and_pruned_as_a_tree(
    node: RunningNode, store: DirectoryStore
) -> None:
    ids = [new_snapshot_id(node.name) for _ in range(5)]
    parents = [None, ids[0], ids[1], ids[0], None]
    for number, (snapshot_id, parent) in enumerate(zip(ids, parents, strict=True)):
        info = m.SnapshotInfo(
            snapshot_id=snapshot_id, sandbox_id=f"sb{number % 2}", node=node.name,
            state=m.SnapshotState.READY, parent=parent, created_at=float(number),
        )  # fmt: skip
        await store.put_record("snapshots", snapshot_id, info.encode())
    seen: list[str] = []
    after = None
    while True:
        page = await node.ask(s.SNAPSHOT_LIST, m.SnapshotList(limit=2, after=after))
        seen += [info.snapshot_id for info in page.snapshots]
        after = page.next
        if after is None:
            break
    assert sorted(seen) == sorted(ids) and seen == sorted(seen, key=lambda i: i[-26:], reverse=True)

    body = m.SnapshotUpdate(snapshot_id=ids[1], name="best", labels={"run": "7"})
    await node.ask(s.SNAPSHOT_UPDATE, body)
    for wish in (
        m.SnapshotList(name="best"),
        m.SnapshotList(labels={"run": "7"}),
        m.SnapshotList(parent=ids[0], name="best"),
    ):
        page = await node.ask(s.SNAPSHOT_LIST, wish)
        assert [info.snapshot_id for info in page.snapshots] == [ids[1]]

    gone = await node.ask(s.SNAPSHOT_REMOVE, m.SnapshotRemove(snapshot_id=ids[0], descendants=True))
    assert set(gone.snapshot_ids) == set(ids[:4])
    assert await store.names("snapshots") == [ids[4]]
    with pytest.raises(NotFound):
        await node.ask(s.SNAPSHOT_GET, m.SnapshotGet(snapshot_id=ids[0]))


async def test_an_environment_with_small_layers_merged_shows_the_same(
    node: RunningNode, store: DirectoryStore, capsys: pytest.CaptureFixture[str]
) -> None:
    layers = [add(store, str(number), note=str(number)) for number in range(3)]
    await publish(node, "app", *layers, env={"A": "b"})
    argv = ["merge", "--state", str(store.root.parent), "--environment", "app"]
    assert await asyncio.to_thread(main, argv) == 0
    assert capsys.readouterr().out.startswith("app:2 sha256:")
    merged = await node.ask(s.ENVIRONMENT_GET, m.EnvironmentGet(environment="app:2"))
    assert (len(merged.layers), merged.env) == (2, {"A": "b"})
    assert merged.layers[0].notes["note"] == "0"
    assert await said(node, "app:2") == "0"
    assert await asyncio.to_thread(main, argv) == 0
    assert capsys.readouterr().out.startswith("app:2 "), "merged once, there is no more to merge"


async def test_a_disk_that_fills_loses_only_layers_that_nobody_needs(
    servers: Servers, tmp_path: Path, tiny_layers: Path, log: Logger
) -> None:
    shutil.copytree(tiny_layers, tmp_path / "layers", copy_function=os.link)
    store = DirectoryStore(tmp_path / "layers")
    house = NodeHouse(servers, tmp_path, log)
    try:
        async with house.running(layers_free_bytes=1 << 60) as node:
            care, local = node.node.layer_care, node.node.local_layers
            named, used, loose, young = (add(store, text) for text in ("a", "b", "c", "d"))
            await publish(node, "named", named)
            await publish(node, "used", used)
            local.make()
            left, copied = add(local, "left by a fork"), add(local, "a")
            assert copied.digest == named.digest
            sandbox = await node.create(environment="used")
            await node.ask(s.ENVIRONMENT_REMOVE, m.EnvironmentRemove(environment="used"))
            for at, (where, layer) in enumerate(
                ((store, named), (store, used), (store, loose), (local, left))
            ):
                os.utime(where.folder(layer.digest) / "manifest.json", (at, at))
            for _ in range(200):
                lease = await store.record("leases", f"node.{node.name}")
                if lease is not None and used.digest.encode() in lease:
                    break
                await asyncio.sleep(0.05)
            assert await care.make_room() > 0
            kept = {layer.digest for layer in await store.layers()}
            assert kept >= {named.digest, used.digest, young.digest} and loose.digest not in kept
            assert await local.layers() == []
            assert output(await sh(node, sandbox, "cat /said")) == b"b"
            assert await care.make_room() == 0
    finally:
        house.clean()


async def test_leases_that_were_not_renewed_are_over(
    node: RunningNode, store: DirectoryStore
) -> None:
    held, lost = add(store, "held"), add(store, "lost")
    for name, layer, at in (("node.n1", held, time.time()), ("node.n2", lost, 1.0)):
        lease = Lease(at=at, digests=[layer.digest])
        await store.put_record("leases", name, lease.encode())
    assert (await collect(node)).removed == 1
    assert store.files(held.digest) is not None
    assert "node.n2" not in await store.names("leases")


async def test_a_layer_that_an_earlier_service_mounted_is_unmounted_when_idle(
    servers: Servers, tmp_path: Path, tiny_layers: Path, log: Logger
) -> None:
    shutil.copytree(tiny_layers, tmp_path / "layers", copy_function=os.link)
    store = DirectoryStore(tmp_path / "layers")
    house = NodeHouse(servers, tmp_path, log)
    record = tmp_path / "node" / house.name / "run" / "layers.json"
    try:
        async with house.running() as node:
            layer = add(store, "one")
            await publish(node, "app", layer)
            kept = await node.create()
            await node.stop(await node.create(environment="app"))
            for _ in range(400):
                if record.exists() and layer.digest in record.read_text():
                    break
                await asyncio.sleep(0.05)
        async with house.running(layer_idle_seconds=0) as node:
            for _ in range(600):
                if layer.digest not in record.read_text():
                    break
                await asyncio.sleep(0.05)
            with pytest.raises(LauncherRefused, match="not mounted"):
                await node.node.keeper.unmount(layer.digest)
            assert output(await sh(node, kept, "echo on")) == b"on\n"
            assert await said(node, "app") == "one"
    finally:
        house.clean()


async def test_a_layer_nobody_uses_is_unmounted_and_mounted_again_when_needed(
    node: RunningNode, store: DirectoryStore
) -> None:
    layer = add(store, "one")
    await publish(node, "app", layer)
    sandbox = await node.create(environment="app")
    keeper = node.node.keeper
    await node.stop(sandbox)
    await node.until_gone(sandbox)
    assert layer.digest in keeper.mounted()
    await keeper.unmount(layer.digest)
    assert layer.digest not in keeper.mounted()
    assert await said(node, "app") == "one"
