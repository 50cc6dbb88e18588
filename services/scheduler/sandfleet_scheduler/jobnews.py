"""A job's progress: told to whoever listens, and on record for whoever missed it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TypeVar

from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus
from sandfleet_common.errors import Unreachable
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    JobEvent,
    JobInfo,
    JobState,
    JobSubmit,
    SandboxInfo,
    SlotFailure,
)
from sandfleet_common.store import FAILED_SLOT, Store

from .fitting import fitting
from .slots import Slots

RETRY_SECONDS = 0.2
EVENT_ITEMS = 256
FAILURES_SHOWN = 100
_PART = 2000

ItemT = TypeVar("ItemT")
ResultT = TypeVar("ResultT")


def chunks(items: Sequence[ItemT], size: int) -> Iterator[Sequence[ItemT]]:
    """Return consecutive parts of at most `size`."""
    for start in range(0, len(items), size):
        yield items[start : start + size]


async def until_done(call: Callable[[], Awaitable[ResultT]]) -> ResultT:
    """Call again and again while a server is down; what is called may be called twice."""
    while True:
        try:
            return await call()
        except Unreachable:
            await asyncio.sleep(RETRY_SECONDS)


class JobNews:
    """Tells and records where one job is."""

    def __init__(
        self,
        submit: JobSubmit,
        submitted_at: float,
        slots: Slots,
        bus: Bus,
        store: Store,
        log: Logger,
    ) -> None:
        self.submit = submit
        self.submitted_at = submitted_at
        self.state = JobState.PLACING
        self.done_at: float | None = None
        self.ahead = 0
        """Sandboxes that jobs submitted earlier still wait for."""
        self._expected_seconds: float | None = None
        self.must_rewrite = False
        """Redis has lost its memory: everything is to be written again."""
        self._slots = slots
        self._bus = bus
        self._store = store
        self._log = log
        self._event_items = fitting(submit.spec, EVENT_ITEMS)
        self._unrecorded: list[SlotFailure] = []
        self._untold_ready: list[SandboxInfo] = []
        self._untold_failed: list[SlotFailure] = []
        self._is_dirty = True
        """The totals, or the state, are not as they were told and recorded last."""

    def info(self) -> JobInfo:
        """Return where the job is."""
        is_placing, is_waiting = self.state == JobState.PLACING, self._slots.waiting > 0
        return JobInfo(
            job_id=self.submit.job_id,
            state=self.state,
            count=self.submit.count,
            ready=self._slots.ready,
            failed=self._slots.failed,
            submitted_at=self.submitted_at,
            done_at=self.done_at,
            failures=self._slots.first_failures(FAILURES_SHOWN),
            ahead=self.ahead if is_placing and is_waiting else None,
            expected_wait_seconds=self._expected_seconds if is_placing else None,
        )

    def expect(self, ahead: int, seconds: float | None) -> None:
        """Take in what is ahead of the job, and how long it may take from now."""
        rounded = None if seconds is None else float(f"{seconds:.2g}")
        if (self.ahead, self._expected_seconds) != (ahead, rounded):
            self.ahead, self._expected_seconds, self._is_dirty = ahead, rounded, True

    def end(self, state: JobState) -> None:
        """Take in that the job is over."""
        self.state, self.done_at, self._is_dirty = state, time.time(), True

    async def flush(self) -> None:
        """Record and tell what is new.

        Raises:
            Unreachable: a server is down; what is new stays new.
        """
        if self.must_rewrite:
            await self.rewrite()
        ready, failed = self._slots.take_news()
        self._untold_ready += ready
        self._untold_failed += failed
        self._unrecorded += [f for f in failed if f.slot in self._slots.failures]
        if not (self._is_dirty or self._untold_ready or self._untold_failed):
            return
        # Totals as of this news: a client told of more than it hears believes it missed some.
        info = self.info()
        # On record first: who hears the event may ask for what it says.
        while not await self._record(info):
            await self.rewrite()
        await self._tell(info)
        self._is_dirty = False

    async def rewrite(self) -> None:
        """Write all there is to know of the job, for a Redis that has forgotten it."""
        self.must_rewrite = False
        try:
            await self._store.open_job(self.submit, self.info())
            held = {slot: h for slot, h in enumerate(self._slots.holders) if h is not None}
            for part in chunks(list(held.items()), _PART):
                claims = {slot: (None, holder) for slot, holder in part}
                await self._store.claim_slots(self.submit.job_id, claims)
            self._unrecorded = list(self._slots.failures.values())
            self._is_dirty = True
        except Unreachable:
            self.must_rewrite = True
            raise
        self._log.info("job.rewritten", job=self.submit.job_id, slots=len(held))

    async def _record(self, info: JobInfo) -> bool:
        """Write what is new; False when what was written before is gone."""
        job_id = self.submit.job_id
        for part in chunks(self._unrecorded, _PART):
            await self._store.fail_slots(job_id, part)
            claims = {f.slot: (self._slots.holders[f.slot], FAILED_SLOT) for f in part}
            await self._store.claim_slots(job_id, claims)
        self._unrecorded = []
        deadline_at = self.submitted_at + self.submit.deadline_seconds
        return await self._store.save_job(info, deadline_at)

    async def _tell(self, info: JobInfo) -> None:
        while True:
            ready = self._untold_ready[: self._event_items]
            failed = self._untold_failed[: self._event_items]
            event = JobEvent(job=self._as_told(info), ready=ready, failed=failed)
            await self._bus.publish(s.JOB_EVENTS, event, job=info.job_id)
            del self._untold_ready[: len(ready)], self._untold_failed[: len(failed)]
            if not (self._untold_ready or self._untold_failed):
                return

    def _as_told(self, info: JobInfo) -> JobInfo:
        """Return where the job is without what only the events after this one tell."""
        later = self._untold_failed[self._event_items :]
        ready = max(0, len(self._untold_ready) - self._event_items)
        failed = sum(failure.slot in self._slots.failures for failure in later)
        if not ready and not failed:
            return info
        update = {
            "ready": info.ready - ready,
            "failed": info.failed - failed,
            "state": JobState.PLACING,
            "done_at": None,
        }
        return info.model_copy(update=update)
