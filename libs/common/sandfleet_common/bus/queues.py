"""Work queues: a stream, one durable consumer, deliveries that come until acknowledged."""

from __future__ import annotations

from dataclasses import dataclass

import nats.js.errors
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import TimeoutError as NatsTimeoutError
from nats.js.api import AckPolicy, ConsumerConfig, RetentionPolicy, StreamConfig
from nats.js.client import JetStreamContext

from sandfleet_common.errors import Unreachable
from sandfleet_common.subjects import STREAMS, Stream

from .settings import PUBLISH_SECONDS

FETCH_SECONDS = 2.0
"""One request for work lasts so long; one that a restarted server forgot costs no more."""


@dataclass(slots=True)
class Delivery:
    """One message of a work queue; it comes again unless it is acknowledged.

    Its methods raise Unreachable when the bus is down; calling them again is safe.
    """

    payload: bytes
    attempt: int
    """1 the first time."""
    stored_at: float
    """When the queue took it."""
    _message: Msg

    async def done(self) -> None:
        """Take it off the queue, and know that it is off."""
        await self._tell(b"+ACK", confirmed=True)

    async def keep(self) -> None:
        """Say that the work goes on, so that it is not given to another."""
        await self._tell(b"+WPI")

    async def again(self, after_seconds: float) -> None:
        """Give it back, to come again later."""
        await self._tell(b'-NAK {"delay": %d}' % int(after_seconds * 1e9))

    async def _tell(self, what: bytes, *, confirmed: bool = False) -> None:
        # Not through Msg.ack: that allows one word for ever, even if the server never heard it.
        client, address = self._message._client, self._message.reply  # pyright: ignore[reportPrivateUsage]
        try:
            if confirmed:
                await client.request(address, what, timeout=PUBLISH_SECONDS)
            else:
                await client.publish(address, what)
        except (NatsError, TimeoutError) as problem:
            text = str(problem) or type(problem).__name__
            raise Unreachable(f"JetStream did not confirm: {text}") from problem


class WorkQueue:
    """One consumer of one stream, made anew whenever the server has lost it."""

    def __init__(
        self, jetstream: JetStreamContext, stream: str, consumer: str, ack_seconds: float
    ) -> None:
        self._jetstream = jetstream
        self._stream = stream
        self._consumer = consumer
        self._ack_seconds = ack_seconds
        self._pull: JetStreamContext.PullSubscription | None = None

    async def next(self) -> Delivery | None:
        """Return a delivery, or None when none came within FETCH_SECONDS.

        Raises:
            Unreachable: JetStream does not answer; the next call tries from the start.
        """
        try:
            if self._pull is None:
                await self._ensure()
            assert self._pull is not None
            message = (await self._pull.fetch(1, timeout=FETCH_SECONDS))[0]
        except (NatsTimeoutError, TimeoutError):
            return None
        except (NatsError, OSError) as problem:
            await self.close()
            text = str(problem) or type(problem).__name__
            raise Unreachable(f"JetStream does not answer: {text}") from problem
        about = message.metadata
        return Delivery(message.data, about.num_delivered, about.timestamp.timestamp(), message)

    async def close(self) -> None:
        """Stop asking for work; closing twice is no error."""
        pull, self._pull = self._pull, None
        if pull is not None:
            try:
                await pull.unsubscribe()
            except NatsError:
                return

    async def _ensure(self) -> None:
        config = ConsumerConfig(
            durable_name=self._consumer,
            ack_policy=AckPolicy.EXPLICIT,
            ack_wait=self._ack_seconds,
            max_ack_pending=10_000,
        )
        try:
            await self._jetstream.add_consumer(self._stream, config)
        except nats.js.errors.NotFoundError:
            for stream in STREAMS:
                if stream.name == self._stream:
                    await ensure_stream(self._jetstream, stream)
            await self._jetstream.add_consumer(self._stream, config)
        self._pull = await self._jetstream.pull_subscribe_bind(
            durable=self._consumer, stream=self._stream
        )


async def ensure_stream(jetstream: JetStreamContext, stream: Stream, replicas: int = 1) -> None:
    """Create a stream, or bring it to the limits in the table."""
    config = StreamConfig(
        name=stream.name,
        subjects=list(stream.subjects),
        retention=RetentionPolicy.WORK_QUEUE if stream.work_queue else RetentionPolicy.LIMITS,
        max_bytes=stream.max_bytes,
        max_age=stream.max_age_seconds,
        duplicate_window=stream.duplicate_seconds,
        num_replicas=replicas,
    )
    try:
        await jetstream.update_stream(config)  # pyright: ignore[reportUnknownMemberType]
    except nats.js.errors.NotFoundError:
        await jetstream.add_stream(config)  # pyright: ignore[reportUnknownMemberType]
