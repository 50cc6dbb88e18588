"""The connection itself: how it comes about, breaks, comes back and ends."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Awaitable, Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.client import Server as NatsServer
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription
from nats.errors import Error as NatsError

from sandfleet_common.errors import Denied, Unreachable
from sandfleet_common.ids import new_ulid
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger

from .asking import Questions
from .settings import CONNECT_SECONDS, FINISH_SECONDS, PUBLISH_SECONDS, BusSettings, reconnect_delay

PENDING_MESSAGES = 65_536
PENDING_BYTES = 64 * 1024 * 1024
"""Received and not yet handled, for each subscription. What comes beyond is dropped and logged:
askers time out, listeners must take what they hear as news that may be missing."""
OUTBOUND_BYTES = 8 * 1024 * 1024
"""Not yet sent. Beyond it a publisher waits while connected, and fails while not."""


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

    async def finish(self) -> None:
        """Stop receiving, and hand on what the server has sent already; then nothing is lost.

        Waits for the server. Where it is away, this is like `close`.
        """
        try:
            await self._inner.drain()
        except (NatsError, TimeoutError):
            await self.close()


class NatsLink:
    """One client of NATS, connected for as long as it is not closed."""

    def __init__(self, settings: BusSettings, tasks: Tasks, log: Logger) -> None:
        self.client = Client()
        self.questions = Questions(self.client)
        self.on_reconnect: list[Callable[[], None]] = []
        self.closed = asyncio.Event()
        self._settings = settings
        self._tasks = tasks
        self._log = log
        self._attempts = 0
        self._refused = asyncio.Event()

    async def flush(self) -> None:
        """Wait until the server has seen all that was published and subscribed.

        Raises:
            Unreachable: it did not within five seconds.
        """
        try:
            # The client library's ping overtakes what lies in its buffer; a second does not.
            await self.client.flush(timeout=int(PUBLISH_SECONDS))
            await self.client.flush(timeout=int(PUBLISH_SECONDS))
        except (NatsError, TimeoutError) as problem:
            raise Unreachable(f"the bus is down: {problem}") from problem

    async def subscribe(
        self, address: str, on_message: Callable[[Msg], Awaitable[None]], queue: str
    ) -> NatsSubscription:
        """Receive what is published on a subject; with `queue` one of the group does."""
        try:
            return await self.client.subscribe(  # pyright: ignore[reportUnknownMemberType]
                address,
                queue=queue,
                cb=on_message,
                pending_msgs_limit=PENDING_MESSAGES,
                pending_bytes_limit=PENDING_BYTES,
            )
        except NatsError as problem:
            raise Unreachable(f"the bus is down: {problem}", subject=address) from problem

    async def open(self) -> None:
        """Connect; raises what `Bus.connect` does."""
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
            problem = self.client.last_error
            await self.client.close()
        if self._refused.is_set():
            raise Denied(f"NATS at {where} refused user {self._settings.user!r} or its password")
        raise Unreachable(
            f"no NATS server answered at {where}: {str(problem) or type(problem).__name__}"
        ) from problem

    async def drain(self) -> None:
        """Send what is to be sent, and close."""
        try:
            async with asyncio.timeout(FINISH_SECONDS + 1):
                await self.client.drain()
        except (NatsError, TimeoutError, OSError):
            with contextlib.suppress(OSError):  # what it would still send has nowhere to go
                await self.client.close()

    async def _connect(self) -> Exception | None:
        try:
            await self.client.connect(  # pyright: ignore[reportUnknownMemberType]
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
            await self.questions.reconnected()
        except NatsError as problem:
            self._log.warning("bus.error", error=str(problem))
        for callback in self.on_reconnect:
            callback()

    async def _disconnected(self) -> None:
        if not self.client.is_closed:
            self._log.warning("bus.disconnected")

    async def _ended(self) -> None:
        self.closed.set()

    async def _failed(self, error: Exception) -> None:
        text = str(error) or type(error).__name__
        if "authorization violation" in text.lower():
            self._refused.set()
        self.questions.refused(text)
        self._log.warning("bus.error", error=text)
