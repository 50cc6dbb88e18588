"""Cold memory of sandboxes that run and do nothing goes to swap.

Age is measured, on every kernel and in both kinds of control groups, with the referenced bits
of the processes' own pages: they are cleared, and a range in which none is set an interval
later was not touched for so long. DAMON would say the same of physical memory, but its filters
know one group each and its settings are the machine's, not a node's.

What stays: the agent, files (their cache is what the next command runs from, and the kernel
drops it by itself when it must), and small ranges, stacks among them, which every step needs.
A sandbox that had to read much back when it woke is left alone for longer the next time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from concurrent.futures import Executor
from typing import TypeVar, TypeVarTuple, Unpack

from sandfleet_common.logs import Logger
from sandfleet_common.messages import MIB
from sandfleet_common.states import State

from .memorygroup import MemoryGroup
from .metrics import NodeMetrics
from .pausing import Pausing
from .processmemory import Range, forget_references, page_out, ranges, swapped_out
from .sandbox import Sandbox
from .sandboxes import Sandboxes
from .swap import Swap

WORTH_BYTES = 8 * MIB
"""A sandbox that holds less is not looked into: most hold an agent and nothing else."""
SMALL_BYTES = 256 * 1024
"""Smaller ranges stay."""
STEP_BYTES = 64 * MIB
"""How much of a sandbox goes in one round."""
PAINFUL_BYTES = 32 * MIB
"""To read back so much takes about a tenth of a second from a slow disk."""
_ROUND_SECONDS = 5.0
_LOOKS_TOGETHER = 64
"""After so many sandboxes others get their turn, though there was nothing to do."""
_REST_SECONDS = 600.0
"""How soon a sandbox is looked into again in which nothing is cold."""
_PATIENCE_MAX = 64
_URGENT_SECONDS = 2.0
"""What was not touched for so long is cold when the node needs memory."""
_URGENT_AT_ONCE = 64

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def cold(found: Iterable[Range]) -> list[Range]:
    """Return the ranges to page out of those of a process, the largest first."""
    chosen = [
        each
        for each in found
        if each.is_anonymous and not each.referenced and each.resident >= SMALL_BYTES
    ]
    return sorted(chosen, key=lambda each: each.resident, reverse=True)


class _Age:
    """What is known of one sandbox's memory since it was last active."""

    __slots__ = ("active_at", "is_marked", "look_at", "patience", "swapped")

    def __init__(self) -> None:
        self.active_at = 0.0
        self.is_marked = False
        self.look_at = 0.0
        self.patience = 1
        """How many times longer than others it is left alone."""
        self.swapped = 0
        """When memory was last taken from it."""


class Reclaimer:
    """Takes cold memory from idle sandboxes, a little at a time, or at once when there is need."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        pausing: Pausing,
        swap: Swap,
        idle_seconds: float,
        cpu_cores: float,
        pool: Executor,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._sandboxes = sandboxes
        self._pausing = pausing
        self._swap = swap
        self._idle_seconds = idle_seconds
        self._cpu_cores = cpu_cores
        self._pool = pool
        self._metrics = metrics
        self._log = log
        self._ages: dict[str, _Age] = {}

    async def run(self) -> None:
        """Look for cold memory until cancelled."""
        while self._idle_seconds:
            await asyncio.sleep(min(_ROUND_SECONDS, self._idle_seconds))
            for index, sandbox in enumerate(self._sandboxes):
                try:
                    spent = await self._look(sandbox, time.time())
                except OSError as problem:
                    self._log.warning("sandbox.unread", sandbox=sandbox.id, error=str(problem))
                    continue
                if spent or index % _LOOKS_TOGETHER == 0:  # thousands of looks take a while
                    await asyncio.sleep(spent / self._cpu_cores)

    def forget(self, sandbox: Sandbox) -> None:
        """Drop what is known of a sandbox that ends."""
        self._ages.pop(sandbox.id, None)

    async def reclaim_idle(self, target_bytes: int) -> int:
        """Take cold memory from idle sandboxes, longest idle first, until so much came back.

        Takes at least the two seconds in which coldness is measured.

        Returns:
            How many bytes were given back; fewer than asked for when nothing cold is left, and
            0 when there is nowhere to put it.
        """
        able = [s for s in self._sandboxes if self._is_idle(s, time.time() - _URGENT_SECONDS)]
        able = await self._in_thread(self._worth_it, able)
        able.sort(key=lambda one: one.active_at)
        if not able or not await self._in_thread(self._swap.ensure):
            return 0
        freed = 0
        for start in range(0, len(able), _URGENT_AT_ONCE):
            some = able[start : start + _URGENT_AT_ONCE]
            for sandbox in some:
                await self._in_thread(_mark, self._pausing.group(sandbox), sandbox.pid)
            await asyncio.sleep(_URGENT_SECONDS)
            for sandbox in some:
                if freed >= target_bytes:
                    return freed
                if self._is_idle(sandbox, time.time() - _URGENT_SECONDS):
                    freed += (await self._take(sandbox, target_bytes - freed))[0]
        return freed

    # -------------------------------------------------------------- one look

    def _is_idle(self, sandbox: Sandbox, since: float) -> bool:
        return (
            sandbox.state is State.RUNNING
            and sandbox.ending is None
            and sandbox.active_at <= since
            and not sandbox.uses
            and not self._pausing.is_exempt(sandbox)
        )

    def _worth_it(self, sandboxes: list[Sandbox]) -> list[Sandbox]:
        """Return those that hold enough; in a thread, for there may be thousands."""
        return [s for s in sandboxes if self._pausing.group(s).usage() >= WORTH_BYTES]

    async def _look(self, sandbox: Sandbox, now: float) -> float:
        """Look at one sandbox if it is time to; return the CPU seconds that took."""
        age = self._ages.get(sandbox.id)
        if age is not None and age.active_at == sandbox.active_at and now < age.look_at:
            return 0.0
        patience = 1 if age is None else age.patience
        if not self._is_idle(sandbox, now - self._idle_seconds * patience):
            return 0.0
        if age is None:
            age = self._ages[sandbox.id] = _Age()
        group = self._pausing.group(sandbox)
        if age.active_at != sandbox.active_at:
            self._begin(age, sandbox, group)
        if group.usage() < WORTH_BYTES:
            age.look_at = now + _REST_SECONDS
            return 0.0
        if not age.is_marked:
            age.is_marked, age.look_at = True, now + self._idle_seconds
            return await self._in_thread(_mark, group, sandbox.pid)
        return await self._harvest(age, sandbox, now)

    def _begin(self, age: _Age, sandbox: Sandbox, group: MemoryGroup) -> None:
        """Learn from how it woke, and begin to measure anew."""
        if age.swapped:
            missed = age.swapped - group.swapped()
            if missed > PAINFUL_BYTES:
                age.patience = min(_PATIENCE_MAX, age.patience * 2)
            else:
                age.patience = max(1, age.patience // 2)
        age.active_at, age.is_marked, age.swapped = sandbox.active_at, False, 0

    async def _harvest(self, age: _Age, sandbox: Sandbox, now: float) -> float:
        if not await self._in_thread(self._swap.ensure):
            age.look_at = now + _REST_SECONDS
            return 0.0
        taken, spent = await self._take(sandbox, STEP_BYTES)
        if taken >= STEP_BYTES // 2:
            age.look_at = now
        else:
            age.is_marked, age.look_at = False, now + _REST_SECONDS
        age.swapped = self._pausing.group(sandbox).swapped()
        return spent

    async def _take(self, sandbox: Sandbox, limit_bytes: int) -> tuple[int, float]:
        """Page cold ranges out; return how many bytes came back, and the CPU seconds it took."""
        active_at = sandbox.active_at

        def stopped() -> bool:
            return sandbox.active_at != active_at or not self._is_idle(sandbox, active_at)

        group = self._pausing.group(sandbox)
        taken, spent = await self._in_thread(_take, group, sandbox.pid, limit_bytes, stopped)
        if taken:
            self._metrics.given_back.labels("idle").inc(taken)
            self._log.debug("sandbox.reclaimed", sandbox=sandbox.id, bytes=taken)
        return taken, spent

    async def _in_thread(self, work: Callable[[Unpack[Ts]], T], *args: *Ts) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._pool, work, *args)


def _mark(group: MemoryGroup, agent: int) -> float:
    """Clear the referenced bits of all processes but the agent; return the CPU seconds it took."""
    began = time.thread_time()
    for pid in group.pids():
        if pid != agent:
            forget_references(pid)
    return time.thread_time() - began


def _take(
    group: MemoryGroup, agent: int, limit_bytes: int, stopped: Callable[[], bool]
) -> tuple[int, float]:
    began = time.thread_time()
    usage = group.usage()
    taken = 0
    with group.swappable():
        for pid in group.pids():
            if pid == agent or taken >= limit_bytes or stopped():
                continue
            taken += _page_out_cold(pid, limit_bytes - taken, stopped)
        group.trim(taken, stopped)
    return max(0, usage - group.usage()), time.thread_time() - began


def _page_out_cold(pid: int, limit_bytes: int, stopped: Callable[[], bool]) -> int:
    before = swapped_out(pid)

    def is_enough() -> bool:
        return stopped() or swapped_out(pid) - before >= limit_bytes

    page_out(pid, cold(ranges(pid, with_amounts=True)), is_enough)
    return max(0, swapped_out(pid) - before)
