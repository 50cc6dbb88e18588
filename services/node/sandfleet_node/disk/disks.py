"""The writable layers of a node's sandboxes: where they are, what they take, what bounds them.

In a pool (`pool.py`) the kernel refuses what is over a sandbox's cap, exactly and at once.
Where there can be no pool, sandboxes write into their own directories, and one that is
found over its cap is ended (`accounting.py`).
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor

from sandfleet_common.errors import NoCapacity
from sandfleet_common.logs import Logger
from sandfleet_node.cgroups import Cgroups
from sandfleet_node.places import Places

from .accounting import Accounting
from .pool import Pool
from .pools import Cap, Pools
from .stages import CopyStage, PoolStage, Stage, flush

BROKEN = "the pool that its files were in broke: the disk below it was full or failed"
_TIDY_EVERY = 30
_FEW = 16
_COUNTED_SECONDS = 1.0


class Disks:
    """All writable layers of one node. `run` looks after them beside everything else.

    The methods that make and remove block for a tenth of a millisecond and may be called
    from any thread.
    """

    def __init__(
        self,
        places: Places,
        cap: Cap,
        pool_bytes: int,
        reserve_bytes: int,
        cgroups: Cgroups,
        on_over: Callable[[str, str], None],
        on_broken: Callable[[Sequence[str], str], None],
        threads: Executor,
        log: Logger,
    ) -> None:
        """Make one; nothing is mounted until `prepare`.

        Args:
            places: of the node.
            cap: by what means sandboxes are held to their caps.
            pool_bytes: size of a pool's image; 0: that of the disk below it.
            reserve_bytes: of the disk, never given to a pool.
            cgroups: of the node.
            on_over: told which sandbox has to end, and why.
            on_broken: told which sandboxes' files are lost, and why.
            threads: where what blocks is done.
            log: where to say it.
        """
        self._places = places
        self.pools = Pools(places.pools, cap, pool_bytes, reserve_bytes, log)
        self._on_broken = on_broken
        self._threads = threads
        self._log = log
        self._homes: dict[str, tuple[Pool, int]] = {}
        """Which pool each sandbox is in, and the id of its subvolume there."""
        self._stages: dict[str, tuple[str, PoolStage]] = {}
        """By name: the sandbox each was made of, and what is held."""
        self.held: set[str] = set()
        """Names of stages of an earlier service that are needed still."""
        self._lifted: dict[str, tuple[int, list[PoolStage]]] = {}
        """The caps of sandboxes that share extents with stages, until those are freed."""
        self._counters: dict[str, tuple[float, dict[int, int]]] = {}
        self.accounting = Accounting(cgroups, on_over, log)

    # ------------------------------------------------------------- sandboxes

    def add(self, sandbox_id: str, limit_bytes: int) -> None:
        """Make a place for what a sandbox writes; its directory is there already.

        Raises:
            NoCapacity: the pool is full.
            OSError: it cannot be made.
        """
        pool = self.pools.current
        if self.pools.is_remaking:
            raise NoCapacity("the node's disk pool broke and is being made anew")
        if pool is None:
            self._account(sandbox_id, limit_bytes)
            return
        try:
            self._homes[sandbox_id] = pool, pool.add(sandbox_id, limit_bytes)
        except OSError as problem:
            with contextlib.suppress(OSError):
                pool.remove(sandbox_id, 0)
            if problem.errno in (errno.EDQUOT, errno.ENOSPC, errno.EROFS):
                raise NoCapacity("the node has no disk left for another sandbox") from None
            raise

    def adopt(self, sandbox_id: str, limit_bytes: int) -> None:
        """Go on with a sandbox of an earlier service."""
        home = self._homes.get(sandbox_id)
        if home is None:
            self._account(sandbox_id, limit_bytes)
            return
        if not self.held:
            with contextlib.suppress(OSError):
                home[0].limit(home[1], limit_bytes)  # may have been lifted for a stage

    def _account(self, sandbox_id: str, limit_bytes: int) -> None:
        upper, _ = self.layer(sandbox_id)
        self.accounting.add(sandbox_id, upper, limit_bytes)

    def layer(self, sandbox_id: str) -> tuple[str, str]:
        """Return the paths of a sandbox's upper and work directory, as its launcher sees them."""
        home = self._homes.get(sandbox_id)
        above = (
            self._places.sandbox(sandbox_id) if home is None else f"{home[0].place}/{sandbox_id}"
        )
        return f"{above}/upper", f"{above}/work"

    def file_limit(self, sandbox_id: str, limit_bytes: int) -> int | None:
        """Return how long a single file of a sandbox may grow; None: its pool sees to that."""
        return None if sandbox_id in self._homes else limit_bytes

    def remove(self, sandbox_id: str) -> None:
        """Remove what a sandbox without processes has written; nothing there is no error."""
        self.accounting.remove(sandbox_id)
        home = self._homes.pop(sandbox_id, None)
        if home is None:
            return
        pool, subvolume = home
        try:
            pool.remove(sandbox_id, subvolume)
        except OSError as problem:
            if not pool.is_broken():
                self._log.warning("disk.not_removed", sandbox=sandbox_id, error=str(problem))

    def keep(self, sandbox_ids: set[str]) -> None:
        """Remove everything of sandboxes other than these."""
        for name in self._homes.keys() & self.held:
            pool, subvolume = self._homes.pop(name)
            self._stages[name] = "", PoolStage(pool, name, subvolume)
        for sandbox_id in self._homes.keys() - sandbox_ids:
            self._log.warning("disk.cleared", sandbox=sandbox_id)
            self.remove(sandbox_id)

    # ---------------------------------------------------------------- stages

    def is_pooled(self, sandbox_id: str) -> bool:
        """Return whether a sandbox is in a pool, so that holding its files still costs nothing."""
        return sandbox_id in self._homes

    def flush(self, sandbox_id: str) -> None:
        """Have what a sandbox has written put on disk, so that a stage is made quickly.

        Raises:
            OSError: the disk failed, or the sandbox has gone.
        """
        home = self._homes.get(sandbox_id)
        if home is None:
            return
        root = home[0].open(sandbox_id)
        try:
            flush(root)
        finally:
            os.close(root)

    def stage(
        self,
        sandbox_id: str,
        name: str,
        limit_bytes: int,
        seconds: float,
        is_stopping: Callable[[], bool],
    ) -> Stage:
        """Hold still what a sandbox has written; its processes stand still meanwhile.

        While a stage shares extents with its sandbox, what the sandbox writes anew is counted
        beside them, so that its cap is lifted by as much until the stage is freed.

        Args:
            sandbox_id: which.
            name: of the stage, used once; without a pool a directory for staging.
            limit_bytes: the sandbox's cap.
            seconds: a copy, where there is no pool, may take.
            is_stopping: ends such a copy.

        Raises:
            OSError: the disk is full or failed, or the sandbox has gone.
        """
        home = self._homes.get(sandbox_id)
        if home is None:
            upper, _ = self.layer(sandbox_id)
            return CopyStage.make(upper, self._places.staging / name / "copy", seconds, is_stopping)
        pool, subvolume = home
        used = pool.used_now(subvolume) or limit_bytes
        stage = PoolStage(pool, name, pool.stage(sandbox_id, name))
        self._stages[name] = sandbox_id, stage
        _, before = self._lifted.get(sandbox_id, (0, []))
        self._lifted[sandbox_id] = limit_bytes, [*before, stage]
        with contextlib.suppress(OSError):
            pool.limit(subvolume, limit_bytes + (1 + len(before)) * used)
        return stage

    def hold(self, stage: Stage, name: str) -> Stage:
        """Keep a stage also when this service has gone; the next is told its name, as `held`.

        Raises:
            OSError: the disk failed.
        """
        if isinstance(stage, CopyStage):
            return CopyStage(stage.folder.rename(self._places.forks / name))
        return stage

    def found(self, name: str) -> Stage | None:
        """Return a stage that is held, by its name."""
        if name in self._stages:
            return self._stages[name][1]
        folder = self._places.forks / name
        return CopyStage(folder) if folder.is_dir() else None

    def unstage(self, stage: Stage) -> None:
        """Remove a stage. What it alone holds is freed a little later."""
        if isinstance(stage, PoolStage):
            self._stages.pop(stage.name, None)
        try:
            stage.remove()
        except OSError as problem:
            if not (isinstance(stage, PoolStage) and stage.pool.is_broken()):
                self._log.warning("disk.stage_left", error=str(problem))

    def _lower(self) -> None:
        """Give sandboxes their own caps again whose stages are freed."""
        for sandbox_id, (limit_bytes, stages) in list(self._lifted.items()):
            if any(s.name in self._stages or not s.pool.is_freed(s.subvolume) for s in stages):
                continue
            if self._lifted.pop(sandbox_id)[1] != stages:
                continue
            home = self._homes.get(sandbox_id)
            if home is not None:
                with contextlib.suppress(OSError):
                    home[0].limit(home[1], limit_bytes)

    # ----------------------------------------------------------------- space

    def usage(self, sandbox_ids: Sequence[str] | None = None) -> dict[str, int]:
        """Return the bytes on disk of each sandbox, or of some, as of a few seconds ago.

        For a few sandboxes the kernel is asked for what it knows now, for many one question
        has all answers, as of its last commit.
        """
        found = self.accounting.usage()
        if sandbox_ids is None:
            sandbox_ids = [*self._homes, *found]
        for name in sandbox_ids:
            home = self._homes.get(name)
            if home is not None:
                pool, subvolume = home
                used = pool.used_now(subvolume) if len(sandbox_ids) <= _FEW else None
                found[name] = self._counted(pool).get(subvolume, 0) if used is None else used
        return {name: found[name] for name in sandbox_ids if name in found}

    def _counted(self, pool: Pool) -> dict[int, int]:
        """Return all counters of a pool, read at most once a second."""
        at, counted = self._counters.get(pool.device, (0.0, {}))
        now = time.monotonic()
        if now - at > _COUNTED_SECONDS:
            try:
                counted = pool.used()
            except OSError:
                counted = {}
            self._counters[pool.device] = now, counted
        return counted

    def free_bytes(self) -> int | None:
        """Return what the pool has room for; None: there is no pool, only the disk."""
        pool = self.pools.current
        try:
            return None if pool is None else pool.space().free_bytes
        except OSError:
            return None

    # ----------------------------------------------------------------- pools

    async def prepare(self, launcher_pid: int) -> None:
        """Show a launcher the pool, and find the sandboxes in those that it has already.

        Raises:
            Unreachable: there can be no pool, and the settings want one.
        """
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._prepare, launcher_pid)

    def _prepare(self, launcher_pid: int) -> None:
        for pool in self.pools.prepare(launcher_pid):
            self._homes |= {name: (pool, number) for name, number in pool.sandboxes().items()}

    async def run(self) -> None:
        """Look after the pools until cancelled."""
        loop = asyncio.get_running_loop()
        looks = 0
        while True:
            await asyncio.sleep(await loop.run_in_executor(self._threads, self.pools.look))
            looks += 1
            if self._lifted:
                await loop.run_in_executor(self._threads, self._lower)
            pool = self.pools.current
            if pool is not None and pool.is_broken():
                self._log.error("disk.pool_broke", image=str(pool.image))
                lost = [name for name, (home, _) in list(self._homes.items()) if home is pool]
                await loop.run_in_executor(self._threads, self.pools.remake)
                self._on_broken(lost, BROKEN)
            elif self.pools.is_remaking:
                await loop.run_in_executor(self._threads, self._tidy)
                await loop.run_in_executor(self._threads, self.pools.remake)
            elif looks % _TIDY_EVERY == 0:
                await loop.run_in_executor(self._threads, self._tidy)

    def _tidy(self) -> None:
        used = [pool for pool, _ in list(self._homes.values())]
        used += [stage.pool for _, stage in list(self._stages.values())]
        self.pools.tidy({id(pool) for pool in used})

    def close(self) -> None:
        """Let go of everything; the launcher keeps what its sandboxes use."""
        self.pools.close()

    def discard(self) -> None:
        """Remove everything: no sandbox and no launcher is left."""
        self.pools.discard()
        self._homes.clear()
