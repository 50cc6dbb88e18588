"""What the node's sandboxes use: looked up when somebody asks, and seldom when nobody does.

Nothing here is activity of a sandbox, and a paused one stays paused.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass, replace

from sandfleet_common.messages import (
    MIB,
    Network,
    NodeUsage,
    NodeUsageGet,
    Qos,
    SandboxUsage,
    SandboxUsageGet,
)
from sandfleet_common.ranking import most
from sandfleet_common.states import State

from .cgroups import Cgroups
from .counters import Counters, Groups, read_counters
from .metrics import NodeMetrics
from .sandbox import Sandbox
from .sandboxes import Sandboxes

FRESH_SECONDS = 1.5
"""A look at all sandboxes serves everybody who asks within so long."""
REST = 20
"""After a look at all of them there is none for so many times as long: however many they are
and however often somebody asks, a twentieth of a core is spent at most."""
REPLY_BYTES = 3 * MIB
"""Of sandboxes in one answer; labels can be long, and the bus takes no more than 4 MiB."""
STALE_SECONDS = 10.0
"""After so long without a look the cores in use are measured anew, by two looks."""
SPAN_SECONDS = 0.5
"""Shortest time over which cores in use are computed."""
_AT_ONCE = 128
_ENDED_KEPT = 2000

DiskUsage = Callable[[Sequence[str]], dict[str, int]]
"""Bytes on disk of each of some sandboxes, by id; may block, and leave some out."""


@dataclass(slots=True)
class Track:
    """What was seen of one sandbox, and how fast it spends CPU time."""

    counters: Counters
    cores: float
    base_cpu_seconds: float
    base_at: float
    disk_bytes: int = 0

    @classmethod
    def begin(cls, counters: Counters, at: float, age_seconds: float) -> Track:
        """Begin with a first look: the cores are the average over the sandbox's life."""
        cores = counters.cpu_seconds / max(age_seconds, SPAN_SECONDS)
        return cls(counters, cores, counters.cpu_seconds, at)

    def look(self, counters: Counters, at: float) -> None:
        """Take in another look; `at` is monotonic seconds."""
        peak = max(self.counters.memory_peak_bytes, counters.memory_peak_bytes)
        if peak != counters.memory_peak_bytes:  # a kernel without memory.peak
            counters = _with_peak(counters, peak)
        self.counters = counters
        span = at - self.base_at
        if span >= SPAN_SECONDS:
            self.cores = max(0.0, counters.cpu_seconds - self.base_cpu_seconds) / span
            self.base_cpu_seconds, self.base_at = counters.cpu_seconds, at


def _with_peak(seen: Counters, peak: int) -> Counters:
    return Counters(
        seen.cpu_seconds, seen.memory_bytes, peak,
        seen.swap_bytes, seen.processes, seen.egress_bytes,
    )  # fmt: skip


class Usage:
    """Looks at what sandboxes use, for requests and for metrics."""

    def __init__(
        self,
        node: str,
        every_seconds: float,
        sandboxes: Sandboxes,
        cgroups: Cgroups,
        pool: Executor,
        metrics: NodeMetrics,
    ) -> None:
        self._node = node
        self._every_seconds = every_seconds
        self._sandboxes = sandboxes
        self._cgroups = cgroups
        self._pool = pool
        self._metrics = metrics
        self._whole = Groups.of(cgroups, "")
        self._tracks: dict[str, Track] = {}
        self._ended: OrderedDict[str, bytes] = OrderedDict()
        self._looked_at: float | None = None
        self._fresh_seconds = FRESH_SECONDS
        self._looking = asyncio.Lock()
        self._told_cpu_seconds = 0.0
        self._began_at = time.time()
        self.disk_usage: DiskUsage = lambda _: {}
        self.sent_bytes: Callable[[str], int] = lambda _: 0
        """What a sandbox has sent through the proxy of the build network."""
        metrics.on_page.append(self.measure)

    # -------------------------------------------------------------- requests

    async def one(self, body: SandboxUsageGet) -> SandboxUsage:
        """Return what one sandbox has used; for a while also after its end.

        Raises:
            SandboxGone: it ended, and what it used is not known any more.
            NotFound: this node does not know it.
        """
        sandbox = self._sandboxes.find(body.sandbox_id)
        if sandbox is not None and sandbox.ending is None:
            await self._look([sandbox])
        kept = self._ended.get(body.sandbox_id)
        if kept is None:
            return self._told(self._sandboxes.get(body.sandbox_id))
        still = self._sandboxes.find(body.sandbox_id)
        state = still.state if still is not None else self._sandboxes.ended(body.sandbox_id).state
        return SandboxUsage.decode(kept).model_copy(update={"state": state})

    async def top(self, body: NodeUsageGet) -> NodeUsage:
        """Return the sandboxes that use most, and the sums over all."""
        await self._look_at_all()
        everything = [
            self._told(sandbox) for sandbox in self._sandboxes if sandbox.id in self._tracks
        ]
        return NodeUsage(
            node=self._node,
            at=time.time(),
            sandboxes=fitting(most(everything, body.order, body.limit), REPLY_BYTES),
            count=len(everything),
            paused=sum(u.state is State.PAUSED for u in everything),
            cpu_cores=round(sum(u.cpu_cores for u in everything), 4),
            memory_bytes=sum(u.memory_bytes for u in everything),
            swap_bytes=sum(u.swap_bytes for u in everything),
            disk_bytes=sum(u.disk_bytes for u in everything),
            egress_bytes=sum(u.egress_bytes for u in everything),
        )

    def on_end(self, sandbox: Sandbox) -> None:
        """Look a last time at a sandbox that begins to end: its groups are still there."""
        if sandbox.id in self._ended or sandbox.state is State.PREPARING:
            return
        track = self._take(sandbox, read_counters(*self._where(sandbox)), time.monotonic())
        track.disk_bytes = self.disk_usage([sandbox.id]).get(sandbox.id, track.disk_bytes)
        self._ended[sandbox.id] = self._told(sandbox).encode()
        self._tracks.pop(sandbox.id, None)
        while len(self._ended) > _ENDED_KEPT:
            self._ended.popitem(last=False)

    # ---------------------------------------------------------------- looking

    async def run(self) -> None:
        """Look at all sandboxes now and then, spread over the time between; until cancelled."""
        while True:
            waiting = self._lookable()
            parts = [waiting[i : i + _AT_ONCE] for i in range(0, len(waiting), _AT_ONCE)]
            for part in parts:
                await self._look([s for s in part if s.ending is None])
                await asyncio.sleep(self._every_seconds / len(parts))
            if not parts:
                await asyncio.sleep(self._every_seconds)
            self._forget()

    async def _look_at_all(self) -> None:
        """Look at all sandboxes, unless that was done a moment ago."""
        async with self._looking:
            now = time.monotonic()
            age = None if self._looked_at is None else now - self._looked_at
            if age is not None and age < self._fresh_seconds:
                return
            began = time.monotonic()
            await self._look(self._lookable())
            self._fresh_seconds = max(FRESH_SECONDS, REST * (time.monotonic() - began))
            if age is None or age > STALE_SECONDS:
                await asyncio.sleep(SPAN_SECONDS)
                await self._look(self._lookable())
            self._looked_at = time.monotonic()
            self._forget()

    async def _look(self, wanted: list[Sandbox]) -> None:
        places = [self._where(sandbox) for sandbox in wanted]
        ids = [sandbox.id for sandbox in wanted]
        seen, disks, at = await asyncio.get_running_loop().run_in_executor(
            self._pool, self._read, places, ids
        )
        for sandbox, counters in zip(wanted, seen, strict=True):
            if sandbox.ending is None:
                self._take(sandbox, counters, at).disk_bytes = disks.get(sandbox.id, 0)

    def _read(
        self, places: list[tuple[Groups, int]], ids: list[str]
    ) -> tuple[list[Counters], dict[str, int], float]:
        seen = [read_counters(groups, pid) for groups, pid in places]
        return seen, self.disk_usage(ids), time.monotonic()

    def _take(self, sandbox: Sandbox, counters: Counters, at: float) -> Track:
        if proxied := self.sent_bytes(sandbox.id):
            counters = replace(counters, egress_bytes=counters.egress_bytes + proxied)
        track = self._tracks.get(sandbox.id)
        if track is None:
            age = time.time() - sandbox.created_at
            # What was sent before this service began, the one before it has counted.
            sent = counters.egress_bytes if sandbox.created_at >= self._began_at else 0
            track = self._tracks[sandbox.id] = Track.begin(counters, at, age)
        else:
            sent = counters.egress_bytes - track.counters.egress_bytes
            track.look(counters, at)
        if sent > 0:
            self._metrics.egress.inc(sent)
        return track

    def _where(self, sandbox: Sandbox) -> tuple[Groups, int]:
        has_network = sandbox.spec.network is not Network.NONE
        return Groups.of(self._cgroups, sandbox.id), sandbox.pid if has_network else 0

    def _lookable(self) -> list[Sandbox]:
        return [s for s in self._sandboxes if s.ending is None and s.state is not State.PREPARING]

    def _forget(self) -> None:
        """Drop what belongs to sandboxes that are no more; an end that was missed leaves some."""
        for sandbox_id in [i for i in self._tracks if self._sandboxes.find(i) is None]:
            del self._tracks[sandbox_id]

    def _told(self, sandbox: Sandbox) -> SandboxUsage:
        track = self._tracks.get(sandbox.id)
        seen = Counters() if track is None else track.counters
        asked = sandbox.spec.resources
        return SandboxUsage(
            sandbox_id=sandbox.id,
            state=sandbox.state,
            at=round(time.time(), 3),
            labels=sandbox.spec.labels,
            job_id=sandbox.job_id,
            cpu_seconds=round(seen.cpu_seconds, 6),
            cpu_cores=0.0 if track is None else round(track.cores, 4),
            memory_bytes=seen.memory_bytes,
            memory_peak_bytes=seen.memory_peak_bytes,
            swap_bytes=seen.swap_bytes,
            memory_limit_bytes=asked.memory_bytes,
            disk_bytes=0 if track is None else track.disk_bytes,
            disk_limit_bytes=asked.disk_bytes,
            processes=seen.processes,
            egress_bytes=seen.egress_bytes,
            idle_seconds=round(idle_seconds(sandbox, time.time()), 3),
        )

    # ---------------------------------------------------------------- metrics

    def measure(self) -> None:
        """Bring the metrics up to date, for somebody who reads them.

        Sums come from the node's own groups, which count what has ended, too; how sandboxes
        differ comes from the last looks at them.
        """
        metrics, seen = self._metrics, read_counters(self._whole)
        if seen.cpu_seconds:
            metrics.used_cpu.inc(max(0.0, seen.cpu_seconds - self._told_cpu_seconds))
            self._told_cpu_seconds = seen.cpu_seconds
        metrics.used_memory.set(seen.memory_bytes)
        metrics.used_swap.set(seen.swap_bytes)
        metrics.processes.set(seen.processes)
        tracks, now = list(self._tracks.values()), time.time()
        metrics.used_disk.set(sum(t.disk_bytes for t in tracks))
        metrics.each_memory.set(t.counters.memory_bytes for t in tracks)
        metrics.each_cpu.set(t.cores for t in tracks)
        live = list(self._sandboxes)
        metrics.each_idle.set(idle_seconds(s, now) for s in live)
        counts = Counter(s.spec.qos for s in live)
        for qos in Qos:
            metrics.sandboxes_by_qos.labels(qos).set(counts[qos])


def fitting(found: list[SandboxUsage], room: int) -> list[SandboxUsage]:
    """Return the first of them that take `room` bytes together at most."""
    for index, used in enumerate(found):
        room -= len(used.encode()) + 1
        if room < 0:
            return found[:index]
    return found


def idle_seconds(sandbox: Sandbox, now: float) -> float:
    """Return since when a sandbox's user has done nothing; 0 while a command runs for them."""
    return 0.0 if sandbox.commands.foreground > 0 else max(0.0, now - sandbox.active_at)
