"""The memory of one sandbox as a control group: how much, whose, and how to take all of it."""

from __future__ import annotations

import errno
import os
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .kernelfiles import parse_flat
from .processmemory import Range, Stopped, fetch, page_out, ranges

_SLICE_BYTES = 16 * 1024**2
_ANONYMOUS_ONLY = "200"
"""The swappiness at which files are left alone."""
_WORTH_BYTES = 256 * 1024
"""Less than this is not worth another try."""


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """One sandbox's group of the memory controller. What has gone counts as empty."""

    directory: str
    is_v2: bool

    def usage(self) -> int:
        """Return how many bytes of memory it holds, page cache included."""
        return self._number("memory.current" if self.is_v2 else "memory.usage_in_bytes")

    def swapped(self) -> int:
        """Return how many bytes of it are in swap."""
        if self.is_v2:
            return self._number("memory.swap.current")
        try:
            found = parse_flat(Path(self.directory, "memory.stat").read_text())
        except OSError:
            return 0
        return found.get("total_swap", found.get("swap", 0))

    def pids(self) -> list[int]:
        """Return its processes, in the groups below it too."""
        found: list[int] = []
        for where, _, names in os.walk(self.directory):
            if "cgroup.procs" in names:
                try:
                    found += map(int, Path(where, "cgroup.procs").read_text().split())
                except OSError:
                    continue
        return found

    @contextmanager
    def swappable(self) -> Generator[None]:
        """Allow it to swap while the block runs.

        In v2 a sandbox may swap only then: one that hits its limit shall not. In v1 nothing
        needs to change, its limit of memory and swap together is no higher than that of memory.
        """
        self.allow_swap(True)
        try:
            yield
        finally:
            self.allow_swap(False)

    def allow_swap(self, allowed: bool) -> None:
        """Let it swap from now on, or not; what is in swap stays there."""
        if self.is_v2:
            self._write("memory.swap.max", "max" if allowed else "0")

    def empty(self, stopped: Stopped) -> None:
        """Have the kernel take all that it can."""
        if not self.is_v2:
            if not stopped():
                self._write("memory.force_empty", "0")
            return
        before = self.usage()
        while before > _WORTH_BYTES and not stopped():
            self._write("memory.reclaim", str(min(before, _SLICE_BYTES)))
            now = self.usage()
            if before - now < _WORTH_BYTES:
                return
            before = now

    def trim(self, count: int, stopped: Stopped) -> None:
        """Take so many bytes of it, what was paged out before all else, no files if possible.

        Paged-out memory stays a group's own until the kernel looks for memory in that group.
        In v1 the only way to have it do so, short of taking everything, is to lower the limit
        for a moment; `restore` mends what a service that was killed then has left.
        """
        limit, taste = self._number("memory.limit_in_bytes"), self._number("memory.swappiness")
        left = count
        try:
            if not self.is_v2:
                self._write("memory.swappiness", _ANONYMOUS_ONLY)
            while left > _WORTH_BYTES and not stopped():
                before = self.usage()
                self._shrink(before, min(left, _SLICE_BYTES), limit)
                if before - self.usage() < _WORTH_BYTES:
                    return
                left -= _SLICE_BYTES
        finally:
            if not self.is_v2:
                self._write("memory.swappiness", str(taste))

    def _shrink(self, usage: int, count: int, limit: int) -> None:
        if self.is_v2:
            if not self._write("memory.reclaim", f"{count} swappiness={_ANONYMOUS_ONLY}"):
                self._write("memory.reclaim", str(count))
            return
        try:
            self._write("memory.limit_in_bytes", str(max(0, usage - count)))
        finally:
            self._write("memory.limit_in_bytes", str(limit))

    def restore(self, limit: int) -> None:
        """Set what this class changes for a moment to what it is otherwise."""
        self.allow_swap(False)
        if not self.is_v2:
            self._write("memory.limit_in_bytes", str(limit))
            above = MemoryGroup(str(Path(self.directory).parent), is_v2=False)
            self._write("memory.swappiness", str(above._number("memory.swappiness")))

    def _number(self, name: str) -> int:
        try:
            return int(Path(self.directory, name).read_text())
        except (OSError, ValueError):
            return 0

    def _write(self, name: str, value: str) -> bool:
        """Write a file of the group; False if the kernel took it for nonsense."""
        try:
            handle = os.open(f"{self.directory}/{name}", os.O_WRONLY | os.O_CLOEXEC)
        except OSError:
            return True  # it has gone, or this kernel has no such file
        try:
            os.write(handle, value.encode())
        except OSError as problem:
            if problem.errno == errno.EINVAL:
                return False
            if problem.errno not in (errno.EAGAIN, errno.EBUSY, errno.EINTR, errno.ENODEV):
                raise
        finally:
            os.close(handle)
        return True


def give_back(group: MemoryGroup, stopped: Stopped) -> int:
    """Take the memory of a sandbox that stands still, and return how many bytes came back.

    Its processes' own pages first, in slices between which `stopped` is asked, then what
    is left, files and what several processes share. To be called in a thread.
    """
    before = group.usage()
    with group.swappable():
        for pid in group.pids():
            if stopped():
                break
            page_out(pid, ranges(pid, with_amounts=False), stopped)
        group.empty(stopped)
    return max(0, before - group.usage())


def prefetch(group: MemoryGroup, first: Iterable[int], limit_bytes: int, stopped: Stopped) -> int:
    """Begin to read from swap what a sandbox that runs again will miss; return how many bytes.

    The processes in `first` come before the others, and small ranges before large ones: what
    every step needs is there early. To be called in a thread.
    """
    left = limit_bytes
    pids = [*first, *group.pids()]
    for pid in dict.fromkeys(pids):
        if left <= 0 or stopped():
            break
        swapped = [each for each in ranges(pid, with_amounts=True) if each.swapped]
        wanted: list[Range] = []
        for each in sorted(swapped, key=lambda one: one.swapped):
            if left < each.swapped:
                break
            left -= each.swapped
            wanted.append(each)
        fetch(pid, wanted, stopped)
    return limit_bytes - left
