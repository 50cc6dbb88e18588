"""What the node writes to Redis: the newest record of each sandbox, many in one round trip.

A write never holds up a sandbox. While Redis is away records wait here, one for each
sandbox, and are written when it is back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable

from sandfleet_common.bus import reconnect_delay
from sandfleet_common.errors import Unreachable
from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxInfo
from sandfleet_common.states import TERMINAL
from sandfleet_common.store import Store

_BATCH = 256
_GATHER_SECONDS = 0.02
"""How long records gather before they are written, unless somebody waits for them."""
_WAITING_MAX = 100_000
SETTLE_SECONDS = 0.5


class Records:
    """A coalescing writer. `run` does the writing."""

    def __init__(
        self, store: Store, on_outdated: Callable[[list[SandboxInfo]], None], log: Logger
    ) -> None:
        self._store = store
        self._on_outdated = on_outdated
        self._log = log
        self._waiting: dict[str, SandboxInfo] = {}
        self._more = asyncio.Event()
        self._hurry = asyncio.Event()
        self._busy = asyncio.Lock()
        self._written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when what waits now has been tried."""
        self._writing: asyncio.Future[None] | None = None
        self.is_down = False
        self.lost = 0
        """Records given up because too many were waiting."""

    def __len__(self) -> int:
        return len(self._waiting)

    def save(self, info: SandboxInfo) -> None:
        """Have a record written soon."""
        self._waiting[info.sandbox_id] = info
        if len(self._waiting) > _WAITING_MAX:
            self._waiting.pop(next(iter(self._waiting)))
            self.lost += 1
        self._more.set()

    async def settled(self) -> None:
        """Wait a moment until what was saved is written, so that whoever asks Redis finds it."""
        self._hurry.set()
        attempt = self._written if self._waiting else self._writing
        if attempt is not None and not self.is_down:
            await asyncio.wait({attempt}, timeout=SETTLE_SECONDS)

    async def flush(self, seconds: float) -> None:
        """Wait until nothing is waiting, at most so long."""
        self._hurry.set()
        deadline = asyncio.get_running_loop().time() + seconds
        while (self._waiting or self._writing) and not self.is_down:
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0:
                return
            await asyncio.wait({self._writing or self._written}, timeout=left)

    async def finish(self, seconds: float) -> None:
        """Write what waits, at most so long, and nothing after that."""
        await self.flush(seconds)
        try:
            async with asyncio.timeout(seconds):
                await self._busy.acquire()
        except TimeoutError:
            self._log.warning("records.unfinished", waiting=len(self._waiting))

    async def run(self) -> None:
        """Write until cancelled."""
        tries = 0
        while True:
            await self._more.wait()
            self._more.clear()
            try:
                async with asyncio.timeout(_GATHER_SECONDS):
                    await self._hurry.wait()
            except TimeoutError:
                pass
            self._hurry.clear()
            while self._waiting:
                try:
                    async with self._busy:
                        await self._write_some()
                    tries, self.is_down = 0, False
                except Unreachable as problem:
                    if not self.is_down:
                        self._log.warning("records.waiting", error=problem.message)
                    self.is_down = True
                    tries += 1
                    await asyncio.sleep(reconnect_delay(tries, random.random()))

    async def _write_some(self) -> None:
        batch = dict(list(self._waiting.items())[:_BATCH])
        for sandbox_id in batch:
            del self._waiting[sandbox_id]
        attempt = self._writing = self._written
        self._written = asyncio.get_running_loop().create_future()
        try:
            infos = list(batch.values())
            written = await self._store.save(infos)
        except BaseException:
            self._waiting = {**batch, **self._waiting}
            raise
        finally:
            self._writing = None
            attempt.set_result(None)
        outdated = [
            info
            for info, was_written in zip(infos, written, strict=True)
            if not was_written and info.state not in TERMINAL
        ]
        if outdated:
            self._on_outdated(outdated)
