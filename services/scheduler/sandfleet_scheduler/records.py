"""Records that nobody waits for, written many at a time."""

from __future__ import annotations

import asyncio

from sandfleet_common.errors import Unreachable
from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxInfo
from sandfleet_common.store import Store

_QUEUE = 20_000
_AT_ONCE = 1000


class Recorder:
    """Writes sandboxes' records behind the requests that cause them.

    These say that a sandbox is being placed or was rejected: news, not truth, which
    is the node's. So when Redis is down, or the queue full, they are dropped.
    """

    def __init__(self, store: Store, log: Logger) -> None:
        self._store = store
        self._log = log
        self._queue: asyncio.Queue[SandboxInfo] = asyncio.Queue(_QUEUE)
        self._dropped = 0

    def put(self, info: SandboxInfo) -> None:
        """Have a record written soon."""
        try:
            self._queue.put_nowait(info)
        except asyncio.QueueFull:
            self._dropped += 1

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            batch = [await self._queue.get()]
            while not self._queue.empty() and len(batch) < _AT_ONCE:
                batch.append(self._queue.get_nowait())
            try:
                await self._store.save(batch)
            except Unreachable:
                self._dropped += len(batch)
            if self._dropped:
                self._log.warning("records.dropped", count=self._dropped)
                self._dropped = 0
