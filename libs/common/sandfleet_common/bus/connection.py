"""A connection with typed subjects: ask and serve, publish and listen, queues."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from nats.aio.client import Client
from nats.aio.client import Server as NatsServer
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.errors import Error as NatsError
from nats.js.client import JetStreamContext

from sandfleet_common.errors import (
    BadRequest,
    Broken,
    Busy,
    Denied,
    SandfleetError,
    TimedOut,
    Unreachable,
)
from sandfleet_common.ids import new_ulid
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import Failure, Message
from sandfleet_common.subjects import STREAMS, Subject

from .asking import Questions, publish
from .queues import Delivery, WorkQueue, ensure_stream
from .settings import CONNECT_SECONDS, PUBLISH_SECONDS, BusSettings, reconnect_delay

BodyT = TypeVar("BodyT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)

FAILURE_HEADER = "Sf-Failure"
HANDLER_SECONDS = 120.0
CONCURRENCY = 16_384
"""Requests under way at once on one subscription; the next is answered `busy`. High, because
a request that waits for a command to end counts too."""
PENDING_MESSAGES = 65_536
PENDING_BYTES = 64 * 1024 * 1024
"""Received and not yet handled, for each subscription. What comes beyond is dropped and logged:
askers time out, listeners must take what they hear as news that may be missing."""
OUTBOUND_BYTES = 8 * 1024 * 1024
"""Not yet sent. Beyond it a publisher waits while connected, and fails while not."""
FINISH_SECONDS = 5.0
"""What a closing bus gives to requests it is answering."""


class Subscription:
    """A running subscription; `close` ends it."""

    def __init__(self, inner: NatsSubscription) -> None:
        self._inner = inner

    async def close(self) -> None:
        """Stop receiving. Closing twice, or while the bus is down, is no error."""
        try:
            await self._inner.unsubscribe()
        except NatsError:
            return


class Bus:
    """A connection to NATS with typed subjects. Open one with `Bus.connect`."""

    def __init__(self, settings: BusSettings, tasks: Tasks, log: Logger) -> None:
        self._client = Client()
        self._settings = settings
        self._tasks = tasks
        self._log = log
        self._jetstream: JetStreamContext = self._client.jetstream(timeout=PUBLISH_SECONDS)  # pyright: ignore[reportUnknownMemberType]
        self._questions = Questions(self._client)
        self._on_reconnect: list[Callable[[], None]] = []
        self._served: list[NatsSubscription] = []
        self._answering: set[asyncio.Task[None]] = set()
        self._attempts = 0
        self._refused = asyncio.Event()
        self._closed = asyncio.Event()

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
            await bus._open()
            try:
                yield bus
            finally:
                await bus._close()

    @property
    def is_connected(self) -> bool:
        """Whether the connection is up now."""
        return self._client.is_connected

    def on_reconnect(self, callback: Callable[[], None]) -> None:
        """Call `callback` after each reconnection: messages may have been missed."""
        self._on_reconnect.append(callback)

    async def until_closed(self) -> None:
        """Wait until the server has thrown us out for good; a service had better end then."""
        await self._closed.wait()

    # ------------------------------------------------------------------ typed

    async def publish(self, subject: Subject[BodyT, Any], body: BodyT, **holes: str) -> None:
        """Tell whoever listens. Nothing says whether anybody did."""
        await publish(self._client, subject.at(**holes), body.encode())

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
            reply = await self._questions.ask(address, body.encode(), within=within, resend=resend)
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
        under_way = 0

        async def on_message(message: Msg) -> None:
            nonlocal under_way
            if under_way >= CONCURRENCY:
                busy = Busy(f"{under_way} requests are under way", retry_after_seconds=1)
                await self._reply(message, *_failure(busy))
                return
            under_way += 1
            task = self._tasks.start(self._answer(subject, handler, message, within), "serve")
            self._answering.add(task)
            task.add_done_callback(on_done)

        def on_done(task: asyncio.Task[None]) -> None:
            nonlocal under_way
            under_way -= 1
            self._answering.discard(task)

        inner = await self._subscribe(subject.wildcard(**holes), on_message, queue)
        self._served.append(inner)
        return Subscription(inner)

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

        return Subscription(await self._subscribe(subject.wildcard(**holes), on_message, queue))

    # -------------------------------------------------------- raw, for streams

    def new_inbox(self) -> str:
        """Return a fresh subject that only this user may read."""
        return self._client.new_inbox()

    async def publish_raw(self, subject: str, payload: bytes) -> None:
        """Publish bytes; waits while the connection's buffer is full.

        Raises:
            BadRequest: there are more of them than the bus takes.
            Unreachable: the bus is closed, or down for longer than its buffer lasts.
        """
        await publish(self._client, subject, payload)

    async def subscribe_raw(
        self, subject: str, handler: Callable[[str, bytes], Awaitable[None]]
    ) -> Subscription:
        """Receive bytes in order, with the subject they came on."""

        async def on_message(message: Msg) -> None:
            try:
                await handler(message.subject, message.data)
            except Exception as problem:
                self._log.error("bus.handler_broken", subject=message.subject, error=problem)

        return Subscription(await self._subscribe(subject, on_message, ""))

    async def flush(self) -> None:
        """Wait until the server has seen all that was published and subscribed.

        Raises:
            Unreachable: it did not within five seconds.
        """
        try:
            # The client library's ping overtakes what lies in its buffer; a second does not.
            await self._client.flush(timeout=int(PUBLISH_SECONDS))
            await self._client.flush(timeout=int(PUBLISH_SECONDS))
        except (NatsError, TimeoutError) as problem:
            raise Unreachable(f"the bus is down: {problem}") from problem

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

    async def _answer(
        self,
        subject: Subject[BodyT, ReplyT],
        handler: Callable[[BodyT], Awaitable[ReplyT]],
        message: Msg,
        within: float,
    ) -> None:
        headers: dict[str, str] | None = None
        try:
            async with asyncio.timeout(within):
                reply = (await handler(subject.body.decode(message.data))).encode()
        except SandfleetError as problem:
            reply, headers = _failure(problem)
        except TimeoutError:
            reply, headers = _failure(
                TimedOut(f"{message.subject} was not done within {within:g} s")
            )
        except Exception as problem:
            self._log.error("bus.handler_broken", subject=message.subject, error=problem)
            reply, headers = _failure(
                Broken("Sandfleet failed inside; its log says more", subject=message.subject)
            )
        await self._reply(message, reply, headers)

    async def _reply(self, message: Msg, reply: bytes, headers: dict[str, str] | None) -> None:
        if not message.reply:
            return
        try:
            try:
                await publish(self._client, message.reply, reply, headers=headers)
            except BadRequest as problem:
                too_long = Broken(f"the answer is too long: {problem}", subject=message.subject)
                reply, headers = _failure(too_long)
                await publish(self._client, message.reply, reply, headers=headers)
        except Unreachable as problem:
            self._log.warning("bus.reply_lost", subject=message.subject, error=str(problem))

    async def _subscribe(
        self, address: str, on_message: Callable[[Msg], Awaitable[None]], queue: str
    ) -> NatsSubscription:
        try:
            return await self._client.subscribe(  # pyright: ignore[reportUnknownMemberType]
                address,
                queue=queue,
                cb=on_message,
                pending_msgs_limit=PENDING_MESSAGES,
                pending_bytes_limit=PENDING_BYTES,
            )
        except NatsError as problem:
            raise Unreachable(f"the bus is down: {problem}", subject=address) from problem

    async def _open(self) -> None:
        where = ", ".join(self._settings.servers)
        connecting = self._tasks.start(self._connect(), "connect")
        refused = self._tasks.start(self._refused.wait(), "refused")
        await asyncio.wait(
            {connecting, refused}, timeout=CONNECT_SECONDS, return_when=asyncio.FIRST_COMPLETED
        )
        refused.cancel()
        if connecting.done() and not connecting.cancelled():
            if (problem := connecting.result()) is None:
                return
        else:
            connecting.cancel()
            problem = self._client.last_error
            await self._client.close()
        if self._refused.is_set():
            raise Denied(f"NATS at {where} refused user {self._settings.user!r} or its password")
        raise Unreachable(
            f"no NATS server answered at {where}: {str(problem) or type(problem).__name__}"
        ) from problem

    async def _connect(self) -> Exception | None:
        try:
            await self._client.connect(  # pyright: ignore[reportUnknownMemberType]
                list(self._settings.servers),
                user=self._settings.user,
                password=self._settings.password,
                name=self._settings.name,
                inbox_prefix=f"_INBOX.{self._settings.user}.{new_ulid()}",
                max_reconnect_attempts=-1,
                reconnect_to_server_handler=self._choose,
                reconnected_cb=self._reconnected,
                disconnected_cb=self._disconnected,
                closed_cb=self._ended,
                error_cb=self._failed,
                drain_timeout=int(FINISH_SECONDS),
                ping_interval=10,
                pending_size=OUTBOUND_BYTES,
            )
        except (OSError, NatsError) as problem:
            return problem
        return None

    def _choose(
        self, servers: list[NatsServer], info: dict[str, Any]
    ) -> tuple[NatsServer | None, float]:
        self._attempts += 1
        delay = reconnect_delay(self._attempts, random.random())
        return servers[self._attempts % len(servers)], delay

    async def _reconnected(self) -> None:
        self._attempts = 0
        self._log.info("bus.reconnected")
        try:
            await self._questions.reconnected()
        except NatsError as problem:
            self._log.warning("bus.error", error=str(problem))
        for callback in self._on_reconnect:
            callback()

    async def _disconnected(self) -> None:
        if not self._client.is_closed:
            self._log.warning("bus.disconnected")

    async def _ended(self) -> None:
        self._closed.set()

    async def _failed(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if "authorization violation" in text.lower():
            self._refused.set()
        self._questions.refused(text)
        self._log.warning("bus.error", error=text)

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                for subscription in self._served:
                    await Subscription(subscription).close()
                if self._answering:
                    await asyncio.wait(self._answering)
        except TimeoutError:
            self._log.warning("bus.answers_cut_short", count=len(self._answering))
        try:
            async with asyncio.timeout(FINISH_SECONDS + 1):
                await self._client.drain()
        except (NatsError, TimeoutError, OSError):
            await self._client.close()


def _failure(error: SandfleetError) -> tuple[bytes, dict[str, str]]:
    failure = Failure.from_error(error)
    try:
        payload = failure.encode()
    except ValueError:
        shown = {k: str(v) for k, v in error.fields.items()}
        payload = json.dumps(
            {"code": error.code, "message": error.message, "fields": shown}
        ).encode()
    return payload, {FAILURE_HEADER: error.code}
