"""Which pools a node has: the one for new sandboxes, and older ones that some still live in."""

from __future__ import annotations

import contextlib
import os
import threading
from pathlib import Path
from typing import Literal

from sandfleet_common.errors import Unreachable
from sandfleet_common.logs import Logger

from . import guard
from .loop import until_free
from .mounts import detach_in, mounted_in
from .pool import Pool, PoolError

Cap = Literal["auto", "pool", "accounting"]
_FREE_SECONDS = 10.0


class Pools:
    """Makes, finds, shows, bounds and removes them. Its methods block; call them in a thread."""

    def __init__(
        self, folder: Path, cap: Cap, pool_bytes: int, reserve_bytes: int, log: Logger
    ) -> None:
        self._folder = folder.resolve()
        self._cap: Cap = cap
        self._pool_bytes = pool_bytes
        self._reserve_bytes = reserve_bytes
        self._log = log
        self._lock = threading.Lock()
        self._launcher_pid = 0
        self._number = 0
        self._retired: list[Pool] = []
        self.current: Pool | None = None
        """The one that new sandboxes go to."""
        self.is_remaking = False
        """The one before broke, and there is no other yet."""

    def all(self) -> list[Pool]:
        """Return every pool."""
        return [*self._retired, *([self.current] if self.current is not None else [])]

    def prepare(self, launcher_pid: int) -> list[Pool]:
        """Show a launcher the pool: the one it has, the one that is there, or a new one.

        Returns:
            Pools of an earlier service, with sandboxes in them.

        Raises:
            Unreachable: there can be none, and the settings want one.
        """
        with self._lock:
            self._launcher_pid = launcher_pid
            found: list[Pool] = []
            try:
                seen = mounted_in(launcher_pid, self._folder)
                if self.current is None:
                    found = self._take_over(seen)
                if self._cap == "accounting":
                    self._retire()
                    return found
                if self.current is None:
                    self.current = self._make()
                if self.current.place not in seen:
                    self.current.attach(launcher_pid)
                self.is_remaking = False
            except (PoolError, OSError) as problem:
                self._do_without(problem)
            return found

    def _do_without(self, problem: Exception) -> None:
        if self._cap == "pool":
            raise Unreachable(f"sandboxes have no disk: {problem}") from None
        self._retire()
        self._log.warning("disk.no_pool", error=str(problem), instead="accounting")

    def _take_over(self, seen: dict[Path, str]) -> list[Pool]:
        """Take on what an earlier service had mounted, and remove images that nobody uses."""
        found: list[Pool] = []
        images = sorted(self._folder.glob("*.img"), key=_number_of)
        for place in seen.keys() - {image.with_suffix("") for image in images}:
            # Of a pool that broke: its image was removed, and nobody knows it any more.
            with contextlib.suppress(OSError):
                detach_in(self._launcher_pid, place)
        for image in images:
            place = image.with_suffix("")
            self._number = max(self._number, _number_of(image))
            if place not in seen:
                image.unlink()
                with contextlib.suppress(OSError):
                    place.rmdir()
                continue
            self._retire()
            self.current = Pool.take_over(image, place, seen[place])
            found.append(self.current)
            self._log.info("disk.pool_adopted", image=str(image))
        return found

    def _retire(self) -> None:
        """Give the pool no new sandboxes."""
        if self.current is not None:
            self._retired.append(self.current)
            self.current = None

    def _make(self) -> Pool:
        self._number += 1
        image = self._folder / f"{self._number}.img"
        disk = os.statvfs(self._folder)
        size = self._pool_bytes or disk.f_blocks * disk.f_frsize
        pool = Pool.make(image, image.with_suffix(""), size)
        pool.bound(self._bound_now(pool))
        self._log.info("disk.pool_made", image=str(image), size_bytes=size, device=pool.device)
        return pool

    def remake(self) -> None:
        """Make a new pool in the place of a broken one, if that is possible already."""
        with self._lock:
            if self.current is not None:
                self.is_remaking = True
                # No name any more: what it takes is free when its last sandbox has gone.
                self.current.image.unlink(missing_ok=True)
                self._retire()
            try:
                pool = self._make()
            except (PoolError, OSError) as problem:
                self._log.warning("disk.no_pool", error=str(problem), instead="trying again")
                return
            try:
                pool.attach(self._launcher_pid)
            except OSError:
                pool.discard()  # the launcher has gone; its successor is shown another one
                return
            self.current, self.is_remaking = pool, False

    def look(self) -> float:
        """Bound the pool by what is free below it; return when to look again."""
        pool, free = self.current, self._disk_free()
        if pool is None:
            return guard.CALM_SECONDS
        try:
            limit = self._bound_now(pool)
            if guard.is_worth_setting(limit, pool.limit_bytes, self._reserve_bytes):
                pool.bound(limit)
        except OSError as problem:
            if not pool.is_broken():
                self._log.warning("disk.unbounded", error=str(problem))
        return guard.pause(free, self._reserve_bytes)

    def tidy(self, used: set[int]) -> None:
        """Drop counters that nobody needs, and older pools other than those with these ids."""
        if self.current is not None:
            self.current.forget_freed()
        for pool in [pool for pool in self._retired if id(pool) not in used]:
            pool.detach(self._launcher_pid)
            pool.discard()
            self._retired.remove(pool)

    def _bound_now(self, pool: Pool) -> int:
        return guard.bound(pool.space().used_bytes, self._disk_free(), self._reserve_bytes)

    def _disk_free(self) -> int:
        disk = os.statvfs(self._folder)
        return disk.f_bavail * disk.f_frsize

    def close(self) -> None:
        """Let go of everything; the launcher keeps what its sandboxes use."""
        for pool in self.all():
            pool.close()
        self.current, self._retired = None, []

    def discard(self) -> None:
        """Remove everything: no sandbox and no launcher is left."""
        pools = self.all()
        self.current, self._retired = None, []
        for pool in pools:
            pool.discard()
        for image in until_free([pool.image for pool in pools], _FREE_SECONDS):
            self._log.warning("disk.device_left", image=str(image))


def _number_of(image: Path) -> int:
    return int(image.stem) if image.stem.isdigit() else 0
