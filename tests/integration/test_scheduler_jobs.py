"""Jobs through real scheduler processes: every slot once, whatever dies meanwhile."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest
from processes import Fleet, until

from sandfleet_common import subjects as s
from sandfleet_common.errors import NotFound, Unreachable
from sandfleet_common.ids import new_job_id
from sandfleet_common.messages import (
    JobCancel,
    JobEvent,
    JobGet,
    JobInfo,
    JobSlots,
    JobState,
    JobSubmit,
    SandboxInfo,
    SandboxList,
    SandboxSpec,
    SlotFailure,
)
from sandfleet_common.states import State

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


class Watch:
    """What a client hears of one job."""

    def __init__(self, job: JobSubmit) -> None:
        self.job = job
        self.ready: dict[int, SandboxInfo] = {}
        self.failed: dict[int, SlotFailure] = {}
        self.events: list[JobEvent] = []
        self.last: JobInfo | None = None

    async def hear(self, event: JobEvent) -> None:
        self.events.append(event)
        self.last = event.job
        self.ready |= {info.slot: info for info in event.ready if info.slot is not None}
        self.failed |= {failure.slot: failure for failure in event.failed}


@asynccontextmanager
async def submitted(fleet: Fleet, job: JobSubmit) -> AsyncGenerator[Watch]:
    """Listen to a job and submit it."""
    watch = Watch(job)
    subscription = await fleet.trainer.listen(s.JOB_EVENTS, watch.hear, job=job.job_id)
    await fleet.trainer.flush()
    await submit(fleet, job)
    yield watch
    await subscription.close()


async def submit(fleet: Fleet, job: JobSubmit) -> None:
    async def stored() -> bool:
        try:
            await fleet.trainer.store(s.JOB_SUBMIT, job, once=job.job_id)
        except Unreachable:
            return False
        return True

    await until(stored)


async def ended(fleet: Fleet, job: JobSubmit, within: float = 60) -> JobInfo:
    """Wait for a job's end, as a client does that may have missed events."""

    async def over() -> JobInfo | None:
        known = await fleet.store.get_job(job.job_id)
        return known[1] if known is not None and known[1].state != JobState.PLACING else None

    return await until(over, within)


async def all_slots(fleet: Fleet, job: JobSubmit, limit: int = 5000) -> dict[int, SandboxInfo]:
    found: dict[int, SandboxInfo] = {}
    start: int | None = 0
    while start is not None:
        request = JobSlots(job_id=job.job_id, from_slot=start, limit=limit)
        page = await fleet.trainer.ask(s.JOB_SLOTS, request, within=10)
        found |= {info.slot: info for info in page.sandboxes if info.slot is not None}
        start = page.next_slot
    return found


def assert_each_slot_once(fleet: Fleet, job: JobSubmit) -> None:
    """No slot is lost, none has two sandboxes, no id was created twice."""
    live = [info for node in fleet.nodes for info in node.live if info.job_id == job.job_id]
    assert Counter(info.slot for info in live) == Counter(range(job.count))
    for node in fleet.nodes:
        assert not node.creations or max(node.creations.values()) == 1


async def quick_fleet(fleet: Fleet, schedulers: int = 1, nodes: int = 3) -> Fleet:
    for _ in range(schedulers):
        await fleet.scheduler(job_ack_seconds="1.5")
    for number in range(nodes):
        await fleet.node(f"n{number}")
    return fleet


async def test_a_job_gets_all_its_sandboxes(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    job = JobSubmit(count=500, spec=SandboxSpec(labels={"a": "b"}))
    async with submitted(fleet, job) as watch:
        info = await ended(fleet, job)
        assert (info.ready, info.failed, info.state) == (500, 0, JobState.DONE)
        assert_each_slot_once(fleet, job)

        async def told() -> bool:
            return watch.last is not None and watch.last.state == JobState.DONE

        await until(told)
        assert sorted(watch.ready) == list(range(500))
    slots = await all_slots(fleet, job, limit=77)
    assert slots == watch.ready
    assert min(len(node.sandboxes) for node in fleet.nodes) > 50
    assert max(len(r.items) for node in fleet.nodes for r in node.requests) <= 64


async def test_no_event_counts_more_than_was_told(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    fleet.nodes[0].fail = lambda item: "odd"
    fleet.nodes[1].start_seconds = 0.02
    job = JobSubmit(count=1500)
    async with submitted(fleet, job) as watch:

        async def over() -> bool:
            return watch.last is not None and watch.last.state == JobState.DONE

        await until(over, 30)
        told = 0
        for event in watch.events:
            told += len(event.ready) + len(event.failed)
            assert event.job.ready + event.job.failed <= told
            assert max(len(event.ready), len(event.failed)) <= 256
            assert event.job.state == JobState.PLACING or told == job.count
        last = watch.events[-1].job
        assert (len(watch.ready), len(watch.failed)) == (last.ready, last.failed)


async def test_a_job_with_a_long_specification_is_told_and_listed_in_parts(
    make_fleet: Fleet,
) -> None:
    fleet = await quick_fleet(make_fleet, nodes=1)
    spec = SandboxSpec(env={"PROMPT": "x" * 100_000})
    job = JobSubmit(count=90, spec=spec, deadline_seconds=40)
    async with submitted(fleet, job) as watch:
        assert (await ended(fleet, job)).ready == 90

        async def told() -> bool:
            return len(watch.ready) == 90

        await until(told)
    assert len(await all_slots(fleet, job)) == 90
    found: list[str] = []
    after: str | None = None
    while True:
        request = SandboxList(job_id=job.job_id, after=after)
        page = await fleet.trainer.ask(s.SANDBOX_LIST, request, within=10)
        found += [info.sandbox_id for info in page.sandboxes]
        after = page.next
        if after is None:
            break
    assert len(found) == len(set(found)) == 90


async def test_submitting_a_job_twice_is_submitting_it_once(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    job = JobSubmit(count=10)
    await submit(fleet, job)
    await submit(fleet, job)
    await ended(fleet, job)
    # Past the queue's memory for duplicates, the record of the job says that it is over.
    await fleet.trainer.store(s.JOB_SUBMIT, job, once=new_job_id())
    other = JobSubmit(count=1)
    await submit(fleet, other)
    await ended(fleet, other)
    assert_each_slot_once(fleet, job)


async def test_refused_slots_go_elsewhere(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    fleet.nodes[0].refuse = lambda item: "not today"
    fleet.nodes[1].capacity = 40
    job = JobSubmit(count=200)
    await submit(fleet, job)
    info = await ended(fleet, job)
    assert (info.ready, info.failed) == (200, 0)
    assert fleet.nodes[0].sandboxes == {}
    assert len(fleet.nodes[1].sandboxes) <= 40
    assert_each_slot_once(fleet, job)


async def test_slots_without_room_fail_at_the_deadline_and_say_why(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet, nodes=1)
    fleet.nodes[0].capacity = 30
    job = JobSubmit(count=50, deadline_seconds=2)
    await submit(fleet, job)
    info = await ended(fleet, job)
    assert (info.ready, info.failed) == (30, 20)
    assert {failure.code for failure in info.failures} == {"no_capacity"}
    assert "no room for more sandboxes" in info.failures[0].message or "full" in (
        info.failures[0].message
    )
    page = await fleet.trainer.ask(s.JOB_SLOTS, JobSlots(job_id=job.job_id), within=5)
    assert len(page.failures) == 20


async def test_an_unknown_environment_fails_every_slot_at_once(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet, nodes=2)
    job = JobSubmit(count=300, spec=SandboxSpec(environment="fedora"), deadline_seconds=60)
    async with submitted(fleet, job) as watch:
        info = await ended(fleet, job, within=30)
        assert (info.ready, info.failed, len(info.failures)) == (0, 300, 100)
        assert info.failures[0].code == "not_found"
        assert "debian" in info.failures[0].message

        async def told() -> bool:
            return len(watch.failed) == 300

        await until(told)


async def test_slots_that_cannot_start_fail_with_their_reasons(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    for node in fleet.nodes:
        node.fail = lambda item: "odd" if (item.slot or 0) % 2 else None
    job = JobSubmit(count=20)
    await submit(fleet, job)
    info = await ended(fleet, job)
    assert (info.ready, info.failed) == (10, 10)
    assert [failure.slot for failure in info.failures] == list(range(1, 20, 2))
    assert {(f.code, f.message) for f in info.failures} == {("sandbox_failed", "odd")}


async def test_a_nodes_limit_of_starting_sandboxes_is_kept(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet, nodes=1)
    node = fleet.nodes[0]
    node.starting_limit, node.start_seconds = 16, 0.02
    await node.beat()
    most = 0

    def count(item: object) -> str | None:
        nonlocal most
        most = max(most, len(node._starting))  # pyright: ignore[reportPrivateUsage]
        return None

    node.fail = count
    job = JobSubmit(count=200)
    await submit(fleet, job)
    assert (await ended(fleet, job)).ready == 200
    assert 8 < most <= 16


async def test_an_unknown_job_is_not_found(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet, nodes=0)
    with pytest.raises(NotFound, match="nope"):
        await fleet.trainer.ask(s.JOB_GET, JobGet(job_id="nope"), within=5)
    with pytest.raises(NotFound, match="nope"):
        await fleet.trainer.ask(s.JOB_SLOTS, JobSlots(job_id="nope"), within=5)
    with pytest.raises(NotFound, match="nope"):
        await fleet.trainer.ask(s.JOB_CANCEL, JobCancel(job_id="nope"), within=5)


async def test_a_cancelled_job_ends_with_all_its_sandboxes(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet, schedulers=2)
    for node in fleet.nodes:
        node.capacity = 40
    job = JobSubmit(count=500, deadline_seconds=80)
    await submit(fleet, job)

    async def full() -> bool:
        return sum(len(node.live) for node in fleet.nodes) >= 100

    await until(full)
    info = await fleet.trainer.ask(s.JOB_CANCEL, JobCancel(job_id=job.job_id), within=40)
    assert info.state == JobState.CANCELLED

    async def empty() -> bool:
        return not any(node.live for node in fleet.nodes)

    await until(empty)


async def test_a_job_that_is_over_loses_its_sandboxes_when_cancelled(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    job = JobSubmit(count=30)
    await submit(fleet, job)
    await ended(fleet, job)
    info = await fleet.trainer.ask(s.JOB_CANCEL, JobCancel(job_id=job.job_id), within=40)
    assert info.state == JobState.CANCELLED
    assert not any(node.live for node in fleet.nodes)


async def placing(fleet: Fleet, job: JobSubmit) -> None:
    """Wait until part of a job is ready."""

    async def begun() -> bool:
        return sum(len(node.live) for node in fleet.nodes) > job.count // 5

    await until(begun)


async def slow_down(fleet: Fleet) -> None:
    """Let a job take some seconds, and come to a halt; the schedulers have heard of it."""
    for node in fleet.nodes:
        node.starting_limit, node.start_seconds, node.capacity = 10, 0.3, 60
        await node.beat()
        await node.bus.flush()
    await asyncio.sleep(0.1)


def let_go(fleet: Fleet) -> None:
    """Have room for the rest of the job."""
    for node in fleet.nodes:
        node.capacity = 1000


async def test_a_killed_schedulers_job_is_finished_by_another(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    await slow_down(fleet)
    job = JobSubmit(count=300)
    async with submitted(fleet, job) as watch:
        await placing(fleet, job)
        await fleet.schedulers[0].kill()
        before = sum(len(node.live) for node in fleet.nodes)
        assert before < job.count
        second = await fleet.scheduler(job_ack_seconds="1.5")
        let_go(fleet)
        info = await ended(fleet, job)
        assert (info.ready, info.failed) == (300, 0)
        assert_each_slot_once(fleet, job)

        async def told() -> bool:
            return len(watch.ready) == 300

        await until(told)
    assert any('"job.restored"' in line for line in second.lines)
    assert await all_slots(fleet, job) == watch.ready


async def test_a_scheduler_that_is_stopped_hands_its_job_over_at_once(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    await slow_down(fleet)
    job = JobSubmit(count=300)
    await submit(fleet, job)
    await placing(fleet, job)
    second = await fleet.scheduler(job_ack_seconds="60")
    assert await fleet.schedulers[0].stop() == 0
    let_go(fleet)
    info = await ended(fleet, job)
    assert (info.ready, info.failed) == (300, 0)
    assert_each_slot_once(fleet, job)
    assert any('"job.restored"' in line for line in second.lines)


async def test_two_schedulers_on_one_job_create_every_slot_once(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    await slow_down(fleet)
    job = JobSubmit(count=300)
    await submit(fleet, job)
    await placing(fleet, job)
    # The first is frozen for longer than its delivery lasts, then goes on as if nothing were.
    frozen = fleet.schedulers[0].process
    frozen.send_signal(19)
    second = await fleet.scheduler(job_ack_seconds="1.5")

    async def taken() -> bool:
        return any('"job.restored"' in line for line in second.lines)

    await until(taken)
    frozen.send_signal(18)
    let_go(fleet)
    info = await ended(fleet, job)
    assert (info.ready, info.failed) == (300, 0)
    assert_each_slot_once(fleet, job)


async def test_a_job_goes_on_when_nats_is_killed_in_the_middle(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet, schedulers=2)
    await slow_down(fleet)
    job = JobSubmit(count=300)
    await submit(fleet, job)
    await placing(fleet, job)
    await asyncio.to_thread(fleet.servers.nats.kill)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(fleet.servers.nats.start)
    let_go(fleet)
    info = await ended(fleet, job)
    assert (info.ready, info.failed) == (300, 0)
    assert_each_slot_once(fleet, job)
    assert len(await all_slots(fleet, job)) == 300


async def test_a_job_goes_on_when_redis_loses_its_memory_in_the_middle(make_fleet: Fleet) -> None:
    fleet = await quick_fleet(make_fleet)
    await slow_down(fleet)
    job = JobSubmit(count=300)
    await submit(fleet, job)
    await placing(fleet, job)
    await asyncio.to_thread(fleet.servers.redis.kill)
    await asyncio.sleep(0.5)
    await asyncio.to_thread(fleet.servers.redis.start)
    let_go(fleet)
    info = await ended(fleet, job)
    assert (info.ready, info.failed) == (300, 0)
    assert_each_slot_once(fleet, job)

    async def complete() -> bool:
        return len(await all_slots(fleet, job)) == 300

    await until(complete)


async def test_a_job_whose_scheduler_and_record_are_both_lost_is_found_again(
    make_fleet: Fleet,
) -> None:
    fleet = await quick_fleet(make_fleet)
    for node in fleet.nodes:
        node.capacity = 40
    job = JobSubmit(count=200, deadline_seconds=80)
    await submit(fleet, job)

    async def full() -> bool:
        return sum(len(node.live) for node in fleet.nodes) == 120

    await until(full)
    await fleet.schedulers[0].kill()
    fleet.servers.redis.restart()
    for node in fleet.nodes:
        node.capacity = 1000
    await fleet.scheduler(job_ack_seconds="1.5")
    info = await ended(fleet, job)
    assert (info.ready, info.failed) == (200, 0)
    assert_each_slot_once(fleet, job)


async def test_a_lost_nodes_slots_are_filled_elsewhere(make_fleet: Fleet) -> None:
    fleet = make_fleet
    await fleet.scheduler(node_silent_seconds="0.6", node_lost_seconds="1.5")
    lost, alive = await fleet.node("n0"), await fleet.node("n1")
    lost.gate.clear()
    job = JobSubmit(count=60, deadline_seconds=60)
    await submit(fleet, job)
    await lost.asked.wait()
    await lost.close()
    fleet.expire_beat("n0")
    info = await ended(fleet, job)
    assert (info.ready, info.failed) == (60, 0)
    assert Counter(i.slot for i in alive.live) == Counter(range(60))
    # What it had made it must end when it is back: the record says that it failed.
    records = await fleet.store.get_many(list(lost.sandboxes))
    assert {record.state for record in records if record is not None} == {State.FAILED}
    assert await lost.store.save(lost.live) == [False] * len(lost.live)
