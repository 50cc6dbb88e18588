"""Those that wait for room on a node, in the order in which they were asked for.

When something changes, the first of the line look for room, each before those behind
it. What they cannot use is not kept for them: a request that fits nowhere must not
hold up those behind it, which look by themselves every half second.
"""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Generator
from contextlib import contextmanager
from itertools import count

WOKEN_AT_ONCE = 64
LOOK_SECONDS = 0.5
GATHER_SECONDS = 0.01
"""Changes that come within so short a time wake the line once."""


class Line:
    """The line of one scheduler."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, asyncio.Event]] = []
        self._numbers = count()
        self._gathering: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    @contextmanager
    def place(self, since: float, wake: asyncio.Event) -> Generator[None]:
        """Stand in line while the block runs; `wake` is set when there may be room.

        `since` is when the request came, seconds since the epoch.
        """
        entry = (since, next(self._numbers), wake)
        insort(self._waiting, entry)
        try:
            yield
        finally:
            self._waiting.remove(entry)

    def notify(self) -> None:
        """Say that there may be room."""
        if self._gathering is None and self._waiting:
            loop = asyncio.get_running_loop()
            self._gathering = loop.call_later(GATHER_SECONDS, self._wake)

    def _wake(self) -> None:
        self._gathering = None
        for _, _, wake in self._waiting[:WOKEN_AT_ONCE]:
            wake.set()


async def wait(wake: asyncio.Event, within: float) -> None:
    """Wait until `wake` is set, at most so long."""
    try:
        async with asyncio.timeout(within):
            await wake.wait()
    except TimeoutError:
        return
