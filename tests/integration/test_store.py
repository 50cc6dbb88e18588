"""Live state against a real redis-server, with the access list of production."""

from __future__ import annotations

import asyncio
import time

import pytest
from servers import Servers

from sandfleet_common.errors import Unreachable
from sandfleet_common.ids import new_ulid
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    JobInfo,
    JobState,
    JobSubmit,
    NodeBeat,
    NodeCapacity,
    NodeState,
    SandboxInfo,
    SandboxList,
    SandboxSpec,
    SlotFailure,
)
from sandfleet_common.states import Origin, State
from sandfleet_common.store import FAILED_SLOT, Store, StoreSettings

pytestmark = pytest.mark.integration


def sandbox(
    number: int = 0, state: State = State.RUNNING, version: int = 1, **values: object
) -> SandboxInfo:
    node = str(values.pop("node", "n1"))
    return SandboxInfo.of(
        sandbox_id=f"sb-{node}-{new_ulid(1_000_000 + number)[:10]}{number:016d}",
        node=node,
        state=state,
        version=version,
        spec=values.pop("spec", SandboxSpec()),
        created_at=1000.0 + number,
        **values,
    )


def moved(info: SandboxInfo, state: State, **values: object) -> SandboxInfo:
    return info.model_copy(update={"state": state, "version": info.version + 1, **values})


def beat(node: str = "n1", boot: str = "b1") -> NodeBeat:
    full = NodeCapacity(sandboxes=1, cpu=1, memory_bytes=1, disk_bytes=1)
    return NodeBeat(
        node=node,
        boot=boot,
        sequence=1,
        at=time.time(),
        state=NodeState.READY,
        runtimes=["native"],
        environments=["debian"],
        capacity=full,
        requested=full,
        starting=0,
        starting_limit=1,
        memory_available_bytes=1,
        load_per_core=0,
        disk_free_bytes=1,
    )


async def test_a_saved_record_is_read_back(store: Store) -> None:
    info = sandbox(spec=SandboxSpec(labels={"a": "b"}), job_id="j", slot=3)
    assert await store.save([info]) == [True]
    assert await store.get(info.sandbox_id) == info
    assert await store.live_on("n1") == {info.sandbox_id}


async def test_an_unknown_sandbox_is_none(store: Store) -> None:
    assert await store.get(sandbox().sandbox_id) is None
    assert await store.get_many([sandbox().sandbox_id]) == [None]


async def test_the_same_record_again_is_no_conflict(store: Store) -> None:
    info = sandbox()
    assert await store.save([info, info]) == [True, True]
    assert await store.save([info]) == [True]


async def test_another_record_of_the_same_version_is_refused(store: Store) -> None:
    info = sandbox()
    await store.save([info])
    other = info.model_copy(update={"reason": "something else"})
    assert await store.save([other]) == [False]
    assert await store.get(info.sandbox_id) == info


async def test_a_late_write_changes_nothing(store: Store) -> None:
    early = sandbox(state=State.PREPARING)
    late = moved(early, State.RUNNING)
    assert await store.save([late]) == [True]
    assert await store.save([early]) == [False]
    assert await store.get(early.sandbox_id) == late


@pytest.mark.parametrize("end", [State.STOPPED, State.FAILED, State.REJECTED])
@pytest.mark.parametrize("after", list(State))
async def test_nothing_follows_an_end(store: Store, end: State, after: State) -> None:
    ended = sandbox(state=end, ended_at=5.0)
    await store.save([ended])
    assert await store.save([moved(ended, after, reason="too late")]) == [False]
    assert await store.get(ended.sandbox_id) == ended


async def test_a_state_that_cannot_follow_is_refused(store: Store) -> None:
    running = sandbox(state=State.RUNNING)
    await store.save([running])
    assert await store.save([moved(running, State.PREPARING)]) == [False]
    assert await store.save([moved(running, State.REJECTED)]) == [False]
    assert await store.save([moved(running, State.PAUSED)]) == [True]


async def test_states_between_may_be_skipped(store: Store) -> None:
    placing = sandbox(state=State.PLACING, version=0)
    stopped = placing.model_copy(update={"state": State.STOPPED, "version": 4, "ended_at": 9.0})
    assert await store.save([placing, stopped]) == [True, True]


async def test_of_two_writers_at_once_one_wins(store: Store, servers: Servers, log: Logger) -> None:
    info = sandbox()
    await store.save([info])
    async with Store.connect(servers.redis.settings("node"), log) as other:
        answers = await asyncio.gather(
            store.save([moved(info, State.FAILED, ended_at=1.0, reason="lost")]),
            other.save([moved(info, State.STOPPED, ended_at=2.0, reason="stopped")]),
        )
    assert sorted(answers) == [[False], [True]]


async def test_a_sandbox_being_placed_is_known_but_not_listed(store: Store) -> None:
    placing = sandbox(state=State.PLACING, version=0)
    await store.save([placing])
    assert await store.get(placing.sandbox_id) == placing
    assert (await store.list(SandboxList())).sandboxes == []
    running = moved(placing, State.RUNNING)
    await store.save([running])
    assert (await store.list(SandboxList())).sandboxes == [running]


async def test_an_ended_sandbox_leaves_the_live_ones(store: Store) -> None:
    info = sandbox()
    ended = moved(info, State.STOPPED, ended_at=5.0)
    await store.save([info])
    await store.save([ended])
    assert (await store.list(SandboxList())).sandboxes == []
    assert await store.live_on("n1") == set()
    assert (await store.list(SandboxList(ended=True))).sandboxes == [ended]
    assert (await store.list(SandboxList(state=State.STOPPED))).sandboxes == [ended]


async def test_pages_hold_everything_once_newest_first(store: Store) -> None:
    infos = [sandbox(n) for n in range(2500)]
    await store.save(infos)
    seen: list[str] = []
    after = None
    while True:
        page = await store.list(SandboxList(limit=700, after=after))
        seen += [info.sandbox_id for info in page.sandboxes]
        if (after := page.next) is None:
            break
    assert seen == [info.sandbox_id for info in reversed(infos)]


async def test_the_last_full_page_has_no_next(store: Store) -> None:
    await store.save([sandbox(n) for n in range(4)])
    page = await store.list(SandboxList(limit=4))
    assert (len(page.sandboxes), page.next) == (4, None)


async def test_paging_goes_on_behind_a_sandbox_that_has_ended(store: Store) -> None:
    infos = [sandbox(n) for n in range(6)]
    await store.save(infos)
    first = await store.list(SandboxList(limit=3))
    assert first.next == infos[3].sandbox_id
    await store.save([moved(infos[3], State.STOPPED, ended_at=5.0), sandbox(7)])
    rest = await store.list(SandboxList(limit=10, after=first.next))
    assert [i.sandbox_id for i in rest.sandboxes] == [i.sandbox_id for i in reversed(infos[:3])]


async def test_paging_within_one_millisecond(store: Store) -> None:
    infos = [
        SandboxInfo(
            sandbox_id=f"sb-n{n % 3}-{new_ulid(5_000)}",
            node=f"n{n % 3}",
            state=State.RUNNING,
            version=1,
            spec=SandboxSpec(),
            created_at=5.0,
        )
        for n in range(1200)
    ]
    await store.save(infos)
    seen: list[str] = []
    after = None
    while True:
        page = await store.list(SandboxList(limit=500, after=after))
        seen += [info.sandbox_id for info in page.sandboxes]
        if (after := page.next) is None:
            break
    assert sorted(seen) == sorted(info.sandbox_id for info in infos)


async def test_a_list_is_narrowed_by_node_job_state_and_labels(store: Store) -> None:
    mine = sandbox(1, node="n2", job_id="j1", slot=0, spec=SandboxSpec(labels={"team": "a"}))
    paused = sandbox(2, node="n2", state=State.PAUSED)
    await store.save([mine, paused, sandbox(3)])
    await store.claim_slots("j1", {0: (None, mine.sandbox_id), 1: (None, FAILED_SLOT)})
    for query, expected in (
        (SandboxList(node="n2"), [paused, mine]),
        (SandboxList(job_id="j1"), [mine]),
        (SandboxList(state=State.PAUSED), [paused]),
        (SandboxList(labels={"team": "a"}), [mine]),
        (SandboxList(labels={"team": "b"}), []),
        (SandboxList(node="n2", limit=1, after=paused.sandbox_id), [mine]),
    ):
        assert (await store.list(query)).sandboxes == expected, query


async def test_forgotten_ends_leave_the_list(store: Store) -> None:
    old, new = sandbox(1), sandbox(2)
    await store.save([moved(old, State.STOPPED, ended_at=5.0)])
    await store.save([moved(new, State.STOPPED, ended_at=50.0)])
    assert await store.forget_ended(10.0) == 1
    page = await store.list(SandboxList(ended=True))
    assert [info.sandbox_id for info in page.sandboxes] == [new.sandbox_id]


async def test_a_key_belongs_to_the_first_that_claims_it(store: Store) -> None:
    assert await store.claim_key("k", "a") == "a"
    assert await store.claim_key("k", "b") == "a"
    await store.move_key("k", "c")
    assert await store.claim_key("k", "b") == "c"


async def test_a_job_is_opened_once(store: Store) -> None:
    submit = JobSubmit(job_id="j1", count=2)
    info = JobInfo(job_id="j1", state=JobState.PLACING, count=2, ready=0, failed=0, submitted_at=1)
    assert await store.open_job(submit, info)
    assert not await store.open_job(submit, info)
    done = info.model_copy(update={"state": JobState.DONE, "ready": 2})
    await store.save_job(done)
    assert await store.get_job("j1") == (submit, done)
    assert await store.get_job("j2") is None


async def test_a_slot_goes_to_one_of_two_schedulers(store: Store) -> None:
    assert await store.claim_slots("j", {0: (None, "a"), 1: (None, "b")}) == {0: "a", 1: "b"}
    assert await store.claim_slots("j", {0: (None, "x")}) == {0: "a"}
    assert await store.claim_slots("j", {0: ("a", "c"), 1: ("a", "c")}) == {0: "c", 1: "b"}
    assert await store.job_slots("j") == {0: "c", 1: "b"}
    assert await store.some_slots("j", [1, 2]) == ["b", None]


async def test_a_slot_redis_has_forgotten_is_free(store: Store) -> None:
    assert await store.claim_slots("j", {0: ("a", "b")}) == {0: "b"}


async def test_failures_come_in_the_order_of_slots(store: Store) -> None:
    failures = [SlotFailure(slot=n, code="no_capacity", message="full") for n in (10, 2, 33)]
    await store.fail_slots("j", failures)
    assert [failure.slot for failure in await store.job_failures("j")] == [2, 10, 33]


async def test_a_beat_says_whether_the_inventory_is_there(store: Store, servers: Servers) -> None:
    assert not await store.beat(beat())
    await store.mark_intact("n1", "b1")
    assert await store.beat(beat())
    assert not await store.beat(beat(boot="b2"))
    assert [known.node for known in await store.nodes()] == ["n1"]
    await asyncio.to_thread(servers.redis.restart)
    assert not await store.beat(beat())


async def test_a_lost_node_is_forgotten_until_it_beats(store: Store) -> None:
    await store.beat(beat())
    await store.forget_node("n1")
    assert await store.node_names() == set()
    await store.beat(beat())
    assert await store.node_names() == {"n1"}


async def test_scripts_are_there_again_after_a_restart(store: Store, servers: Servers) -> None:
    info = sandbox()
    await store.save([info])
    await asyncio.to_thread(servers.redis.restart)
    assert await store.get(info.sandbox_id) is None
    assert await store.save([info, sandbox(2)]) == [True, True]
    assert await store.get(info.sandbox_id) == info


async def test_a_store_that_is_down_is_unreachable_and_comes_back(
    store: Store, servers: Servers
) -> None:
    await asyncio.to_thread(servers.redis.kill)
    with pytest.raises(Unreachable, match="Redis"):
        await store.save([sandbox()])
    with pytest.raises(Unreachable):
        await store.ping()
    await asyncio.to_thread(servers.redis.start)
    await store.ping()


async def test_connecting_to_nothing_is_unreachable(log: Logger) -> None:
    with pytest.raises(Unreachable):
        async with Store.connect(StoreSettings("redis://127.0.0.1:9/0"), log):
            raise AssertionError


async def test_more_callers_than_connections_wait_their_turn(store: Store) -> None:
    infos = [sandbox(n) for n in range(500)]
    answers = await asyncio.gather(*(store.save([info]) for info in infos))
    assert answers == [[True]] * 500


async def test_a_record_lost_with_its_node_is_kept_longer(store: Store) -> None:
    lost = sandbox(1, state=State.FAILED, origin=Origin.NODE_LOST, ended_at=1.0)
    ended = sandbox(2, state=State.STOPPED, ended_at=1.0)
    await store.save([lost, ended])
    client = store._redis  # pyright: ignore[reportPrivateUsage]
    times = [await client.ttl(f"sf:sandbox:{i.sandbox_id}") for i in (lost, ended)]
    assert times[0] > 3600 >= times[1] > 0
