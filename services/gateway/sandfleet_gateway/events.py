"""A job's progress as server-sent events.

What happened before the stream was opened, and what it may have missed since, is
read from the record; a slot is told once. The stream ends when the job has.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as HttpRoute

from sandfleet.transport import Feed
from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import NotFound, SandfleetError
from sandfleet_common.ids import check_token

from .answers import failure_body
from .asking import Upstream
from .bodies import build_from_query, parse_query
from .draining import Draining
from .edge import visit_of
from .metrics import GatewayMetrics

EVENTS_PATH = "/v1/jobs/{job_id}/events"
GRACE_SECONDS = 2.0
"""A job just submitted may still be on its way to the record."""
LOOK_SECONDS = 0.1
COMMENT = b": nothing new\n\n"


class EventsQuery(m.Message):
    """There are no query parameters."""


class Told:
    """Which slots of a job were told."""

    def __init__(self) -> None:
        self._slots: set[int] = set()

    def new_in(self, event: m.JobEvent) -> m.JobEvent:
        """Return the event without what was told before, and remember the rest."""
        ready = [info for info in event.ready if self._is_new(info.slot)]
        failed = [failure for failure in event.failed if self._is_new(failure.slot)]
        return m.JobEvent(job=event.job, ready=ready, failed=failed)

    def _is_new(self, slot: int | None) -> bool:
        if slot is None or slot in self._slots:
            return slot is None
        self._slots.add(slot)
        return True


def event_bytes(event: m.JobEvent) -> bytes:
    """Return a server-sent event."""
    return b"data: " + event.encode() + b"\n\n"


def failure_bytes(problem: SandfleetError) -> bytes:
    """Return the server-sent event named `failure`."""
    return b"event: failure\ndata: " + failure_body(problem) + b"\n\n"


class JobEvents:
    """The route."""

    def __init__(
        self,
        upstream: Upstream,
        metrics: GatewayMetrics,
        draining: Draining,
        keepalive_seconds: float,
    ) -> None:
        self._upstream = upstream
        self._metrics = metrics
        self._draining = draining
        self._keepalive_seconds = keepalive_seconds

    def routes(self) -> list[HttpRoute]:
        """Return the routes."""
        return [HttpRoute(EVENTS_PATH, self.read, methods=["GET"])]

    async def read(self, request: Request) -> Response:
        """Answer with a stream of events."""
        visit_of(request.scope).route = EVENTS_PATH
        job_id = check_token("job id", request.path_params["job_id"])
        build_from_query(EventsQuery, {}, parse_query(request.scope["query_string"]))
        await self._await_record(job_id)
        return StreamingResponse(
            self._stream(job_id),
            media_type="text/event-stream",
            headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"},
        )

    async def _await_record(self, job_id: str) -> None:
        ends = asyncio.get_running_loop().time() + GRACE_SECONDS
        while True:
            try:
                await self._upstream.ask(s.JOB_GET, m.JobGet(job_id=job_id))
                return
            except NotFound:
                if asyncio.get_running_loop().time() >= ends:
                    raise
            await asyncio.sleep(LOOK_SECONDS)

    async def _stream(self, job_id: str) -> AsyncIterator[bytes]:
        told = Told()
        self._metrics.event_streams.inc()
        try:
            async with self._upstream.transport.job_events(job_id) as feed:
                async for event in self._events(job_id, feed):
                    yield COMMENT if event is None else event_bytes(told.new_in(event))
        except SandfleetError as problem:
            yield failure_bytes(problem)
        finally:
            self._metrics.event_streams.dec()

    async def _events(
        self, job_id: str, feed: Feed[m.JobEvent]
    ) -> AsyncIterator[m.JobEvent | None]:
        """Yield events until the job is over; None when there is nothing new."""
        while not self._draining.is_begun:
            states: list[m.JobState] = []
            async for event in self._record(job_id):
                states.append(event.job.state)
                yield event
            if states[0] is not m.JobState.PLACING:
                return
            if states[-1] is not m.JobState.PLACING:
                continue  # it ended between two pages: the first may lack a slot
            while (live := await self._next(feed)) is not None:
                if live.job.state is not m.JobState.PLACING:
                    break  # the record has it all, also what was missed
                yield live
            else:
                yield None

    async def _next(self, feed: Feed[m.JobEvent]) -> m.JobEvent | None:
        """Wait for the next event; None: look at the record."""
        try:
            async with self._draining.patience(self._keepalive_seconds):
                return await feed.next()
        except TimeoutError:
            return None

    async def _record(self, job_id: str) -> AsyncIterator[m.JobEvent]:
        slot: int | None = 0
        while slot is not None:
            page = await self._upstream.ask(
                s.JOB_SLOTS, m.JobSlots(job_id=job_id, from_slot=slot, limit=1000)
            )
            slot = page.next_slot
            yield m.JobEvent(job=page.job, ready=page.sandboxes, failed=page.failures)
