"""Alerts on their way: to JetStream and to Redis, each until it has them."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from sandfleet_common.errors import Unreachable
from sandfleet_common.logs import Logger
from sandfleet_common.messages import Alert

BATCH = 100
RETRY_SECONDS = 1.0


class Outbox:
    """Alerts that one place does not hold yet, in order; the oldest go when too many wait."""

    def __init__(
        self,
        name: str,
        deliver: Callable[[Sequence[Alert]], Awaitable[None]],
        *,
        limit: int,
        log: Logger,
    ) -> None:
        self._name = name
        self._deliver = deliver
        self._limit = limit
        self._log = log
        self._waiting: deque[Alert] = deque()
        self._changed = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.dropped = 0
        """Alerts given up since the start."""

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, alerts: Sequence[Alert]) -> None:
        """Take alerts to deliver."""
        for alert in alerts:
            if len(self._waiting) >= self._limit:
                self._waiting.popleft()
                self.dropped += 1
            self._waiting.append(alert)
        if self._waiting:
            self._empty.clear()
            self._changed.set()

    async def run(self) -> None:
        """Deliver until cancelled; what failed is tried again."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
                try:
                    await self._deliver(batch)
                except Unreachable as problem:
                    self._waiting.extendleft(reversed(batch))
                    self._log.warning(
                        "outbox.waits", to=self._name, alerts=len(self), error=str(problem)
                    )
                    await asyncio.sleep(RETRY_SECONDS * (0.5 + random.random()))
            self._empty.set()

    async def drained(self) -> None:
        """Wait until nothing waits."""
        await self._empty.wait()
