"""A job: many sandboxes from one request, each used as soon as it is ready.

    async with client.job(SandboxSpec(), count=1000) as job:
        async for sandbox in job.ready():
            ...  # hand it to a worker
        print(job.failures)

A sandbox that could not be had is a result, not an exception.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from typing import Self

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest, NotFound, SandfleetError, TimedOut, Unavailable

from .acting import act
from .calls import CALL_SECONDS, call, submit
from .connection import Connection
from .sandbox import CLEANUP_SECONDS, AsyncSandbox
from .transport import Feed

QUIET_SECONDS = 2.0
"""A job that says nothing for so long is asked where it is."""
GRACE_SECONDS = 30.0
"""What may pass after a job's deadline until its last slot is settled."""
PAGE_SLOTS = 1000


class AsyncJob:
    """A job. Entering its block submits it; leaving the block ends it and its sandboxes."""

    def __init__(
        self,
        spec: m.SandboxSpec | None = None,
        count: int = 1,
        *,
        deadline_seconds: float = 120,
        labels: Mapping[str, str] | None = None,
        job_id: str | None = None,
        connection: Connection | None = None,
        keep: bool = False,
    ) -> None:
        given = {} if job_id is None else {"job_id": job_id}
        self._request = m.JobSubmit.of(
            spec=spec or m.SandboxSpec(),
            count=count,
            deadline_seconds=deadline_seconds,
            labels=dict(labels or {}),
            **given,
        )
        self._connection_or_none = connection
        self._keep = keep
        self._is_submitted = False
        self._settled: set[int] = set()
        self._waiting: list[AsyncSandbox] = []
        self._failures: dict[int, m.SlotFailure] = {}
        self._info: m.JobInfo | None = None
        self._feed: Feed[m.JobEvent] | None = None
        self._stack = AsyncExitStack()

    @property
    def id(self) -> str:
        """Its name; submitting it again under this name is submitting it once."""
        return self._request.job_id

    @property
    def count(self) -> int:
        """How many sandboxes it asks for."""
        return self._request.count

    @property
    def failures(self) -> list[m.SlotFailure]:
        """The slots that ended without a sandbox, so far, each with its reason."""
        return [self._failures[slot] for slot in sorted(self._failures)]

    @property
    def progress(self) -> m.JobInfo | None:
        """Where it is, as last heard; None before anything was."""
        return self._info

    async def submit(self) -> None:
        """Submit it; done by entering the block."""
        if self._is_submitted:
            return
        connection = self._connection
        events = connection.transport.job_events(self.id)
        self._feed = await self._stack.enter_async_context(events)
        await submit(connection.transport, self._request)
        self._is_submitted = True

    async def open(self) -> None:
        """Follow a job that was submitted before, here or elsewhere.

        Raises:
            NotFound: there is no such job.
        """
        self._info = await self.info()
        self._request = self._request.model_copy(update={"count": self._info.count})
        events = self._connection.transport.job_events(self.id)
        self._feed = await self._stack.enter_async_context(events)
        self._is_submitted = self._keep = True
        await self._catch_up()

    async def ready(self) -> AsyncIterator[AsyncSandbox]:
        """Yield its sandboxes in the order in which they become ready, until all are settled.

        Raises:
            TimedOut: the platform did not settle all of them long after the deadline.
        """
        await self.submit()
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._request.deadline_seconds + GRACE_SECONDS
        while True:
            while self._waiting:
                yield self._waiting.pop(0)
            if self._is_over():
                return
            if loop.time() >= ends:
                missing = self.count - len(self._settled)
                raise TimedOut(
                    f"{missing} of {self.count} sandboxes of {self.id} were not settled "
                    f"{GRACE_SECONDS:g} s after its deadline",
                    job_id=self.id,
                )
            await self._hear()

    async def wait(self) -> m.JobInfo:
        """Wait until every slot is ready or has failed, and return the totals."""
        held: list[AsyncSandbox] = [sandbox async for sandbox in self.ready()]
        self._waiting = held + self._waiting
        return await self.info()

    async def info(self) -> m.JobInfo:
        """Ask where it is."""
        body = m.JobGet.of(job_id=self.id)
        self._info = await call(self._connection.transport, s.JOB_GET, body)
        return self._info

    async def cancel(self) -> m.JobInfo:
        """Stop placing it, and end its sandboxes."""
        body = m.JobCancel.of(job_id=self.id)
        self._info = await call(self._connection.transport, s.JOB_CANCEL, body)
        return self._info

    async def pause(self) -> m.SandboxesActed:
        """Pause all its sandboxes that live; say how many did and which did not."""
        return await act(self._connection.transport, "pause", job_id=self.id)

    async def resume(self) -> m.SandboxesActed:
        """Let all its paused sandboxes go on."""
        return await act(self._connection.transport, "resume", job_id=self.id)

    async def __aenter__(self) -> Self:
        try:
            await self.submit()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            if not self._keep:
                async with asyncio.timeout(CALL_SECONDS if kind is None else CLEANUP_SECONDS):
                    await self.cancel()
        except TimeoutError:
            if kind is None:
                raise TimedOut(f"{self.id} was not ended in time; its sandboxes' TTL is") from None
        except SandfleetError as problem:
            if kind is None and isinstance(problem, Unavailable):
                raise
        finally:
            await self._stack.aclose()

    # ---------------------------------------------------------------- internal

    @property
    def _connection(self) -> Connection:
        if self._connection_or_none is None:
            raise BadRequest("this job belongs to no client: make it with client.job(...)")
        return self._connection_or_none

    def _is_over(self) -> bool:
        if len(self._settled) >= self.count:
            return True
        return self._info is not None and self._info.state is m.JobState.CANCELLED

    def _missed_some(self) -> bool:
        return self._info is not None and self._info.ready + self._info.failed > len(self._settled)

    async def _hear(self) -> None:
        """Take in the next event; look into the record when some may have been missed."""
        assert self._feed is not None, "submitted or opened"
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                event = await self._feed.next()
        except TimeoutError:
            event = None
        if event is not None:
            self._take(event.job, event.ready, event.failed)
            if not self._missed_some():
                return
        try:
            await self.info()
            if self._missed_some():
                await self._catch_up()
        except (NotFound, Unavailable):
            return  # not on record yet, or no scheduler at the moment: hear again

    async def _catch_up(self) -> None:
        slot: int | None = 0
        while slot is not None:
            body = m.JobSlots(job_id=self.id, from_slot=slot, limit=PAGE_SLOTS)
            page = await call(self._connection.transport, s.JOB_SLOTS, body)
            self._take(page.job, page.sandboxes, page.failures)
            slot = page.next_slot

    def _take(
        self, info: m.JobInfo, ready: list[m.SandboxInfo], failed: list[m.SlotFailure]
    ) -> None:
        self._info = info
        for sandbox in ready:
            if sandbox.slot is not None and sandbox.slot not in self._settled:
                self._settled.add(sandbox.slot)
                self._waiting.append(AsyncSandbox(self._connection, sandbox))
        for failure in failed:
            if failure.slot not in self._settled:
                self._settled.add(failure.slot)
                self._failures[failure.slot] = failure
