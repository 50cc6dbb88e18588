"""What other jobs were asked for earlier and still wait for, at all schedulers together."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sandfleet_common.errors import Unreachable
from sandfleet_common.store import Store, WaitingJob

LOOK_SECONDS = 0.5
FORGET_SECONDS = 120.0
"""A job so long past its deadline is over, whatever its record says: nobody works on it."""


class Ahead:
    """The jobs under way anywhere, as on record a moment ago."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._jobs: list[WaitingJob] = []

    def of(self, job_id: str, submitted_at: float) -> int:
        """Return how many sandboxes jobs submitted before this one still wait for."""
        place = (submitted_at, job_id)
        return sum(j.left for j in self._jobs if (j.submitted_at, j.job_id) < place)

    async def watch(self, is_needed: Callable[[], bool]) -> None:
        """Look again and again until cancelled, while somebody wants to know."""
        while True:
            if is_needed():
                try:
                    await self._look()
                except Unreachable:
                    self._jobs = []
            await asyncio.sleep(LOOK_SECONDS)

    async def _look(self) -> None:
        jobs, before = await self._store.waiting_jobs(), time.time() - FORGET_SECONDS
        self._jobs = [job for job in jobs if job.deadline_at >= before]
        if len(self._jobs) < len(jobs):
            await self._store.forget_waiting(
                [job.job_id for job in jobs if job.deadline_at < before]
            )
