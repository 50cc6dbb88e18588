"""Records of jobs: the request, where it is, who holds each slot, what failed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sandfleet_common.messages import JobInfo, JobState, JobSubmit, SlotFailure

from .link import RedisLink, mapped
from .scripts import CLAIM_SLOTS

JOB_SECONDS = 86_400
FAILED_SLOT = "-"
"""Holder of a slot that has failed for good."""


@dataclass(frozen=True, slots=True)
class WaitingJob:
    """A job that is under way."""

    job_id: str
    submitted_at: float
    deadline_at: float
    left: int
    """Sandboxes that are neither ready nor have failed."""

    def text(self) -> str:
        """Return what stands on record, without the id."""
        return f"{self.submitted_at!r} {self.deadline_at!r} {self.left}"

    @classmethod
    def parse(cls, job_id: str, text: str) -> WaitingJob:
        """Read a record."""
        submitted_at, deadline_at, left = text.split()
        return cls(job_id, float(submitted_at), float(deadline_at), int(left))


class JobRecords(RedisLink):
    """The part of the store that is about jobs."""

    async def open_job(self, submit: JobSubmit, info: JobInfo) -> bool:
        """Put a new job on record; False when it is there already."""
        name = f"sf:job:{submit.job_id}"
        with mapped():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hsetnx(name, "submit", submit.model_dump_json())
            # After the submit, so that whoever finds one finds the other.
            pipe.hsetnx(name, "info", info.model_dump_json())
            pipe.expire(name, JOB_SECONDS)
            answers = await pipe.execute()
        return bool(answers[0])

    async def get_job(self, job_id: str) -> tuple[JobSubmit, JobInfo] | None:
        """Return a job's request and where it is."""
        with mapped():
            submit, info = cast(
                list[str | None],
                await cast(Any, self._redis.hmget(f"sf:job:{job_id}", ["submit", "info"])),
            )
        if submit is None or info is None:
            return None
        return JobSubmit.model_validate_json(submit), JobInfo.model_validate_json(info)

    async def cancel_job(self, job_id: str) -> None:
        """Ask whoever works on a job to end it."""
        with mapped():
            await self._redis.set(f"sf:job:{job_id}:cancelled", "1", ex=JOB_SECONDS)

    async def is_cancelled(self, job_id: str) -> bool:
        """Return whether somebody asked for a job's end."""
        with mapped():
            return bool(await self._redis.exists(f"sf:job:{job_id}:cancelled"))

    async def save_job(self, info: JobInfo, deadline_at: float | None = None) -> bool:
        """Write where a job is; False when its request is not on record (any more).

        With its deadline given, others learn what it still waits for.
        """
        name = f"sf:job:{info.job_id}"
        with mapped():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hset(name, "info", info.model_dump_json())
            pipe.hexists(name, "submit")
            left = info.count - info.ready - info.failed
            if info.state == JobState.PLACING and left and deadline_at is not None:
                waiting = WaitingJob(info.job_id, info.submitted_at, deadline_at, left)
                pipe.hset("sf:jobs:waiting", info.job_id, waiting.text())
            else:
                pipe.hdel("sf:jobs:waiting", info.job_id)
            answers = await pipe.execute()
        return bool(answers[1])

    async def waiting_jobs(self) -> list[WaitingJob]:
        """Return the jobs that still wait for sandboxes."""
        with mapped():
            found = await cast(Any, self._redis.hgetall("sf:jobs:waiting"))
        return [WaitingJob.parse(name, text) for name, text in cast(dict[str, str], found).items()]

    async def forget_waiting(self, job_ids: Sequence[str]) -> None:
        """Strike off jobs that nobody works on any more."""
        with mapped():
            await cast(Any, self._redis.hdel("sf:jobs:waiting", *job_ids))

    async def assign_slots(self, job_id: str, slots: Mapping[int, str]) -> None:
        """Record which sandbox each slot was given, before any node hears of it."""
        with mapped():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hset(f"sf:job:{job_id}:slots", mapping={str(k): v for k, v in slots.items()})
            pipe.expire(f"sf:job:{job_id}:slots", JOB_SECONDS)
            await pipe.execute()

    async def job_slots(self, job_id: str) -> dict[int, str]:
        """Return slot -> sandbox id."""
        with mapped():
            found = await cast(Any, self._redis.hgetall(f"sf:job:{job_id}:slots"))
        return {int(k): v for k, v in cast(dict[str, str], found).items()}

    async def some_slots(self, job_id: str, slots: Sequence[int]) -> list[str | None]:
        """Return who holds each of some slots: a sandbox id, FAILED_SLOT or None."""
        if not slots:
            return []
        with mapped():
            found = await cast(
                Any, self._redis.hmget(f"sf:job:{job_id}:slots", [str(n) for n in slots])
            )
        return cast(list[str | None], found)

    async def claim_slots(
        self, job_id: str, claims: Mapping[int, tuple[str | None, str]]
    ) -> dict[int, str]:
        """Give slots to new holders, each only if the holder expected still has it.

        `claims` is slot -> (holder expected, new holder). Returns who holds each slot
        now: when two schedulers work on one job, both go on with the same sandbox.
        """
        if not claims:
            return {}
        args: list[str | float | int] = [JOB_SECONDS]
        for slot, (expected, holder) in claims.items():
            args += [slot, expected or "", holder]
        answers = await self._run(CLAIM_SLOTS, [([f"sf:job:{job_id}:slots"], args)])
        return dict(zip(claims, cast(list[str], answers[0]), strict=True))

    async def fail_slots(self, job_id: str, failures: Sequence[SlotFailure]) -> None:
        """Record slots that ended without a sandbox."""
        if not failures:
            return
        with mapped():
            pipe = self._redis.pipeline(transaction=False)
            for failure in failures:
                pipe.hset(f"sf:job:{job_id}:failures", str(failure.slot), failure.model_dump_json())
            pipe.expire(f"sf:job:{job_id}:failures", JOB_SECONDS)
            await pipe.execute()

    async def job_failures(self, job_id: str) -> list[SlotFailure]:
        """Return a job's failed slots, in order."""
        with mapped():
            found = await cast(Any, self._redis.hvals(f"sf:job:{job_id}:failures"))
        parsed = [SlotFailure.model_validate_json(text) for text in cast(list[str], found)]
        return sorted(parsed, key=lambda failure: failure.slot)

    async def some_failures(self, job_id: str, slots: Sequence[int]) -> list[SlotFailure]:
        """Return the failures among some slots, in the order asked for."""
        if not slots:
            return []
        with mapped():
            found = await cast(
                Any, self._redis.hmget(f"sf:job:{job_id}:failures", [str(n) for n in slots])
            )
        texts = cast(list[str | None], found)
        return [SlotFailure.model_validate_json(text) for text in texts if text is not None]
