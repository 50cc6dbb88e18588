"""Snapshots of this node's sandboxes: each a job that happens once, however often it is asked for.

The same id is the same snapshot: while it is under way everybody waits for one task, later
the record answers, also when the sandbox has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sandfleet_common.errors import Conflict, SandfleetError, Unreachable
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxSnapshot, SnapshotInfo, SnapshotState
from sandfleet_common.states import State
from sandfleet_node.disk import Stage
from sandfleet_node.metrics import NodeMetrics
from sandfleet_node.sandbox import Sandbox
from sandfleet_node.sandboxes import Sandboxes, gone

from .jobs import Job, job_of
from .making import Making
from .records import Forked, SnapshotRecords
from .storing import Storing

_RETRY_SECONDS, _RETRY_SECONDS_MAX = 2.0, 60.0
_RECORD_TRIES = 30
"""How often a record that says how a snapshot ended is tried to be written, in a row."""
_STAGED_SECONDS = 60.0


class Snapshots:
    """Serves SNAPSHOT, and makes what forks and moves need."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        making: Making,
        storing: Storing,
        records: SnapshotRecords,
        on_trash: Callable[[], None],
        tasks: Tasks,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._sandboxes = sandboxes
        self._making = making
        self._storing = storing
        self._records = records
        self._on_trash = on_trash
        self._tasks = tasks
        self._metrics = metrics
        self._log = log
        self._jobs: dict[str, Job] = {}

    def __len__(self) -> int:
        return len(self._jobs)

    async def recover(self) -> None:
        """Deal with what an earlier service left, trying until the store answers."""
        delay = _RETRY_SECONDS
        while True:
            try:
                await self._records.fail_unfinished(self._jobs.__contains__)
                self._on_trash()
                return
            except (SandfleetError, OSError) as problem:
                self._log.warning("snapshots.unfinished", error=str(problem))
                await asyncio.sleep(delay)
                delay = min(2 * delay, _RETRY_SECONDS_MAX)

    def needed(self) -> set[str]:
        """Return the digests of layers that snapshots under way lie on."""
        return {digest for job in self._jobs.values() for digest in job.below}

    async def snapshot(self, body: SandboxSnapshot) -> SnapshotInfo:
        """Pack what a sandbox has written, and wait for it as long as the caller likes.

        It is returned as soon as the sandbox may change or end, not before.

        Raises:
            SandboxGone: the sandbox has ended, and no such snapshot was made of it.
            Conflict: the sandbox is starting, or the id is that of another sandbox's snapshot.
        """
        return await self.take(body, wait_seconds=body.wait_seconds)

    async def take(
        self, body: SandboxSnapshot, *, wait_seconds: float | None = None, is_local: bool = False
    ) -> SnapshotInfo:
        """Make a snapshot, or find it.

        Args:
            body: what is asked for.
            wait_seconds: how long its end is waited for; None: as long as it takes.
            is_local: for children on this node: it is not brought into the store.

        Raises:
            SandfleetError: as `snapshot`.
        """
        job = self._jobs.get(body.snapshot_id)
        if job is None:
            known = await self._records.find(body.snapshot_id)
            job = self._jobs.get(body.snapshot_id)
            if job is None and known is not None:
                return _same(known, body)
        if job is None:
            job = self._begin(body, is_local=is_local)
        _same(job.info, body)
        assert job.task is not None
        staged = self._tasks.start(job.staged.wait(), "staged")
        try:
            await asyncio.wait(
                {staged, job.task}, timeout=_STAGED_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
        finally:
            staged.cancel()
        if not job.task.done() and wait_seconds != 0:
            await asyncio.wait({job.task}, timeout=wait_seconds)
        return job.info

    def _begin(self, body: SandboxSnapshot, *, is_local: bool) -> Job:
        sandbox = self._sandboxes.get(body.sandbox_id)
        if sandbox.ending is not None:
            raise gone(sandbox.info())
        if sandbox.state not in (State.RUNNING, State.PAUSED):
            raise Conflict(f"the sandbox is {sandbox.state}: it must run or be paused")
        job = self._jobs[body.snapshot_id] = job_of(sandbox, body, is_local=is_local)
        job.task = self._tasks.start(self._run(job, sandbox), f"snapshot {body.snapshot_id}")
        return job

    # ------------------------------------------------------------------- job

    async def _run(self, job: Job, sandbox: Sandbox) -> None:
        began = time.monotonic()
        try:
            await self._make(job, sandbox)
            if not job.is_local:
                job.update(state=SnapshotState.READY, ended_at=time.time())
        except (SandfleetError, OSError) as problem:
            is_late = not job.staged.is_set() and sandbox.ending is not None
            job.fail(gone(sandbox.info()) if is_late else problem, time.time())
        # When cancelled, or not on record, the next service finds it unfinished.
        is_known = job.is_local or await self._record(job)
        if is_known:
            self._records.end(job.info.snapshot_id)
            self._on_trash()
        elif job.info.state is SnapshotState.READY:
            job.fail(Unreachable("the store does not take its record"), time.time())
        self._jobs.pop(job.info.snapshot_id, None)
        if not is_known:
            self._records.leave(job.info)
            self._tasks.start(self.recover(), "unfinished snapshots")
        self._metrics.snapshots.labels(job.info.state).inc()
        self._log.info(
            "snapshot.ended", snapshot=job.info.snapshot_id, sandbox=job.info.sandbox_id,
            state=job.info.state, frozen_ms=job.info.frozen_ms, packed_ms=job.info.packed_ms,
            stored_ms=job.info.stored_ms, seconds=round(time.monotonic() - began, 3),
            error=job.info.failure.message if job.info.failure else None,
        )  # fmt: skip

    async def _make(self, job: Job, sandbox: Sandbox) -> None:
        self._records.begin(job.info, is_local=job.is_local)
        stage = await self._making.stage(job, sandbox)
        job.staged.set()
        if job.is_local:
            await self._hold(job, sandbox, stage)
            return
        try:
            await self._know_line(job)
            await self._records.save_if_up(job.info)
            folder = await self._making.pack(job, stage)
        finally:
            await self._making.drop(stage)
        await self._records.save_if_up(job.info.model_copy(update={"state": SnapshotState.STORING}))
        stack = await self._storing.keep(job, folder)
        job.update(layer=stack[0], layers=[layer.digest for layer in stack])
        if job.asked.key is not None:
            await self._records.save_key(job.asked.key, stack[0].digest)

    async def _hold(self, job: Job, sandbox: Sandbox, stage: Stage) -> None:
        try:
            layer = await self._making.hold(job, stage)
        except BaseException:
            await self._making.drop(stage)
            raise
        job.update(
            layer=layer,
            layers=[layer.digest, *job.below],
            state=SnapshotState.READY,
            ended_at=time.time(),
        )
        forked = Forked(info=job.info, spec=sandbox.spec, job_id=sandbox.job_id)
        try:
            self._records.add_fork(forked)
        except OSError:
            await self._making.forget(forked)
            raise

    async def _know_line(self, job: Job) -> None:
        """Find out what the first of its line was created from, and its nearest kept parent."""
        parent = job.info.parent
        while parent is not None and (forked := self._records.fork(parent)) is not None:
            job.update(parent=forked.info.parent, environment=forked.info.environment)
            parent = forked.info.parent
        if parent is None or job.info.environment:
            return
        try:
            above = await self._records.find(parent)
        except (SandfleetError, OSError):
            return  # told where it is known; nothing depends on it
        if above is not None:
            job.update(environment=above.environment)

    async def _record(self, job: Job) -> bool:
        """Write how a snapshot ended; return whether that is on record."""
        for _ in range(_RECORD_TRIES):
            try:
                if await self._records.save_last(job.info):
                    return True
            except (SandfleetError, OSError):
                pass  # it has gone again
            await asyncio.sleep(_RETRY_SECONDS)
        return False


def _same(info: SnapshotInfo, body: SandboxSnapshot) -> SnapshotInfo:
    if info.sandbox_id != body.sandbox_id:
        raise Conflict(f"{info.snapshot_id} is a snapshot of {info.sandbox_id}")
    return info


__all__ = ["Snapshots"]
