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
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path
from typing import Literal

from sandfleet_common.errors import NoCapacity, Unreachable
from sandfleet_common.logs import Logger
from sandfleet_node.cgroups import Cgroups
from sandfleet_node.places import Places

from . import guard
from .accounting import Accounting
from .loop import until_free
from .mounts import mounted_in
from .pool import Pool, PoolError

BROKEN = "the pool that its files were in broke: the disk below it was full or failed"
Cap = Literal["auto", "pool", "accounting"]
_FORGET_EVERY = 30
_FEW = 16
_FREE_SECONDS = 10.0
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
        self._folder = places.pools.resolve()
        self._cap: Cap = cap
        self._pool_bytes = pool_bytes
        self._reserve_bytes = reserve_bytes
        self._on_broken = on_broken
        self._threads = threads
        self._log = log
        self._lock = threading.Lock()
        self._pool: Pool | None = None
        """The one that new sandboxes go to."""
        self._retired: list[Pool] = []
        self._homes: dict[str, tuple[Pool, int]] = {}
        """Which pool each sandbox is in, and the id of its subvolume there."""
        self._counters: dict[str, tuple[float, dict[int, int]]] = {}
        self._number = 0
        self._launcher_pid = 0
        self.accounting = Accounting(cgroups, on_over, log)

    # ------------------------------------------------------------- sandboxes

    def add(self, sandbox_id: str, limit_bytes: int) -> None:
        """Make a place for what a sandbox writes; its directory is there already.

        Raises:
            NoCapacity: the pool is full.
            OSError: it cannot be made.
        """
        pool = self._pool
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
        if sandbox_id not in self._homes:
            self._account(sandbox_id, limit_bytes)

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

    def usage(self, sandbox_ids: Sequence[str] | None = None) -> dict[str, int]:
        """Return the bytes on disk of each sandbox, or of some, as of a few seconds ago.

        For a few sandboxes the kernel is asked for what it knows now, for many one question
        has all answers, as of its last commit.
        """
        if sandbox_ids is None:
            sandbox_ids = [*self._homes, *self.accounting.usage()]
        found = self.accounting.usage()
        counted: dict[int, dict[int, int]] = {}
        for name in sandbox_ids:
            home = self._homes.get(name)
            if home is not None:
                pool, subvolume = home
                used = pool.used_now(subvolume) if len(sandbox_ids) <= _FEW else None
                if used is None:
                    used = counted.setdefault(id(pool), self._counted(pool)).get(subvolume, 0)
                found[name] = used
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
        pool = self._pool
        return None if pool is None else pool.space().free_bytes

    def keep(self, sandbox_ids: set[str]) -> None:
        """Remove everything of sandboxes other than these."""
        for sandbox_id in self._homes.keys() - sandbox_ids:
            self._log.warning("disk.cleared", sandbox=sandbox_id)
            self.remove(sandbox_id)

    def _pools(self) -> list[Pool]:
        return [*self._retired, *([self._pool] if self._pool is not None else [])]

    # ----------------------------------------------------------------- pools

    async def prepare(self, launcher_pid: int) -> None:
        """Show a launcher the pool: the one it has, the one that is there, or a new one.

        Raises:
            Unreachable: there can be none, and the settings want one.
        """
        self._launcher_pid = launcher_pid
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._threads, self._prepare, launcher_pid)

    def _prepare(self, launcher_pid: int) -> None:
        with self._lock:
            try:
                seen = mounted_in(launcher_pid, self._folder)
                if self._pool is None:
                    self._take_over(seen)
                if self._cap == "accounting":
                    self._retire()
                    return
                if self._pool is None:
                    self._pool = self._make()
                if self._pool.place not in seen:
                    self._pool.attach(launcher_pid)
            except (PoolError, OSError) as problem:
                self._do_without(problem)

    def _do_without(self, problem: Exception) -> None:
        if self._pool is not None:
            self._pool.close()
            self._pool = None
        if self._cap == "pool":
            raise Unreachable(f"sandboxes have no disk: {problem}") from None
        self._log.warning("disk.no_pool", error=str(problem), instead="accounting")

    def _take_over(self, seen: dict[Path, str]) -> None:
        """Take on what an earlier service had mounted, and remove images that nobody uses."""
        for image in sorted(self._folder.glob("*.img"), key=_number_of):
            place = image.with_suffix("")
            self._number = max(self._number, _number_of(image))
            if place not in seen:
                image.unlink()
                with contextlib.suppress(OSError):
                    place.rmdir()
                continue
            pool = Pool.take_over(image, place, seen[place])
            self._homes |= {name: (pool, number) for name, number in pool.sandboxes().items()}
            self._retire()
            self._pool = pool
            self._log.info("disk.pool_adopted", image=str(image))

    def _retire(self) -> None:
        """Give the pool no new sandboxes."""
        if self._pool is not None:
            self._retired.append(self._pool)
            self._pool = None

    def _make(self) -> Pool:
        self._number += 1
        image = self._folder / f"{self._number}.img"
        disk = os.statvfs(self._folder)
        size = self._pool_bytes or disk.f_blocks * disk.f_frsize
        pool = Pool.make(image, image.with_suffix(""), size)
        pool.bound(self._bound_now(pool))
        self._log.info("disk.pool_made", image=str(image), size_bytes=size, device=pool.device)
        return pool

    # ------------------------------------------------------------- watching

    async def run(self) -> None:
        """Look after the pool until cancelled."""
        loop = asyncio.get_running_loop()
        looks = 0
        while True:
            looks += 1
            pause = await loop.run_in_executor(self._threads, self._look, looks)
            await asyncio.sleep(pause)
            broken = self._pool
            if broken is not None and broken.is_broken():
                await loop.run_in_executor(self._threads, self._replace, broken)
                lost = [name for name, (pool, _) in self._homes.items() if pool is broken]
                self._on_broken(lost, BROKEN)

    def _look(self, looks: int) -> float:
        """Bound the pool by what is free below it; return when to look again."""
        pool, free = self._pool, self._disk_free()
        if pool is None:
            return guard.CALM_SECONDS
        try:
            limit = self._bound_now(pool)
            if guard.is_worth_setting(limit, pool.limit_bytes, self._reserve_bytes):
                pool.bound(limit)
            if looks % _FORGET_EVERY == 0:
                pool.forget_freed()
                self._drop_retired()
        except OSError as problem:
            if not pool.is_broken():
                self._log.warning("disk.unbounded", error=str(problem))
        return guard.pause(free, self._reserve_bytes)

    def _drop_retired(self) -> None:
        """Give up older pools whose sandboxes have all gone."""
        used = {id(pool) for pool, _ in list(self._homes.values())}
        for pool in [pool for pool in self._retired if id(pool) not in used]:
            pool.detach(self._launcher_pid)
            pool.discard()
            self._retired.remove(pool)

    def _replace(self, broken: Pool) -> None:
        """Make a new pool in the place of a broken one."""
        with self._lock:
            self._log.error("disk.pool_broke", image=str(broken.image))
            self._retire()
            # No name any more: what it takes is free as soon as its last sandbox has gone.
            broken.image.unlink(missing_ok=True)
            try:
                self._pool = self._make()
                self._pool.attach(self._launcher_pid)
            except (PoolError, OSError) as problem:
                self._do_without(problem)

    def _bound_now(self, pool: Pool) -> int:
        return guard.bound(pool.space().used_bytes, self._disk_free(), self._reserve_bytes)

    def _disk_free(self) -> int:
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize

    def close(self) -> None:
        """Let go of everything; the launcher keeps what its sandboxes use."""
        for pool in self._pools():
            pool.close()
        self._pool, self._retired = None, []

    def discard(self) -> None:
        """Remove everything: no sandbox and no launcher is left."""
        pools = self._pools()
        for pool in pools:
            pool.discard()
        for image in until_free([pool.image for pool in pools], _FREE_SECONDS):
            self._log.warning("disk.device_left", image=str(image))
        self._pool, self._retired = None, []
        self._homes.clear()


def _number_of(image: Path) -> int:
    return int(image.stem) if image.stem.isdigit() else 0
