"""Makes parts of sandboxes ahead of need: id ranges with namespaces, control groups, a directory.

Everything here is named after its range. What a claim does not find it makes itself, so
that nothing depends on the stock but time; what a service leaves is taken over by the
next one or removed.
"""

from __future__ import annotations

import asyncio
import shutil
from concurrent.futures import Executor
from pathlib import Path

from sandfleet_common.errors import Unreachable
from sandfleet_common.logs import Logger

from .cgroups import Cgroups
from .config import IDS_EACH
from .core import Load
from .keeper import Keeper
from .launcher import LauncherRefused
from .metrics import NodeMetrics
from .places import Places
from .stock import Part, Stock, is_quiet, sort_found
from .uids import IdRanges

_LOOK_AGAIN_SECONDS = 0.05
_FAILED_SECONDS = 5.0


class Storeroom:
    """The stock of one node. `run` fills it; `claim` and `move_in` use it."""

    def __init__(
        self,
        limit: int,
        keeper: Keeper,
        cgroups: Cgroups,
        places: Places,
        ranges: IdRanges,
        load: Load,
        pool: Executor,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._limit = limit
        self._stock = Stock(limit)
        self._keeper = keeper
        self._cgroups = cgroups
        self._places = places
        self._ranges = ranges
        self._load = load
        self._pool = pool
        self._metrics = metrics
        self._log = log
        self._more = asyncio.Event()
        self._more.set()
        self._busy = asyncio.Lock()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._stock)

    def claim(self) -> Part:
        """Return a range for one sandbox, with its parts when some are ready.

        Raises:
            LookupError: there is no range left.
        """
        uid = self._stock.claim()
        self._metrics.parts_claimed.labels("miss" if uid is None else "hit").inc()
        self._metrics.parts_ready.set(len(self._stock))
        self._more.set()
        if uid is None:
            return Part(self._ranges.take(), is_ready=False)
        return Part(uid, is_ready=True)

    def move_in(self, part: Part, sandbox_id: str) -> None:
        """Give a sandbox the directory of its part, or a new one; in a thread.

        Its groups follow when `Cgroups.create` is told the part's name.

        Raises:
            OSError: it cannot be made.
        """
        directory = self._places.sandbox(sandbox_id)
        if part.is_ready:
            try:
                Path(self._places.ready_for(part.uid)).rename(directory)
            except FileNotFoundError:
                pass
            else:
                return
        Path(directory).mkdir(0o700)

    def drop(self, part: Part) -> None:
        """Remove what a creation that failed has not moved of its part; in a thread."""
        if part.is_ready:
            self._clear(part.uid)

    async def adopt(self, prepared: list[int]) -> None:
        """Take over what an earlier service made, once it is known which ranges sandboxes have.

        Args:
            prepared: first ids of the ranges that the launcher has namespaces for.
        """
        made = {*self._cgroups.ready(), *self._places.ready_ranges()}
        keep, drop = sort_found({*made, *prepared}, self._limit, self._ranges.is_free)
        for uid in drop:
            await self._in_thread(uid, is_wanted=False)
            if uid in prepared and (launcher := self._keeper.launcher) is not None:
                launcher.unprepare(uid, IDS_EACH)
        for uid in keep:
            self._ranges.adopt(uid)
            await self._make(uid)
        if keep or drop:
            self._log.info("parts.adopted", kept=len(keep), dropped=len(drop))

    async def refresh(self, prepared: list[int]) -> None:
        """Have a new launcher make the namespaces again that died with the old one."""
        try:
            for uid in self._stock.without(prepared):
                await self._keeper.need().prepare(uid, IDS_EACH)
        except (LauncherRefused, Unreachable) as problem:
            self._log.warning("parts.not_refreshed", error=str(problem))

    async def run(self) -> None:
        """Keep the stock full while the node has nothing better to do, until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._stock.lacks() and not self._is_closed:
                if not is_quiet(self._load.starting, is_open=self._is_open()):
                    await asyncio.sleep(_LOOK_AGAIN_SECONDS)
                elif not await self._make_one():
                    await asyncio.sleep(_FAILED_SECONDS)

    async def empty(self) -> None:
        """Remove the stock, and make nothing any more."""
        self._is_closed = True
        async with self._busy:
            for uid in self._stock.empty():
                await self._in_thread(uid, is_wanted=False)
                self._ranges.free(uid)
        self._metrics.parts_ready.set(0)

    def _is_open(self) -> bool:
        return self._load.broken is None and not self._load.is_draining

    async def _make_one(self) -> bool:
        try:
            uid = self._ranges.take()
        except LookupError:
            return False
        return await self._make(uid)

    async def _make(self, uid: int) -> bool:
        """Make the parts of a range that is taken for the stock; give it back if that fails."""
        async with self._busy:
            if self._is_closed:
                self._ranges.free(uid)
                return False
            try:
                preparing = self._keeper.need().prepare(uid, IDS_EACH)
                # Both are waited for: what a thread still makes nobody could clear away.
                done = await asyncio.gather(
                    preparing, self._in_thread(uid, is_wanted=True), return_exceptions=True
                )
                for problem in done:
                    if problem is not None:
                        raise problem
            except (LauncherRefused, Unreachable, OSError) as problem:
                self._log.warning("parts.not_made", uid=uid, error=str(problem))
                await self._in_thread(uid, is_wanted=False)
                self._ranges.free(uid)
                return False
            self._stock.add(uid)
        self._metrics.parts_ready.set(len(self._stock))
        return True

    async def _in_thread(self, uid: int, *, is_wanted: bool) -> None:
        loop = asyncio.get_running_loop()
        work = self._lay_out if is_wanted else self._clear
        await loop.run_in_executor(self._pool, work, uid)

    def _lay_out(self, uid: int) -> None:
        self._cgroups.make_ready(uid)
        directory = Path(self._places.ready_for(uid))
        directory.mkdir(0o700, exist_ok=True)
        (directory / "spec.json").touch(0o600)

    def _clear(self, uid: int) -> None:
        self._cgroups.remove_ready(uid)
        shutil.rmtree(self._places.ready_for(uid), ignore_errors=True)
