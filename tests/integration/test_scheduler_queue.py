"""Waiting for room, through real scheduler processes: in which order, how long, to what end."""

from __future__ import annotations

import asyncio

import pytest
from processes import Fleet, until

from sandfleet_common import subjects as s
from sandfleet_common.errors import Busy, NoCapacity, TimedOut
from sandfleet_common.messages import (
    JobEvent,
    JobGet,
    JobInfo,
    JobState,
    JobSubmit,
    SandboxCreate,
    SandboxInfo,
)
from sandfleet_common.states import State

pytestmark = [pytest.mark.integration, pytest.mark.timeout(90)]


async def create(fleet: Fleet, *, key: str | None = None, deadline: float = 20) -> SandboxInfo:
    request = SandboxCreate(key=key, deadline_seconds=deadline)
    return await fleet.trainer.ask(s.SANDBOX_CREATE, request, within=deadline + 15)


async def submit(fleet: Fleet, job: JobSubmit) -> None:
    await fleet.trainer.store(s.JOB_SUBMIT, job, once=job.job_id)


async def info(fleet: Fleet, job: JobSubmit) -> JobInfo:
    return await fleet.trainer.ask(s.JOB_GET, JobGet(job_id=job.job_id), within=5)


async def on_record(fleet: Fleet, job: JobSubmit) -> JobInfo | None:
    known = await fleet.store.get_job(job.job_id)
    return None if known is None else known[1]


async def ready(fleet: Fleet, job: JobSubmit, count: int) -> None:
    async def enough() -> bool:
        known = await on_record(fleet, job)
        return known is not None and known.ready >= count

    await until(enough)


async def test_a_job_knows_what_is_ahead_of_it_at_any_scheduler(make_fleet: Fleet) -> None:
    fleet = make_fleet
    for _ in range(2):
        await fleet.scheduler(jobs_at_once="1")
    node = await fleet.node("n1")
    node.capacity = 10
    await node.beat()
    first, second = JobSubmit(count=40), JobSubmit(count=5)
    events: list[JobEvent] = []

    async def hear(event: JobEvent) -> None:
        events.append(event)

    await fleet.trainer.listen(s.JOB_EVENTS, hear, job=second.job_id)
    await submit(fleet, first)
    await ready(fleet, first, 10)
    await submit(fleet, second)

    async def behind() -> JobInfo | None:
        known = await on_record(fleet, second)
        return known if known is not None and known.ahead == 30 else None

    known = await until(behind)
    assert known.expected_wait_seconds is None, "nothing ends, so nothing is known"
    assert (await info(fleet, second)).ahead == 30
    assert (await info(fleet, first)).ahead == 0
    node.capacity = 100
    for job in (first, second):
        await ready(fleet, job, job.count)
    over = await info(fleet, second)
    assert (over.state, over.ahead, over.expected_wait_seconds) == (JobState.DONE, None, None)
    assert any(event.job.ahead == 30 for event in events)
    assert await fleet.store.waiting_jobs() == []


async def test_a_job_with_room_knows_how_long_it_takes(make_fleet: Fleet) -> None:
    fleet = make_fleet
    await fleet.scheduler()
    node = await fleet.node("n1")
    node.starting_limit, node.start_seconds, node.starts_per_second = 2, 0.5, 4.0
    await node.beat()
    job = JobSubmit(count=40, deadline_seconds=60)
    await submit(fleet, job)

    async def known() -> JobInfo | None:
        found = await on_record(fleet, job)
        return found if found is not None and found.expected_wait_seconds else None

    found = await until(known)
    assert found.expected_wait_seconds is not None
    # The rate is what the node says, or more when the job's own is measured to be.
    assert 0 < found.expected_wait_seconds <= 10
    node.starting_limit, node.start_seconds = 512, 0
    await ready(fleet, job, 40)


async def test_room_goes_first_to_the_job_that_came_first(make_fleet: Fleet) -> None:
    fleet = make_fleet
    await fleet.scheduler()
    node = await fleet.node("n1")
    node.capacity = 0
    await node.beat()
    jobs = [JobSubmit(count=10, deadline_seconds=60) for _ in range(3)]
    for number, job in enumerate(jobs):
        await submit(fleet, job)

        async def waits(job: JobSubmit = job, number: int = number) -> bool:
            known = await on_record(fleet, job)
            return known is not None and known.ahead == 10 * number

        await until(waits)
    node.capacity = 10
    await node.beat()
    await ready(fleet, jobs[0], 10)
    assert [len([i for i in node.live if i.job_id == job.job_id]) for job in jobs] == [10, 0, 0]


async def test_too_many_waiting_creations_are_turned_away_with_a_time(make_fleet: Fleet) -> None:
    fleet = make_fleet
    await fleet.scheduler(creates_waiting="3")
    node = await fleet.node("n1")
    node.capacity, node.starts_per_second = 0, 2.0
    await node.beat()
    async with asyncio.TaskGroup() as group:
        waiting = [group.create_task(create(fleet)) for _ in range(3)]
        await asyncio.sleep(0.3)
        with pytest.raises(Busy, match="3 creations wait") as caught:
            await create(fleet)
        assert caught.value.fields["retry_after_seconds"] == 2.0
        node.capacity = 10
    assert len({task.result().sandbox_id for task in waiting}) == 3
    assert (await create(fleet)).state == State.RUNNING, "the line is free again"


async def test_a_busy_node_is_left_alone_and_another_taken(make_fleet: Fleet) -> None:
    fleet = make_fleet
    await fleet.scheduler()
    busy, free = await fleet.node("n1"), await fleet.node("n2")
    busy.busy_seconds = 60
    assert {(await create(fleet)).node for _ in range(6)} == {"n2"}
    job = JobSubmit(count=100)
    await submit(fleet, job)
    await ready(fleet, job, 100)
    assert len(free.live) == 106 and not busy.live


async def test_a_slot_outlasts_a_busy_node(make_fleet: Fleet) -> None:
    fleet = make_fleet
    await fleet.scheduler()
    node = await fleet.node("n1")
    node.busy_seconds = 0.2
    job = JobSubmit(count=8, deadline_seconds=30)
    await submit(fleet, job)
    single = asyncio.ensure_future(create(fleet))
    await asyncio.sleep(1)
    known = await info(fleet, job)
    assert (known.failed, single.done()) == (0, False)
    node.busy_seconds = None
    await ready(fleet, job, 8)
    assert (await single).node == "n1"


async def test_a_busy_node_is_named_when_the_deadline_comes(make_fleet: Fleet) -> None:
    fleet = make_fleet
    await fleet.scheduler()
    node = await fleet.node("n1")
    node.busy_seconds = 0.1
    with pytest.raises(NoCapacity, match="1 is busy starting others"):
        await create(fleet, deadline=0.6)

    # It is on record by id only: what no node took is in no index.
    asked = {item.sandbox_id for request in node.requests for item in request.items}

    async def recorded() -> bool:
        found = [i for i in await fleet.store.get_many(sorted(asked)) if i is not None]
        return any(i.state == State.REJECTED and "busy" in (i.reason or "") for i in found)

    await until(recorded)
    job = JobSubmit(count=3, deadline_seconds=1)
    await submit(fleet, job)

    async def over() -> JobInfo | None:
        known = await on_record(fleet, job)
        return known if known is not None and known.state == JobState.DONE else None

    known = await until(over)
    assert (known.ready, known.failed) == (0, 3)
    assert {f.code for f in known.failures} == {"no_capacity"}
    assert "busy starting others" in known.failures[0].message


async def test_a_node_that_is_silent_past_the_deadline_leaves_a_failed_record(
    make_fleet: Fleet,
) -> None:
    fleet = make_fleet
    await fleet.scheduler()
    node = await fleet.node("n1")
    node.gate.clear()
    with pytest.raises(TimedOut, match="did not answer by the deadline"):
        await create(fleet, deadline=0.5)
    asked = [item.sandbox_id for request in node.requests for item in request.items]
    record = await fleet.store.get(asked[0])
    assert record is not None and record.state in (State.FAILED, State.STOPPED)
    assert record.ended_at is not None and record.reason
    assert not node.live
    node.gate.set()


async def test_a_key_gives_one_sandbox_when_its_scheduler_is_killed(make_fleet: Fleet) -> None:
    fleet = make_fleet
    for _ in range(2):
        await fleet.scheduler()
    nodes = [await fleet.node(name) for name in ("n1", "n2")]
    for node in nodes:
        node.gate.clear()
    first = asyncio.ensure_future(create(fleet, key="k", deadline=40))

    async def asked() -> bool:
        return any(node.requests for node in nodes)

    await until(asked)
    # Whichever scheduler has it: one is killed, then started anew, then the other.
    for number in range(2):
        await fleet.schedulers[number].kill()
        await fleet.scheduler()
    for node in nodes:
        node.gate.set()
    infos = await asyncio.gather(*(create(fleet, key="k", deadline=40) for _ in range(6)))
    assert len({info.sandbox_id for info in infos}) == 1
    live = [info for node in nodes for info in node.live]
    assert [info.sandbox_id for info in live] == [infos[0].sandbox_id]
    first.cancel()
