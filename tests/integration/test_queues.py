"""JetStream through the bus: one copy of each, none lost, whatever restarts."""

from __future__ import annotations

import asyncio

import pytest
from servers import Connect, Servers

from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus, Delivery
from sandfleet_common.errors import Unreachable
from sandfleet_common.messages import Alert, JobSubmit, Severity

pytestmark = pytest.mark.integration


class Worker:
    """Takes jobs and notes what it got."""

    def __init__(self) -> None:
        self.got: asyncio.Queue[tuple[str, int]] = asyncio.Queue()

    async def __call__(self, delivery: Delivery) -> None:
        self.got.put_nowait((JobSubmit.decode(delivery.payload).job_id, delivery.attempt))
        await delivery.done()


async def test_the_same_name_is_stored_once(connect: Connect) -> None:
    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.ensure_streams()
    job = JobSubmit(job_id="j1", count=1)
    assert await trainer.store(s.JOB_SUBMIT, job, once="j1")
    assert not await trainer.store(s.JOB_SUBMIT, job, once="j1")


async def test_without_its_stream_storing_is_unreachable(connect: Connect) -> None:
    trainer = await connect("trainer")
    with pytest.raises(Unreachable):
        await trainer.store(s.JOB_SUBMIT, JobSubmit(count=1), once="j1")


async def test_every_owner_makes_its_own_streams(connect: Connect) -> None:
    await (await connect("scheduler")).ensure_streams()
    monitor = await connect("monitor")
    await monitor.ensure_streams()
    await monitor.ensure_streams()
    alert = Alert(
        alert_id="a1",
        sandbox_id="sb-n1-01h00000000000000000000000",
        rule="r",
        severity=Severity.LOW,
        message="m",
        score=1,
        at=1,
    )
    assert await monitor.store(s.SECURITY_ALERT, alert, once="a1", sandbox=alert.sandbox_id)


async def test_a_job_is_delivered_until_it_is_done(connect: Connect) -> None:
    attempts: asyncio.Queue[int] = asyncio.Queue()

    async def fail_once(delivery: Delivery) -> None:
        attempts.put_nowait(delivery.attempt)
        if delivery.attempt == 1:
            await delivery.again(0.01)
            return
        await delivery.done()

    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.ensure_streams()
    await trainer.store(s.JOB_SUBMIT, JobSubmit(count=1), once="j1")
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(scheduler.take("SF_JOBS", "q", fail_once, at_once=4))
        assert [await attempts.get(), await attempts.get()] == [1, 2]
        taking.cancel()


async def test_a_handler_that_breaks_gets_the_job_again(connect: Connect) -> None:
    attempts: asyncio.Queue[int] = asyncio.Queue()

    async def break_once(delivery: Delivery) -> None:
        attempts.put_nowait(delivery.attempt)
        if delivery.attempt == 1:
            raise RuntimeError("broken")
        await delivery.done()

    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    await scheduler.ensure_streams()
    await trainer.store(s.JOB_SUBMIT, JobSubmit(count=1), once="j1")
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(scheduler.take("SF_JOBS", "q", break_once, at_once=4))
        assert [await attempts.get(), await attempts.get()] == [1, 2]
        taking.cancel()


async def test_a_job_nobody_keeps_goes_to_another(connect: Connect) -> None:
    first, second = await connect("scheduler"), await connect("scheduler")
    trainer = await connect("trainer")
    worker = Worker()
    held = asyncio.Event()

    async def hold(delivery: Delivery) -> None:
        held.set()
        await asyncio.Event().wait()

    await first.ensure_streams()
    await trainer.store(s.JOB_SUBMIT, JobSubmit(job_id="j1", count=1), once="j1")
    async with asyncio.TaskGroup() as group:
        holding = group.create_task(first.take("SF_JOBS", "q", hold, at_once=1, ack_seconds=0.5))
        await held.wait()
        working = group.create_task(second.take("SF_JOBS", "q", worker, at_once=1, ack_seconds=0.5))
        assert await worker.got.get() == ("j1", 2)
        holding.cancel()
        working.cancel()


async def test_a_job_that_is_kept_stays_with_its_worker(connect: Connect) -> None:
    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    attempts: asyncio.Queue[int] = asyncio.Queue()

    async def work(delivery: Delivery) -> None:
        for _ in range(8):
            await delivery.keep()
            await asyncio.sleep(0.2)
        attempts.put_nowait(delivery.attempt)
        await delivery.done()

    await scheduler.ensure_streams()
    await trainer.store(s.JOB_SUBMIT, JobSubmit(count=1), once="j1")
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(scheduler.take("SF_JOBS", "q", work, at_once=4, ack_seconds=1))
        assert await attempts.get() == 1
        taking.cancel()
    assert attempts.empty()


async def test_a_queue_goes_on_after_the_server_was_killed(
    servers: Servers, connect: Connect
) -> None:
    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    worker = Worker()
    await scheduler.ensure_streams()
    await trainer.store(s.JOB_SUBMIT, JobSubmit(job_id="j1", count=1), once="j1")
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(scheduler.take("SF_JOBS", "q", worker, at_once=4))
        assert await worker.got.get() == ("j1", 1)
        await asyncio.to_thread(servers.nats.kill)
        await asyncio.to_thread(servers.nats.start)
        await _store(trainer, JobSubmit(job_id="j2", count=1))
        assert await worker.got.get() == ("j2", 1)
        taking.cancel()


async def test_a_queue_is_made_anew_when_the_server_lost_its_disk(
    servers: Servers, connect: Connect
) -> None:
    scheduler, trainer = await connect("scheduler"), await connect("trainer")
    worker = Worker()
    await scheduler.ensure_streams()
    async with asyncio.TaskGroup() as group:
        taking = group.create_task(scheduler.take("SF_JOBS", "q", worker, at_once=4))
        await asyncio.to_thread(servers.nats.forget)
        await asyncio.to_thread(servers.nats.start)
        await _store(trainer, JobSubmit(job_id="j2", count=1))
        assert await worker.got.get() == ("j2", 1)
        taking.cancel()


async def _store(trainer: Bus, job: JobSubmit) -> None:
    """Submit as a client does: again under the same name until it is confirmed."""
    while True:
        try:
            await trainer.store(s.JOB_SUBMIT, job, once=job.job_id)
            return
        except Unreachable:
            await asyncio.sleep(0.1)
