"""The way of trainers: straight to NATS, beside the platform. Needs the extra `nats`.

A request to a sandbox goes to the node that its id names, so nothing stands
between the two but the server. This module is imported only when it is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Generic, TypeVar, cast

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus, BusSettings, Subscription
from sandfleet_common.errors import (
    BadRequest,
    Broken,
    Moved,
    SandfleetError,
    TimedOut,
    Unreachable,
)
from sandfleet_common.homes import Homes
from sandfleet_common.ids import new_ulid
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Level, Logger
from sandfleet_common.streams import KEEPALIVE_SECONDS, Kind, StreamFrame
from sandfleet_common.subjects import Subject

from .calls import HEARD_ONCE, call
from .chunks import read_pieces, write_pieces
from .endpoints import NatsPlace
from .transport import Feed, FilePlace, FileTarget, Link, LinkLost

BodyT = TypeVar("BodyT", bound=m.Message)
ReplyT = TypeVar("ReplyT", bound=m.Message)
ItemT = TypeVar("ItemT")

FEED_ITEMS = 256
"""Most events that wait for a slow reader; when there are more it looks again instead."""


class _Feed(Generic[ItemT]):
    """A bounded queue that forgets what does not fit, and says so."""

    def __init__(self) -> None:
        self._items: asyncio.Queue[ItemT | SandfleetError | None] = asyncio.Queue(FEED_ITEMS + 2)

    def put(self, item: ItemT) -> None:
        if self._items.qsize() < FEED_ITEMS:
            self._items.put_nowait(item)
        else:
            self.missed()

    def missed(self) -> None:
        if self._items.qsize() <= FEED_ITEMS:
            self._items.put_nowait(None)

    def fail(self, error: SandfleetError) -> None:
        if not self._items.full():
            self._items.put_nowait(error)

    async def next(self) -> ItemT | None:
        item = await self._items.get()
        if isinstance(item, SandfleetError):
            raise item
        return item


class _Link:
    """A stream over the bus: frames come to an inbox, ours go to the node's io subject."""

    def __init__(self, bus: Bus, outward: str, forget: Callable[[_Link], None]) -> None:
        self._bus = bus
        self.outward = outward
        """The subject of the node that has the sandbox."""
        self._forget = forget
        self._frames: asyncio.Queue[StreamFrame | None] = asyncio.Queue()  # bounded by the window
        self._is_lost = False
        self._subscription: Subscription | None = None
        self.state: m.ExecState = cast(m.ExecState, None)  # set before anybody sees the link

    async def listen(self, inbox: str) -> None:
        self._subscription = await self._bus.subscribe_raw(inbox, self._on_message)

    async def _on_message(self, _: str, data: bytes) -> None:
        try:
            self._frames.put_nowait(StreamFrame.decode(data))
        except BadRequest:
            self.lose()

    def lose(self) -> None:
        self._is_lost = True
        self._frames.put_nowait(None)

    async def receive(self) -> StreamFrame:
        frame = await self._frames.get()
        if frame is None:
            raise LinkLost
        return frame

    async def send(self, frame: StreamFrame) -> None:
        if self._is_lost:
            raise LinkLost
        try:
            await self._bus.publish_raw(self.outward, frame.encode())
        except Unreachable as problem:
            raise LinkLost from problem

    async def close(self) -> None:
        self._forget(self)
        with suppress(LinkLost):  # the node forgets it by itself after a minute
            await self.send(StreamFrame(Kind.DETACH))
        self.lose()
        if self._subscription is not None:
            await self._subscription.close()


class NatsTransport:
    """A connection to NATS; open one with `NatsTransport.connect`."""

    def __init__(self, bus: Bus, tasks: Tasks) -> None:
        self._bus = bus
        self._tasks = tasks
        self._links: set[_Link] = set()
        self._feeds: set[_Feed[Any]] = set()
        self.homes = Homes()
        """Where sandboxes are that have moved."""
        bus.on_reconnect(self._on_reconnect)

    @classmethod
    @asynccontextmanager
    async def connect(cls, place: NatsPlace, name: str) -> AsyncGenerator[NatsTransport]:
        """Connect, and close when the block ends.

        Raises:
            Unreachable: no server answered.
        """
        log = Logger("sdk", level=Level.ERROR)
        settings = BusSettings(place.servers, place.user, place.password, name)
        async with Bus.connect(settings, log) as bus, Tasks(log) as tasks:
            yield cls(bus, tasks)

    async def call(self, subject: Subject[BodyT, ReplyT], body: BodyT, *, within: float) -> ReplyT:
        """Ask once; what may be asked twice survives a lost connection."""
        resend = subject.pattern not in HEARD_ONCE
        ends = asyncio.get_running_loop().time() + within
        while True:
            holes = s.holes_of(subject, body, self.homes.of)
            left = ends - asyncio.get_running_loop().time()
            try:
                return await self._bus.ask(subject, body, within=left, resend=resend, **holes)
            except Moved as problem:
                if not self.homes.learn(cast(Any, body).sandbox_id, str(problem.fields["node"])):
                    raise Broken(f"node {holes['node']} sends us in a circle") from None

    def learn_home(self, sandbox_id: str, node: str) -> bool:
        """Note where a sandbox lives; return whether that is news."""
        return self.homes.learn(sandbox_id, node)

    async def submit(self, job: m.JobSubmit, *, within: float) -> None:
        """Put a job into the queue; JetStream tells the same job apart by its id."""
        try:
            async with asyncio.timeout(within):
                await self._bus.store(s.JOB_SUBMIT, job, once=job.job_id)
        except TimeoutError:
            raise TimedOut(f"the job was not confirmed within {within:g} s") from None

    async def attach(
        self, sandbox_id: str, exec_id: str, *, position: int, window_bytes: int, within: float
    ) -> Link:
        """Open a stream to a command, with its output from `position` on."""
        stream, inbox = new_ulid(), self._bus.new_inbox()
        body = m.ExecAttach.of(
            sandbox_id=sandbox_id,
            exec_id=exec_id,
            stream=stream,
            deliver=inbox,
            position=position,
            window_bytes=window_bytes,
        )
        link = _Link(
            self._bus,
            s.io_subject(self.homes.of(sandbox_id), stream),
            self._links.discard,
        )
        self._links.add(link)
        await link.listen(inbox)
        try:
            link.state = await self.call(s.EXEC_ATTACH, body, within=within)
            link.outward = s.io_subject(self.homes.of(sandbox_id), stream)  # it may have moved
        except BaseException:
            await link.close()
            raise
        return link

    @asynccontextmanager
    async def job_events(self, job_id: str) -> AsyncGenerator[Feed[m.JobEvent]]:
        """Listen to a job's progress."""
        feed: _Feed[m.JobEvent] = _Feed()

        async def on_event(event: m.JobEvent) -> None:
            feed.put(event)

        subscription = await self._bus.listen(s.JOB_EVENTS, on_event, job=job_id)
        self._feeds.add(feed)
        try:
            yield feed
        finally:
            self._feeds.discard(feed)
            await subscription.close()

    @asynccontextmanager
    async def file_events(
        self, place: FilePlace, *, recursive: bool
    ) -> AsyncGenerator[Feed[m.FileEvent]]:
        """Listen to changes below a path."""
        feed: _Feed[m.FileEvent] = _Feed()
        inbox = self._bus.new_inbox()

        async def on_event(_: str, data: bytes) -> None:
            feed.put(m.FileEvent.decode(data))

        body = m.FileWatch.of(
            sandbox_id=place.sandbox_id,
            path=place.path,
            user=place.user,
            watch=new_ulid(),
            deliver=inbox,
            recursive=recursive,
        )

        async def keep_alive() -> None:
            while True:
                await asyncio.sleep(KEEPALIVE_SECONDS)
                try:
                    await call(self, s.FILE_WATCH, body)
                except SandfleetError as problem:
                    return feed.fail(problem)

        subscription = await self._bus.subscribe_raw(inbox, on_event)
        try:
            await call(self, s.FILE_WATCH, body)
            self._feeds.add(feed)
            keeping = self._tasks.start(keep_alive(), "keep watch")
            try:
                yield feed
            finally:
                keeping.cancel()
                self._feeds.discard(feed)
                await self._unwatch(body)
        finally:
            await subscription.close()

    def read_file(self, place: FilePlace, *, within: float) -> AsyncIterator[bytes]:
        """Read a file piece by piece."""
        return read_pieces(self, place, within=within)

    async def write_file(
        self, target: FileTarget, pieces: AsyncIterator[bytes], *, within: float
    ) -> None:
        """Write a file piece by piece."""
        await write_pieces(self, target, pieces, within=within)

    async def _unwatch(self, body: m.FileWatch) -> None:
        try:
            await self.call(
                s.FILE_UNWATCH,
                m.FileUnwatch(sandbox_id=body.sandbox_id, watch=body.watch),
                within=2,
            )
        except SandfleetError:
            return  # the node forgets it by itself after a minute

    def _on_reconnect(self) -> None:
        for link in list(self._links):
            link.lose()
        for feed in self._feeds:
            feed.missed()
