"""Watches memory and disk, and takes the steps that `shedding` decides upon."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import Executor
from pathlib import Path

from sandfleet_common.errors import SandfleetError
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import MIB, Qos
from sandfleet_common.states import Origin, State

from .cgroups import Cgroups
from .ending import Ending
from .kernelfiles import parse_flat
from .machine import read_available_bytes
from .metrics import NodeMetrics
from .sandbox import Sandbox
from .sandboxes import Sandboxes
from .shedding import (
    WORTHWHILE_BYTES,
    Depths,
    Ladder,
    Step,
    Victim,
    choose,
    disk_ladder,
    disk_reason,
    memory_ladder,
    memory_reason,
)

CALM_SECONDS = 1.0
CLOSE_SECONDS = 0.2
"""Between looks while memory is less than twice its floor: it can be gone within a second."""
STEP_SECONDS = 10.0
"""A step that takes longer goes on, but the next is not kept waiting for it."""
END_SECONDS = 10.0

Give = Callable[[int], Awaitable[int]]
"""Gives back up to so many bytes, and returns how many it were."""
Written = Callable[[Sequence[str]], dict[str, int]]
"""Bytes on disk of sandboxes, by id; may block."""


class Shedder:
    """Takes one step at a time, and waits for what it brings. `run` does the work."""

    def __init__(
        self,
        state_dir: Path,
        memory: Depths,
        disk: Depths,
        sandboxes: Sandboxes,
        ending: Ending,
        cgroups: Cgroups,
        reclaim: Give,
        pause: Give,
        written: Written,
        threads: Executor,
        tasks: Tasks,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._state_dir = state_dir
        self._depths = memory
        self._memory = memory_ladder(memory)
        self._disk = disk_ladder(disk)
        self._sandboxes = sandboxes
        self._ending = ending
        self._cgroups = cgroups
        self._give = {Step.RECLAIM: reclaim, Step.PAUSE: pause}
        self._written = written
        self._threads = threads
        self._tasks = tasks
        self._running: dict[Step, asyncio.Task[int]] = {}
        self._metrics = metrics
        self._log = log

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            free = read_available_bytes()
            is_close = free < 2 * self._depths.floor_bytes
            await self._look(self._memory, "memory", free)
            await self._look(self._disk, "disk", free_on(self._state_dir))
            await asyncio.sleep(CLOSE_SECONDS if is_close else CALM_SECONDS)

    async def _look(self, ladder: Ladder, want: str, free: int) -> None:
        step = ladder.next_step(free, time.monotonic())
        if step is None:
            return
        given = await self._take(step, want, free)
        found = given >= WORTHWHILE_BYTES
        ladder.took(step, free, time.monotonic(), found=found)
        self._metrics.shedding.labels(want, step).inc()
        self._log.warning(
            "shedding.step", want=want, step=step, free_mib=free // MIB, given_mib=given // MIB
        )

    async def _take(self, step: Step, want: str, free: int) -> int:
        """Take a step, and return how many bytes it should bring."""
        if step is Step.END:
            return await self._end_one(want)
        missing = round(self._depths.floor_bytes * (1 + self._depths.margin)) - free
        running = self._running.get(step)
        if running is None or running.done():
            running = self._tasks.start(self._gives(step, missing), f"shedding {step}")
            self._running[step] = running
        done, _ = await asyncio.wait({running}, timeout=STEP_SECONDS)
        if not done:
            return WORTHWHILE_BYTES
        return 0 if running.exception() is not None else running.result()

    async def _gives(self, step: Step, wanted: int) -> int:
        try:
            return await self._give[step](wanted)
        except (SandfleetError, OSError) as problem:
            self._log.warning("shedding.failed", step=step, error=str(problem))
            return 0

    async def _end_one(self, want: str) -> int:
        """End the best-effort sandbox whose end gives back most; return how much that is."""
        able = [s for s in self._sandboxes if _may_end(s)]
        loop = asyncio.get_running_loop()
        measure = self._memory_of if want == "memory" else self._disk_of
        victim = choose(await loop.run_in_executor(self._threads, measure, able))
        sandbox = None if victim is None else self._sandboxes.find(victim.sandbox_id)
        if victim is None or sandbox is None or sandbox.ending is not None:
            return 0
        reason = memory_reason(victim) if want == "memory" else disk_reason(victim)
        self._log.error("shedding.end", sandbox=sandbox.id, reason=reason)
        ending = self._ending.begin(sandbox, State.FAILED, reason, Origin.PLATFORM)
        await asyncio.wait({ending}, timeout=END_SECONDS)
        return victim.bytes

    def _memory_of(self, sandboxes: list[Sandbox]) -> list[Victim]:
        return [
            Victim(s.id, s.spec.qos, held_bytes(*self._cgroups.controller_dir("memory", s.id)))
            for s in sandboxes
        ]

    def _disk_of(self, sandboxes: list[Sandbox]) -> list[Victim]:
        written = self._written([s.id for s in sandboxes])
        return [Victim(s.id, s.spec.qos, written.get(s.id, 0)) for s in sandboxes]


def _may_end(sandbox: Sandbox) -> bool:
    return (
        sandbox.spec.qos is Qos.BEST_EFFORT
        and sandbox.ending is None
        and sandbox.state in (State.RUNNING, State.PAUSED)
    )


def held_bytes(directory: str, is_v2: bool) -> int:
    """Return the memory that only a sandbox's end gives back: not its clean page cache."""
    try:
        found = parse_flat(Path(directory, "memory.stat").read_text())
    except OSError:
        return 0
    if is_v2:
        return found.get("anon", 0) + found.get("shmem", 0)
    return found.get("total_rss", 0) + found.get("total_shmem", 0)


def free_on(directory: Path) -> int:
    """Return how many bytes are free on a directory's file system."""
    disk = os.statvfs(directory)
    return disk.f_bavail * disk.f_frsize
