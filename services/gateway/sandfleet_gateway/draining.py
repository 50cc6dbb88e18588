"""The end of a replica, as those see it who would hold a connection for long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager


class Draining:
    """Whether this replica is on its way out; ends long waits early when it is."""

    def __init__(self) -> None:
        self._begun = asyncio.Event()
        self._waits: set[asyncio.Timeout] = set()

    @property
    def is_begun(self) -> bool:
        """Whether nothing new is to be started here."""
        return self._begun.is_set()

    def begin(self) -> None:
        """End all waits now, and those to come at once."""
        self._begun.set()
        now = asyncio.get_running_loop().time()
        for wait in self._waits:
            if not wait.expired():
                wait.reschedule(now)

    async def wait(self) -> None:
        """Wait until it begins."""
        await self._begun.wait()

    @asynccontextmanager
    async def patience(self, seconds: float) -> AsyncGenerator[None]:
        """Let the block take so long, or until draining begins; then raises TimeoutError."""
        async with asyncio.timeout(0 if self.is_begun else seconds) as wait:
            self._waits.add(wait)
            try:
                yield
            finally:
                self._waits.discard(wait)
