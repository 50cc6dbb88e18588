"""The message bus: the only module that meets NATS.

    async with Bus.connect(settings, log) as bus:
        await bus.serve(subjects.NODE_CREATE, create, node="n1")
        made = await bus.ask(subjects.NODE_CREATE, NodeCreate(...), within=5, node="n1")

Subjects carry their body and reply types, so a wrong body is a type error. An
error travels as a `Failure` under the header `Sf-Failure` and is raised again at
the asker. Nothing here waits without a limit.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import nats.js.errors
from nats.aio.client import Client
from nats.aio.client import Server as NatsServer
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError, NoServersError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.client import JetStreamContext

from .errors import BadRequest, Broken, SandfleetError, TimedOut, Unreachable
from .ids import new_ulid
from .lifecycle import Tasks
from .logs import Logger
from .messages import Failure, Message, Ok
from .subjects import STREAMS, Stream, Subject

BodyT = TypeVar("BodyT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)

FAILURE_HEADER = "Sf-Failure"
RECONNECT_FIRST_SECONDS = 0.05
RECONNECT_MOST_SECONDS = 5.0
PUBLISH_SECONDS = 5.0
HANDLER_SECONDS = 120.0
CONCURRENCY = 4096
"""Requests under way at once on one subscription; more wait in the client's buffer."""


@dataclass(frozen=True, slots=True)
class BusSettings:
    """Where the bus is and who we are there."""

    servers: tuple[str, ...]
    user: str
    password: str
    name: str
    """Shown by the server's monitoring."""


def reconnect_delay(attempt: int, roll: float) -> float:
    """Return seconds before reconnect `attempt` (from 1); `roll` in 0..1 spreads clients apart."""
    ceiling = min(RECONNECT_MOST_SECONDS, RECONNECT_FIRST_SECONDS * 2 ** min(attempt - 1, 16))
    return ceiling * (0.5 + roll / 2)


@dataclass(slots=True)
class Delivery:
    """One message of a work queue; it comes again unless it is acknowledged."""

    payload: bytes
    attempt: int
    _message: Msg

    async def done(self) -> None:
        """Take it off the queue, and know that it is off."""
        await self._message.ack_sync(timeout=5)

    async def keep(self) -> None:
        """Say that the work goes on, so that it is not given to another."""
        await self._message.in_progress()

    async def again(self, after_seconds: float) -> None:
        """Give it back, to come again later."""
        await self._message.nak(delay=after_seconds)


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

    def __init__(self, client: Client, settings: BusSettings, tasks: Tasks, log: Logger) -> None:
        self._client = client
        self._settings = settings
        self._tasks = tasks
        self._log = log
        self._jetstream: JetStreamContext = client.jetstream(timeout=PUBLISH_SECONDS)  # pyright: ignore[reportUnknownMemberType]
        self._on_reconnect: list[Callable[[], None]] = []

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: BusSettings, log: Logger) -> AsyncGenerator[Bus]:
        """Connect, and drain when the block ends.

        Raises:
            Unreachable: no server answered within ten seconds.
        """
        client = Client()
        made: list[Bus] = []
        attempts = 0

        def choose(
            servers: list[NatsServer], info: dict[str, Any]
        ) -> tuple[NatsServer | None, float]:
            nonlocal attempts
            attempts += 1
            return servers[attempts % len(servers)], reconnect_delay(attempts, random.random())

        async def on_reconnect() -> None:
            nonlocal attempts
            attempts = 0
            log.info("bus.reconnected")
            for callback in made[0]._on_reconnect if made else []:
                callback()

        async def on_disconnect() -> None:
            if not client.is_closed:
                log.warning("bus.disconnected")

        async def on_error(error: Exception) -> None:
            log.warning("bus.error", error=str(error) or type(error).__name__)

        try:
            async with asyncio.timeout(10):
                await client.connect(  # pyright: ignore[reportUnknownMemberType]
                    list(settings.servers),
                    user=settings.user,
                    password=settings.password,
                    name=settings.name,
                    inbox_prefix=f"_INBOX.{settings.user}.{new_ulid()}",
                    max_reconnect_attempts=-1,
                    reconnect_to_server_handler=choose,
                    reconnected_cb=on_reconnect,
                    disconnected_cb=on_disconnect,
                    error_cb=on_error,
                    drain_timeout=5,
                    ping_interval=10,
                )
        except (OSError, TimeoutError, NatsError) as problem:
            raise Unreachable(
                f"no NATS server answered at {', '.join(settings.servers)}: "
                f"{str(problem) or type(problem).__name__}"
            ) from problem
        async with Tasks(log) as tasks:
            bus = cls(client, settings, tasks, log)
            made.append(bus)
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

    # ------------------------------------------------------------------ typed

    async def publish(self, subject: Subject[BodyT, Any], body: BodyT, **holes: str) -> None:
        """Tell whoever listens. Nothing says whether anybody did."""
        await self.publish_raw(subject.at(**holes), body.encode())

    async def ask(
        self, subject: Subject[BodyT, ReplyT], body: BodyT, *, within: float, **holes: str
    ) -> ReplyT:
        """Ask one who serves `subject`, and return the answer.

        Raises:
            TimedOut: no answer within `within` seconds; it may still have been done.
            Unreachable: nobody serves the subject.
            SandfleetError: what the one asked raised.
        """
        address = subject.at(**holes)
        try:
            reply = await self._client.request(address, body.encode(), timeout=within)
        except NoRespondersError:
            raise Unreachable(f"nobody answers on {address}", subject=address) from None
        except (NatsTimeoutError, TimeoutError):
            raise TimedOut(f"no answer on {address} within {within:g} s", subject=address) from None
        except NatsError as problem:
            raise Unreachable(f"the bus is down: {problem}", subject=address) from problem
        if reply.headers and FAILURE_HEADER in reply.headers:
            raise Failure.decode(reply.data).to_error()
        return subject.reply.decode(reply.data)

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
        gate = asyncio.Semaphore(CONCURRENCY)

        async def on_message(message: Msg) -> None:
            await gate.acquire()
            task = self._tasks.start(
                self._answer(subject, handler, message, within), f"serve {message.subject}"
            )
            task.add_done_callback(lambda _: gate.release())

        inner = await self._client.subscribe(  # pyright: ignore[reportUnknownMemberType]
            subject.wildcard(**holes), queue=queue, cb=on_message
        )
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

        inner = await self._client.subscribe(  # pyright: ignore[reportUnknownMemberType]
            subject.wildcard(**holes), queue=queue, cb=on_message
        )
        return Subscription(inner)

    # -------------------------------------------------------- raw, for streams

    def new_inbox(self) -> str:
        """Return a fresh subject that only this user may read."""
        return self._client.new_inbox()

    async def publish_raw(self, subject: str, payload: bytes) -> None:
        """Publish bytes; waits while the connection's buffer is full.

        Raises:
            Unreachable: the bus is closed, or down for longer than its buffer lasts.
        """
        try:
            await self._client.publish(subject, payload)
        except NatsError as problem:
            raise Unreachable(f"the bus is down: {problem}", subject=subject) from problem

    async def subscribe_raw(
        self, subject: str, handler: Callable[[str, bytes], Awaitable[None]]
    ) -> Subscription:
        """Receive bytes in order, with the subject they came on."""

        async def on_message(message: Msg) -> None:
            try:
                await handler(message.subject, message.data)
            except Exception as problem:
                self._log.error("bus.handler_broken", subject=message.subject, error=problem)

        inner = await self._client.subscribe(subject, cb=on_message)  # pyright: ignore[reportUnknownMemberType]
        return Subscription(inner)

    async def flush(self) -> None:
        """Wait until the server has seen all that was published and subscribed.

        Raises:
            Unreachable: it did not within five seconds.
        """
        try:
            await self._client.flush(timeout=PUBLISH_SECONDS)
        except (NatsError, TimeoutError) as problem:
            raise Unreachable(f"the bus is down: {problem}") from problem

    # --------------------------------------------------------------- JetStream

    async def ensure_streams(self, replicas: int = 1) -> None:
        """Create the streams of the subject table, or bring them to its limits."""
        for stream in STREAMS:
            config = _stream_config(stream, replicas)
            try:
                await self._jetstream.update_stream(config)  # pyright: ignore[reportUnknownMemberType]
            except nats.js.errors.NotFoundError:
                await self._jetstream.add_stream(config)  # pyright: ignore[reportUnknownMemberType]
            except NatsError as problem:
                raise Unreachable(f"JetStream does not answer: {problem}") from problem

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
        within `ack_seconds` is given to another.
        """
        config = ConsumerConfig(
            durable_name=consumer,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=ack_seconds,
            max_ack_pending=10_000,
        )
        gate = asyncio.Semaphore(at_once)
        pull = None
        while True:
            await gate.acquire()
            message: Msg | None = None
            try:
                if pull is None:
                    pull = await self._jetstream.pull_subscribe(
                        "", durable=consumer, stream=stream, config=config
                    )
                message = (await pull.fetch(1, timeout=5))[0]
            except (NatsTimeoutError, TimeoutError):
                pass
            except (NatsError, OSError) as problem:
                self._log.warning("bus.queue_unavailable", stream=stream, error=str(problem))
                pull = None
                await asyncio.sleep(reconnect_delay(5, random.random()))
            if message is None:
                gate.release()
                continue
            delivery = Delivery(message.data, message.metadata.num_delivered, message)
            task = self._tasks.start(self._work(handler, delivery), f"take {stream}")
            task.add_done_callback(lambda _: gate.release())

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
            except (NatsError, TimeoutError):
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
        if message.reply:
            try:
                await self._client.publish(message.reply, reply, headers=headers)
            except NatsError as problem:
                self._log.warning("bus.reply_lost", subject=message.subject, error=str(problem))

    async def _close(self) -> None:
        try:
            async with asyncio.timeout(6):
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


def _stream_config(stream: Stream, replicas: int) -> StreamConfig:
    return StreamConfig(
        name=stream.name,
        subjects=list(stream.subjects),
        retention=RetentionPolicy.WORK_QUEUE if stream.work_queue else RetentionPolicy.LIMITS,
        max_bytes=stream.max_bytes,
        max_age=stream.max_age_seconds,
        duplicate_window=stream.duplicate_seconds,
        num_replicas=replicas,
    )


__all__ = ["Bus", "BusSettings", "Delivery", "NoServersError", "Ok", "Subscription"]
