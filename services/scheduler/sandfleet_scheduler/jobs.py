"""The queue of jobs, and what clients ask about them."""

from __future__ import annotations

import asyncio
import time

from sandfleet_common.bus import Delivery
from sandfleet_common.errors import BadRequest, NotFound, Unreachable
from sandfleet_common.messages import (
    JobCancel,
    JobGet,
    JobInfo,
    JobSlots,
    JobSlotsPage,
    JobState,
    JobSubmit,
)
from sandfleet_common.store import FAILED_SLOT
from sandfleet_common.subjects import JOB_CONSUMER

from .fitting import fitting
from .jobnews import chunks
from .jobrun import JobRun, Means

STREAM = "SF_JOBS"
CANCEL_SECONDS = 30.0
"""How long a cancel waits for the job's end before it answers with where the job is."""


class Jobs:
    """The jobs this scheduler works on."""

    def __init__(self, means: Means) -> None:
        self._means = means
        self._running: dict[str, JobRun] = {}
        self._is_leaving = False
        self._idle = asyncio.Event()
        self._idle.set()
        means.fleet.on_lost.append(self._on_node_lost)

    def __len__(self) -> int:
        return len(self._running)

    async def take(self) -> None:
        """Take jobs from the queue until cancelled."""
        settings = self._means.settings
        await self._means.bus.take(
            STREAM,
            JOB_CONSUMER,
            self._work,
            at_once=settings.jobs_at_once,
            ack_seconds=settings.job_ack_seconds,
        )

    async def hand_over(self) -> None:
        """Stop all work here, at a point from which another scheduler goes on."""
        self._is_leaving = True
        for run in list(self._running.values()):
            run.hand_over()
        await self._idle.wait()

    def rewrite(self) -> None:
        """Have every running job written again: Redis has lost its memory."""
        for run in self._running.values():
            run.news.must_rewrite = True

    async def get(self, request: JobGet) -> JobInfo:
        """Return where a job is.

        Raises:
            NotFound: no such job is on record (yet: one just submitted may not be taken).
        """
        if (run := self._running.get(request.job_id)) is not None:
            return run.news.info()
        return (await self._known(request.job_id))[1]

    async def slots(self, request: JobSlots) -> JobSlotsPage:
        """Return a job's ready sandboxes and failures, a page of slots at a time."""
        store, job_id = self._means.store, request.job_id
        submit, info = await self._known(job_id)
        start = max(0, request.from_slot)
        limit = fitting(submit.spec, request.limit)
        numbers = list(range(start, min(submit.count, start + limit)))
        holders = await store.some_slots(job_id, numbers)
        ids = [holder for holder in holders if holder is not None and holder != FAILED_SLOT]
        records = await store.get_many(ids)
        end = start + len(numbers)
        return JobSlotsPage(
            job=info,
            sandboxes=[r for r in records if r is not None and r.ready_at is not None],
            failures=await store.some_failures(job_id, numbers),
            next_slot=end if numbers and end < submit.count else None,
        )

    async def cancel(self, request: JobCancel) -> JobInfo:
        """End a job and its sandboxes; one that is over already loses its sandboxes only.

        Raises:
            NotFound: no such job is on record.
        """
        store, job_id = self._means.store, request.job_id
        _, info = await self._known(job_id)
        await store.cancel_job(job_id)
        if (run := self._running.get(job_id)) is not None:
            run.cancel()
        until = time.monotonic() + CANCEL_SECONDS
        while info.state == JobState.PLACING and time.monotonic() < until:
            await asyncio.sleep(0.05)
            _, info = await self._known(job_id)
        if info.state == JobState.DONE:
            await self._end_sandboxes(job_id)
            info = info.model_copy(update={"state": JobState.CANCELLED})
            await store.save_job(info)
        return info

    # ---------------------------------------------------------------- internal

    async def _work(self, delivery: Delivery) -> None:
        if self._is_leaving:
            await delivery.again(0.05)
            return
        try:
            submit = JobSubmit.decode(delivery.payload)
        except BadRequest as problem:
            # Nobody can do anything with it, and it would come for ever.
            self._means.log.warning("job.unreadable", error=str(problem))
            await delivery.done()
            return
        job_id, metrics = submit.job_id, self._means.metrics
        if (known := self._running.get(job_id)) is not None:
            known.delivery = delivery
            return
        run = self._running[job_id] = JobRun(submit, delivery, self._means)
        self._idle.clear()
        metrics.jobs_running.set(len(self._running))
        try:
            await run.run()
        finally:
            del self._running[job_id]
            if not self._running:
                self._idle.set()
            metrics.jobs_running.set(len(self._running))
        if run.news.state != JobState.PLACING:
            metrics.jobs.labels(run.news.state).inc()
            metrics.job_duration.observe(time.time() - run.news.submitted_at)
            info = run.news.info()
            self._means.log.info(
                "job.ended", job=job_id, state=info.state, ready=info.ready, failed=info.failed
            )

    async def _known(self, job_id: str) -> tuple[JobSubmit, JobInfo]:
        known = await self._means.store.get_job(job_id)
        if known is None:
            raise NotFound(f"there is no job {job_id[:80]!r} on record", job=job_id[:80])
        return known

    async def _end_sandboxes(self, job_id: str) -> None:
        holders = await self._means.store.job_slots(job_id)
        live = [holder for holder in holders.values() if holder != FAILED_SLOT]
        for part in chunks(live, 1000):
            records = await self._means.store.get_many(part)
            await self._means.actions.stop(
                [info.sandbox_id for info in records if info and not info.ended_at],
                "its job was cancelled",
            )

    def _on_node_lost(self, node: str) -> None:
        for run in self._running.values():
            run.node_lost(node)


async def watch_memory(jobs: Jobs, means: Means) -> None:
    """Notice that Redis has lost its memory, and have running jobs written again."""
    mark = f"scheduler:{means.settings.name}"
    is_first = True
    while True:
        try:
            is_there = await means.store.leave_mark(mark)
        except Unreachable:
            await asyncio.sleep(0.2)
            continue
        if not is_there and not is_first:
            means.log.warning("store.lost_memory", jobs=len(jobs))
            jobs.rewrite()
        is_first = False
        await asyncio.sleep(0.5)
