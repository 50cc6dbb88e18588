"""Jobs and their events through the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest
from running_gateway import (
    ScriptedScheduler,
    failure,
    running_gateway,
    until,
)
from servers import Connect, Servers

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Delivery
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger

pytestmark = pytest.mark.integration


async def test_a_job_is_queued_once(
    http: httpx.AsyncClient, connect: Connect, log: Logger, scheduler: ScriptedScheduler
) -> None:
    admin = await connect("admin")
    await admin.ensure_streams()
    headers = {"Idempotency-Key": "job-mine"}
    first = await http.post("/v1/jobs", json={"count": 3}, headers=headers)
    again = await http.post("/v1/jobs", json={"count": 3, "job_id": "job-mine"})
    assert (first.status_code, first.json()) == (202, {"job_id": "job-mine", "is_new": True})
    assert (again.status_code, again.json()) == (202, {"job_id": "job-mine", "is_new": False})
    queued: asyncio.Queue[m.JobSubmit] = asyncio.Queue()

    async def work(delivery: Delivery) -> None:
        await queued.put(m.JobSubmit.decode(delivery.payload))
        await delivery.done()

    async with Tasks(log) as tasks:
        tasks.start(admin.take("SF_JOBS", "test", work, at_once=2), "take")
        job = await queued.get()
        assert (job.job_id, job.count) == ("job-mine", 3)
        assert queued.empty()


def _job(state: m.JobState, ready: int = 0) -> m.JobInfo:
    return m.JobInfo(job_id="job-1", state=state, count=4, ready=ready, failed=1, submitted_at=1.0)


async def _events(response: httpx.Response) -> AsyncIterator[m.JobEvent]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield m.JobEvent.decode(line.removeprefix("data: ").encode())


async def test_job_events_begin_with_what_is_on_record_and_tell_a_slot_once(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    slots = [scheduler.record("n1", job_id="job-1", slot=k) for k in range(4)]
    failed = m.SlotFailure(slot=3, code="no_capacity", message="full")
    scheduler.jobs["job-1"] = _job(m.JobState.PLACING)
    scheduler.slots["job-1"] = {0: slots[0], 3: failed}
    told: list[int | None] = []
    async with http.stream("GET", "/v1/jobs/job-1/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = _events(response)
        first = await anext(events)
        told += [info.slot for info in first.ready] + [f.slot for f in first.failed]
        # One live event tells a slot of the record again, another one is lost.
        live = m.JobEvent(job=_job(m.JobState.PLACING), ready=[slots[0], slots[1]])
        await scheduler.bus.publish(s.JOB_EVENTS, live, job="job-1")
        scheduler.slots["job-1"] |= {1: slots[1], 2: slots[2]}
        scheduler.jobs["job-1"] = _job(m.JobState.DONE, ready=3)
        done = m.JobEvent(job=_job(m.JobState.DONE, ready=3))
        await scheduler.bus.publish(s.JOB_EVENTS, done, job="job-1")
        async for event in events:
            told += [info.slot for info in event.ready] + [f.slot for f in event.failed]
    assert sorted(slot for slot in told if slot is not None) == [0, 1, 2, 3]


async def test_a_stream_of_events_ends_with_its_client_and_with_the_gateway(
    servers: Servers, tmp_path: Path, log: Logger, scheduler: ScriptedScheduler
) -> None:
    scheduler.jobs["job-1"] = _job(m.JobState.PLACING)
    scheduler.slots["job-1"] = {}
    async with running_gateway(servers, tmp_path, log) as gateway, gateway.client() as http:

        async def streams_are(count: int) -> bool:
            return await gateway.metric("event_streams") == count

        async with http.stream("GET", "/v1/jobs/job-1/events") as response:
            await anext(_events(response))
            assert await streams_are(1)
        await until(lambda: streams_are(0))
        async with http.stream("GET", "/v1/jobs/job-1/events") as response:
            events = _events(response)
            await anext(events)
            async with asyncio.TaskGroup() as group:
                group.create_task(gateway.gateway.drain())
                assert [event async for event in events] == []


async def test_events_lost_with_the_bus_are_read_from_the_record(
    servers: Servers, http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    scheduler.jobs["job-1"] = _job(m.JobState.PLACING)
    scheduler.slots["job-1"] = {}
    async with http.stream("GET", "/v1/jobs/job-1/events") as response:
        events = _events(response)
        await anext(events)
        servers.nats.stop()
        scheduler.slots["job-1"] = {0: scheduler.record("n1", job_id="job-1", slot=0)}
        scheduler.jobs["job-1"] = _job(m.JobState.DONE, ready=1)
        servers.nats.start()
        told = [info.slot async for event in events for info in event.ready]
    assert told == [0]


async def test_a_job_that_ends_between_two_pages_of_its_record_is_told_whole(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    slots = [scheduler.record("n1", job_id="job-1", slot=k) for k in range(4)]
    scheduler.jobs["job-1"] = _job(m.JobState.PLACING)
    scheduler.slots["job-1"] = {k: slots[k] for k in (1, 2, 3)}

    def end(page: m.JobSlots) -> None:
        if page.from_slot > 0:  # slot 0 is ready when its page has been read
            scheduler.slots["job-1"][0] = slots[0]
            scheduler.jobs["job-1"] = _job(m.JobState.DONE, ready=4)

    scheduler.before_page = end
    async with http.stream("GET", "/v1/jobs/job-1/events") as response:
        told = [info.slot async for event in _events(response) for info in event.ready]
    assert sorted(k for k in told if k is not None) == [0, 1, 2, 3]


async def test_events_of_an_unknown_job_are_not_found(http: httpx.AsyncClient) -> None:
    failure(await http.get("/v1/jobs/job-2/events"), 404, "not_found")
