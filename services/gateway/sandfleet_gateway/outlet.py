"""What waits to be written to one session's socket.

Channels take turns, a message each, so that a loud command does not keep the
others waiting. Output is bounded by the channels' windows; `has_room` bounds the
rest, the answers to what a client sends without reading.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

ANSWERS_MAX = 256
"""Answers that may wait; then the session reads nothing more until some are written."""


@dataclass(frozen=True, slots=True)
class Item:
    """One message of a channel."""

    data: str | bytes
    on_sent: Callable[[], None] | None = None
    """Called when it is with the connection. Answers have none."""
    on_dropped: Callable[[], None] | None = None
    """Called when it never will be."""

    def drop(self) -> None:
        """Note that it will not be written."""
        if self.on_dropped is not None:
            self.on_dropped()


class Outlet:
    """Lanes of messages, one for each channel, that take turns."""

    def __init__(self) -> None:
        self._lanes: dict[int, deque[Item]] = {}
        self._turn: deque[int] = deque()
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._answers = 0

    def put(self, channel: int, item: Item) -> None:
        """Add a message at the end of a channel's lane."""
        lane = self._lanes.get(channel)
        if lane is None:
            lane = self._lanes[channel] = deque()
            self._turn.append(channel)
        lane.append(item)
        if item.on_sent is None:
            self._count(1)
        self._filled.set()

    def forget(self, channel: int) -> None:
        """Drop the output that waits in a channel's lane; answers stay."""
        lane = self._lanes.get(channel)
        if lane is None:
            return
        items = list(lane)
        lane.clear()
        for item in items:
            if item.on_sent is None:
                lane.append(item)
            else:
                item.drop()

    def forget_all(self) -> None:
        """Drop all output: the connection is gone."""
        for channel in list(self._lanes):
            self.forget(channel)

    async def has_room(self) -> None:
        """Wait until not too many answers wait."""
        await self._room.wait()

    async def run(self, send: Callable[[str | bytes], Awaitable[None]]) -> None:
        """Write for ever."""
        while True:
            item = self._next()
            if item is None:
                self._filled.clear()
                await self._filled.wait()
                continue
            await send(item.data)
            if item.on_sent is None:
                self._count(-1)
            else:
                item.on_sent()

    def _next(self) -> Item | None:
        while self._turn:
            channel = self._turn.popleft()
            lane = self._lanes[channel]
            item = lane.popleft() if lane else None
            if lane:
                self._turn.append(channel)
            else:
                del self._lanes[channel]
            if item is not None:
                return item
        return None

    def _count(self, change: int) -> None:
        self._answers += change
        if self._answers < ANSWERS_MAX:
            self._room.set()
        else:
            self._room.clear()
