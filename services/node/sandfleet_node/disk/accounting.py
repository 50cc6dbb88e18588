"""Where there is no pool: sandboxes are measured again and again, and one over its cap is ended.

Only sandboxes that have used CPU are measured, sooner the closer they are to their cap. One
tree is walked at a time, and for every second of walking the walker rests several.
"""

from __future__ import annotations

import asyncio
import heapq
import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from sandfleet_common.logs import Logger
from sandfleet_common.messages import MIB
from sandfleet_node.cgroups import Cgroups
from sandfleet_node.kernelfiles import parse_flat

from .tree import measure, unlinked

_FASTEST_BYTES_PER_S = 1 << 30
"""No sandbox is thought to write faster than this."""
_SOONEST_SECONDS, _LATEST_SECONDS = 0.25, 10.0
_IDLE_SECONDS = 5.0
_REST = 3.0
"""Seconds of rest for each one of walking."""


def interval(used_bytes: int, limit_bytes: int) -> float:
    """Return after how many seconds a sandbox that took so much could be over its limit."""
    return min(
        _LATEST_SECONDS,
        max(_SOONEST_SECONDS, (limit_bytes - used_bytes) / _FASTEST_BYTES_PER_S),
    )


def over(used_bytes: int, limit_bytes: int) -> str:
    """Say why a sandbox is ended that took more than it may."""
    return (
        f"it wrote more than its disk allows: {used_bytes // MIB} MiB of {limit_bytes // MIB} MiB"
    )


@dataclass(slots=True)
class _Watched:
    upper: str
    limit_bytes: int
    used_bytes: int = 0
    cpu_us: int = -1
    """What it had used when it was measured last; -1: never measured."""
    is_certain: bool = False


class Accounting:
    """Measures and judges. `run` does the work."""

    def __init__(self, cgroups: Cgroups, on_over: Callable[[str, str], None], log: Logger) -> None:
        self._cgroups = cgroups
        self._on_over = on_over
        self._log = log
        self._watched: dict[str, _Watched] = {}
        self._due: list[tuple[float, str]] = []
        self._more = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def __len__(self) -> int:
        return len(self._watched)

    def add(self, sandbox_id: str, upper: str, limit_bytes: int) -> None:
        """Watch a sandbox from now on. From any thread, as `remove` and `usage`."""
        self._watched[sandbox_id] = _Watched(upper, limit_bytes)
        self._loop.call_soon_threadsafe(self._begin, sandbox_id)

    def _begin(self, sandbox_id: str) -> None:
        heapq.heappush(self._due, (time.monotonic() + _SOONEST_SECONDS, sandbox_id))
        self._more.set()

    def remove(self, sandbox_id: str) -> None:
        """Watch a sandbox no more; one that is not watched is no error."""
        self._watched.pop(sandbox_id, None)

    def usage(self) -> dict[str, int]:
        """Return what each sandbox took when it was measured last, by id."""
        return {name: one.used_bytes for name, one in list(self._watched.items())}

    async def run(self) -> None:
        """Measure until cancelled."""
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix="node-disk") as walker:
            while True:
                sandbox_id = await self._next()
                one = self._watched.get(sandbox_id)
                if one is None:
                    continue
                began = time.monotonic()
                is_busy = await loop.run_in_executor(walker, self._measure, sandbox_id, one)
                spent = time.monotonic() - began
                if sandbox_id not in self._watched:
                    continue
                if one.used_bytes > one.limit_bytes:
                    self._on_over(sandbox_id, over(one.used_bytes, one.limit_bytes))
                wait = interval(one.used_bytes, one.limit_bytes) if is_busy else _IDLE_SECONDS
                heapq.heappush(self._due, (time.monotonic() + wait, sandbox_id))
                await asyncio.sleep(min(spent * _REST, 1.0))

    async def _next(self) -> str:
        """Wait until a sandbox is due, and return its id."""
        while True:
            self._more.clear()
            delay = self._due[0][0] - time.monotonic() if self._due else None
            if delay is not None and delay <= 0:
                return heapq.heappop(self._due)[1]
            try:
                async with asyncio.timeout(delay):
                    await self._more.wait()
            except TimeoutError:
                continue

    def _measure(self, sandbox_id: str, one: _Watched) -> bool:
        """Measure a sandbox unless it has done nothing since; return whether it has. In a thread.

        What it does while it is measured counts as done since.
        """
        folder = self._cgroups.v2_dir(sandbox_id)
        cpu_us = _cpu_us(folder)
        if cpu_us == one.cpu_us and one.is_certain:
            return False
        try:
            size = measure(one.upper, one.limit_bytes)
        except OSError:
            return True  # not made yet, or removed already
        held = unlinked(_pids(folder), one.limit_bytes)
        one.used_bytes, one.cpu_us, one.is_certain = size.bytes + held, cpu_us, size.is_whole
        return True


def _cpu_us(folder: str) -> int:
    try:
        return parse_flat(Path(folder, "cpu.stat").read_text()).get("usage_usec", 0)
    except OSError:
        return 0


def _pids(folder: str) -> list[int]:
    found: list[int] = []
    for place, _, _ in os.walk(folder):
        try:
            found += [int(line) for line in Path(place, "cgroup.procs").read_text().split()]
        except OSError:
            continue
    return found
