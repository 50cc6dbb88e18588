"""Snapshots, forks and environments through the SDK, over NATS and through a real gateway."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import httpx
import pytest
import pytest_asyncio
from command_line import Cli
from sdk_peer import Peer
from sdk_store import DIGEST, StorePeer, storing
from servers import Servers

from sandfleet import (
    AsyncClient,
    AsyncSandbox,
    BadRequest,
    NoCapacity,
    NotFound,
    SandboxFailed,
    TimedOut,
)
from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.ids import is_snapshot_id

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

LAYER = m.Layer(digest=DIGEST, kind=m.LayerKind.BASE, size_bytes=1, created_at=0)


@pytest_asyncio.fixture
async def store(peer: Peer) -> AsyncGenerator[StorePeer]:
    async with storing(peer, peer.node_bus) as store:
        yield store


async def test_a_snapshot_is_waited_for_and_asked_for_again_under_its_id(
    store: StorePeer, sandbox: AsyncSandbox
) -> None:
    store.ready_after = 3
    snapshot = await sandbox.snapshot(name="before", labels={"run": "7"})
    assert snapshot.state is m.SnapshotState.READY
    asked = store.questions(m.SandboxSnapshot)
    assert len(asked) == 3
    assert {body.snapshot_id for body in asked} == {snapshot.id} == set(store.snapshots)
    assert is_snapshot_id(snapshot.id)
    assert (asked[0].name, asked[0].labels, asked[0].scrub) == ("before", {"run": "7"}, True)


async def test_a_snapshot_whose_answer_was_lost_is_made_once(
    store: StorePeer, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandfleet.calls.ATTEMPT_SECONDS", 0.5)
    store.lose_answers[s.SNAPSHOT.pattern] = 1
    snapshot = await sandbox.snapshot(wait=False)
    assert len(store.questions(m.SandboxSnapshot)) == 2
    assert set(store.snapshots) == {snapshot.id}


async def test_a_failed_snapshot_raises_its_cause(store: StorePeer, sandbox: AsyncSandbox) -> None:
    store.failure = "packing failed: the disk is full"
    with pytest.raises(SandboxFailed, match="packing failed: the disk is full") as raised:
        await sandbox.snapshot()
    assert raised.value.fields["snapshot"] in store.snapshots


async def test_one_that_nobody_waited_for_is_waited_for_later(
    store: StorePeer, client: AsyncClient, sandbox: AsyncSandbox
) -> None:
    store.ready_after = 4
    snapshot = await sandbox.snapshot(wait=False)
    assert snapshot.state is m.SnapshotState.PACKING
    assert (await snapshot.wait()).state is m.SnapshotState.READY
    store.ready_after, store.failure = 10_000, "too large"
    other = await sandbox.snapshot(wait=False)
    with pytest.raises(TimedOut, match=r"is packing after 0\.2 s"):
        await other.wait(deadline=0.2)
    store.ready_after = 1
    with pytest.raises(SandboxFailed, match="too large"):
        await client.restore(other.id)


async def test_a_fork_of_many_is_asked_for_in_batches_of_one_moment(
    store: StorePeer, peer: Peer, sandbox: AsyncSandbox
) -> None:
    fork = await sandbox.fork(600, labels={"who": "child"})
    asked = store.questions(m.SandboxFork)
    assert [len(body.children) for body in asked] == [256, 256, 88]
    assert {body.snapshot_id for body in asked} == {fork.snapshot_id}
    assert len(fork.children) == len(fork.outcomes) == 600
    assert {child.id for child in fork.children} == set(peer.sandboxes) - {sandbox.id}
    assert fork.children[0].info_now.spec.labels == {"who": "child"}


async def test_a_fork_whose_answer_was_lost_happens_once(
    store: StorePeer, peer: Peer, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandfleet.calls.ATTEMPT_SECONDS", 0.3)
    store.lose_answers[s.FORK.pattern] = 1
    async with await sandbox.fork(3, deadline=1) as fork:
        assert len(fork.children) == 3
        assert len(peer.sandboxes) == 4
    assert len(store.questions(m.SandboxFork)) == 2
    assert [i.sandbox_id for i in peer.sandboxes.values() if i.ended_at is None] == [sandbox.id]


async def test_children_that_could_not_be_are_told_one_by_one(
    store: StorePeer, sandbox: AsyncSandbox
) -> None:
    store.room = 2
    fork = await sandbox.fork(5)
    assert [o.status for o in fork.outcomes] == ["ready"] * 2 + ["refused"] * 3
    assert len(fork.children) == 2
    assert [type(problem) for problem in fork.failures] == [NoCapacity] * 3


async def test_a_fork_of_none_is_refused_here(store: StorePeer, sandbox: AsyncSandbox) -> None:
    with pytest.raises(BadRequest, match="children"):
        await sandbox.fork(0)
    assert store.asked == []


async def test_lists_go_over_all_pages(store: StorePeer, client: AsyncClient) -> None:
    sandbox = await client.create()
    made = [(await sandbox.snapshot()).id for _ in range(5)]
    found = [snapshot.id async for snapshot in client.snapshots.list()]
    assert found == sorted(made, reverse=True)
    ends = sorted(made, reverse=True)
    assert [b.after for b in store.questions(m.SnapshotList)] == [None, ends[1], ends[3]]


async def test_a_removal_that_may_have_been_done_is_not_asked_for_again(
    store: StorePeer, client: AsyncClient, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandfleet.calls.ATTEMPT_SECONDS", 0.5)
    snapshot = await sandbox.snapshot()
    store.lose_answers[s.SNAPSHOT_REMOVE.pattern] = 1
    with pytest.raises(TimedOut):
        await snapshot.remove()
    assert len(store.questions(m.SnapshotRemove)) == 1
    with pytest.raises(NotFound):
        await client.snapshots.get(snapshot.id)


@pytest.mark.parametrize("reference", ["debian", "debian:12.1", "a.b_c-d:1.2.3.4"])
async def test_names_and_versions_go_through_paths(
    store: StorePeer, client: AsyncClient, reference: str
) -> None:
    name, _, version = reference.partition(":")
    info = m.EnvironmentInfo(name=name, version=version or "1", layers=[LAYER])
    store.environments[reference] = info
    assert await client.environments.get(reference) == info
    await client.environments.remove(reference)
    assert store.environments == {}
    with pytest.raises(NotFound, match="no environment"):
        await client.environments.get(reference)


async def test_whatever_stands_in_a_path_is_a_name_or_refused(
    store: StorePeer, gateway_address: str
) -> None:
    async with httpx.AsyncClient(base_url=gateway_address) as http:
        for path in ("environments/..%2F..%2Fetc", "environments/", "layers/a%2Fb"):
            assert (await http.get(f"/v1/{path}")).status_code == 404, path
        assert (await http.get("/v1/environments/..%00")).status_code == 400
        assert (await http.get(f"/v1/environments/{'x' * 200}")).status_code == 400
        assert (await http.get("/v1/layers/a%20b")).status_code == 400
        assert (await http.get("/v1/snapshots/sn-x")).status_code == 400
        assert store.asked == []
        found = await http.get("/v1/layers/pip-3.11_numpy.1")
        assert (found.status_code, found.json()["layer"]) == (200, None)
        assert store.questions(m.LayerFind)[0].key == "pip-3.11_numpy.1"
        told = await http.get("/v1/environments/a:1?no=1")
        assert (told.status_code, "no such query" in told.json()["message"]) == (400, True)


async def test_snapshots_are_completed(store: StorePeer, peer: Peer, servers: Servers) -> None:
    cli = Cli.on(servers)
    info = peer.new_sandbox(m.SandboxSpec())
    made = (await cli("snapshot", "create", info.sandbox_id[-8:])).out.decode().strip()
    shell = {"_SANDFLEET_COMPLETE": "bash_complete", "COMP_CWORD": "3"}
    words = {"COMP_WORDS": "sandfleet snapshot rm sn-"}
    done = await Cli({**cli.environment, **shell, **words})("")
    assert done.out.decode().split() == [f"plain,{made}"]
