"""A connection with typed subjects: ask and serve, publish and listen, queues."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext

from sandfleet_common.errors import (
    BadRequest,
    Broken,
    SandfleetError,
    TimedOut,
    Unreachable,
)
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import Failure, Message
from sandfleet_common.subjects import STREAMS, Subject

from .answering import FAILURE_HEADER, Answers
from .asking import publish
from .link import NatsLink, Subscription
from .queues import Delivery, WorkQueue, ensure_stream
from .settings import PUBLISH_SECONDS, BusSettings, reconnect_delay

BodyT = TypeVar("BodyT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)

HANDLER_SECONDS = 120.0


class Bus:
    """A connection to NATS with typed subjects. Open one with `Bus.connect`."""

    def __init__(self, settings: BusSettings, tasks: Tasks, log: Logger) -> None:
        self._link = NatsLink(settings, tasks, log)
        self._answers = Answers(self._link, tasks, log)
        self._settings = settings
        self._tasks = tasks
        self._log = log
        self._jetstream: JetStreamContext = self._link.client.jetstream(timeout=PUBLISH_SECONDS)  # pyright: ignore[reportUnknownMemberType]

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: BusSettings, log: Logger) -> AsyncGenerator[Bus]:
        """Connect, and drain when the block ends.

        Raises:
            Denied: the server does not know this user, or the password is wrong.
            Unreachable: no server answered within ten seconds.
        """
        async with Tasks(log) as tasks:
            bus = cls(settings, tasks, log)
            await bus._link.open()
            try:
                yield bus
            finally:
                await bus._answers.finish()
                await bus._link.drain()

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up now."""
        return self._link.client.is_connected

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each reconnection: messages may have been missed."""
        self._link.on_reconnect.append(callback)

    async def until_closed(self) -> None:
        """Wait until the server has thrown us out for good; a service had better end then."""
        await self._link.closed.wait()

    # ------------------------------------------------------------------ typed

    async def publish(self, subject: Subject[BodyT, Any], body: BodyT, **holes: str) -> None:
        """Tell whoever listens. Nothing says whether anybody did."""
        await publish(self._link.client, subject.at(**holes), body.encode())

    async def ask(
        self,
        subject: Subject[BodyT, ReplyT],
        body: BodyT,
        *,
        within: float,
        resend: bool = False,
        **holes: str,
    ) -> ReplyT:
        """Ask one who serves `subject`, and return the answer.

        With `resend` the question is sent again when the connection was lost and is
        back: for what has one effect however often it is asked. Without it, such a
        question waits for an answer that may be lost until `within` is over.

        Raises:
            TimedOut: no answer within `within` seconds; it may still have been done.
            Unreachable: nobody serves the subject.
            Denied: this user may not ask that.
            BadRequest: the question is larger than the bus takes.
            SandfleetError: what the one asked raised.
        """
        address = subject.at(**holes)
        try:
            reply = await self._link.questions.ask(
                address, body.encode(), within=within, resend=resend
            )
        except TimeoutError:
            raise TimedOut(f"no answer on {address} within {within:g} s", subject=address) from None
        if reply is None:
            raise Unreachable(f"nobody answers on {address}", subject=address)
        try:
            if reply.headers and FAILURE_HEADER in reply.headers:
                failure = Failure.decode(reply.data)
            else:
                return subject.reply.decode(reply.data)
        except BadRequest as problem:
            raise Broken(f"the answer on {address} makes no sense: {problem}") from problem
        raise failure.to_error()

    async def serve(
        self,
        subject: Subject[BodyT, ReplyT],
        handler: Callable[[BodyT], Awaitable[ReplyT]],
        *,
        queue: str = "",
        within: float = HANDLER_SECONDS,
        **holes: str,
    ) -> Subscription:
        """Answer requests, each in a task of its own; with `queue` one of the group does."""
        return await self._answers.serve(
            subject, handler, address=subject.wildcard(**holes), queue=queue, within=within
        )

    async def listen(
        self,
        subject: Subject[BodyT, Any],
        handler: Callable[[BodyT], Awaitable[None]],
        *,
        queue: str = "",
        **holes: str,
    ) -> Subscription:
        """Receive what is told on a subject, in order; a bad message is logged and skipped."""

        async def on_message(message: Msg) -> None:
            try:
                body = subject.body.decode(message.data)
            except BadRequest as problem:
                self._log.warning("bus.bad_message", subject=message.subject, error=str(problem))
                return
            try:
                await handler(body)
            except SandfleetError as problem:
                self._log.warning("bus.handler_failed", subject=message.subject, error=problem)
            except Exception as problem:
                self._log.error("bus.handler_broken", subject=message.subject, error=problem)

        return Subscription(
            await self._link.subscribe(subject.wildcard(**holes), on_message, queue)
        )

    # -------------------------------------------------------- raw, for streams

    def new_inbox(self) -> str:
        """Return a fresh subject that only this user may read."""
        return self._link.client.new_inbox()

    async def publish_raw(self, subject: str, payload: bytes) -> None:
        """Publish bytes; waits while the connection's buffer is full.

        Raises:
            BadRequest: there are more of them than the bus takes.
            Unreachable: the bus is closed, or down for longer than its buffer lasts.
        """
        await publish(self._link.client, subject, payload)

    async def subscribe_raw(
        self, subject: str, handler: Callable[[str, bytes], Awaitable[None]]
    ) -> Subscription:
        """Receive bytes in order, with the subject they came on."""

        async def on_message(message: Msg) -> None:
            try:
                await handler(message.subject, message.data)
            except Exception as problem:
                self._log.error("bus.handler_broken", subject=message.subject, error=problem)

        return Subscription(await self._link.subscribe(subject, on_message, ""))

    async def flush(self) -> None:
        """Wait until the server has seen all that was published and subscribed.

        Raises:
            Unreachable: it did not within five seconds.
        """
        await self._link.flush()

    # --------------------------------------------------------------- JetStream

    async def ensure_streams(self, replicas: int = 1) -> None:
        """Create the streams this user owns, or bring them to the limits in the table.

        Raises:
            Unreachable: JetStream does not answer.
        """
        for stream in STREAMS:
            if self._settings.user not in (stream.owner, "admin"):
                continue
            try:
                await ensure_stream(self._jetstream, stream, replicas)
            except (NatsError, TimeoutError) as problem:
                text = str(problem) or type(problem).__name__
                raise Unreachable(f"JetStream does not answer: {text}") from problem

    async def store(
        self, subject: Subject[BodyT, Any], body: BodyT, *, once: str, **holes: str
    ) -> bool:
        """Publish to a stream and wait until it is kept; `once` names it for deduplication.

        Returns:
            False if the stream held a message of that name already.

        Raises:
            Unreachable: JetStream did not confirm; sending it again under the same name is safe.
        """
        address = subject.at(**holes)
        try:
            ack = await self._jetstream.publish(
                address, body.encode(), timeout=PUBLISH_SECONDS, headers={"Nats-Msg-Id": once}
            )
        except (NatsError, TimeoutError) as problem:
            raise Unreachable(
                f"JetStream did not confirm on {address}: {str(problem) or type(problem).__name__}",
                subject=address,
            ) from problem
        return not ack.duplicate

    async def take(
        self,
        stream: str,
        consumer: str,
        handler: Callable[[Delivery], Awaitable[None]],
        *,
        at_once: int,
        ack_seconds: float = 30,
    ) -> None:
        """Work through a queue until cancelled, `at_once` deliveries at a time.

        A delivery whose handler raises comes again; one not acknowledged or kept
        within `ack_seconds` is given to another. A handler outlives the call that
        took its delivery, and is cancelled when the bus closes.
        """
        gate = asyncio.Semaphore(at_once)
        queue = WorkQueue(self._jetstream, stream, consumer, ack_seconds)
        failures = 0
        try:
            while True:
                await gate.acquire()
                delivery: Delivery | None = None
                try:
                    delivery = await queue.next()
                    failures = 0
                except Unreachable as problem:
                    failures += 1
                    self._log.warning("bus.queue_unavailable", stream=stream, error=str(problem))
                    await asyncio.sleep(reconnect_delay(failures, random.random()))
                if delivery is None:
                    gate.release()
                    continue
                task = self._tasks.start(self._work(handler, delivery), f"take {stream}")
                task.add_done_callback(lambda _: gate.release())
        finally:
            await queue.close()

    # ---------------------------------------------------------------- internal

    async def _work(
        self, handler: Callable[[Delivery], Awaitable[None]], delivery: Delivery
    ) -> None:
        try:
            await handler(delivery)
        except Exception as problem:
            self._log.error("bus.delivery_failed", attempt=delivery.attempt, error=problem)
            try:
                await delivery.again(reconnect_delay(delivery.attempt + 4, random.random()))
            except Unreachable:
                return
