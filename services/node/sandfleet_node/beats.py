"""The node's heartbeat: on the bus for schedulers, in Redis for everybody else."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace

from sandfleet_common.bus import Bus
from sandfleet_common.errors import Unreachable
from sandfleet_common.ids import new_ulid
from sandfleet_common.logs import Logger
from sandfleet_common.messages import NodeBeat, NodeState
from sandfleet_common.states import State
from sandfleet_common.store import Store
from sandfleet_common.subjects import NODE_BEAT

from .config import NodeSettings
from .core import Limits, closed
from .layers import Catalog
from .machine import read_machine
from .metrics import NodeMetrics
from .pressure import Gate, Reading
from .records import Records
from .sandboxes import Sandboxes
from .turnstile import Turnstile

_FLUSH_SECONDS = 30.0
_COMPARE_BEATS = 15
"""Every so many heartbeats the records in Redis are compared with what is here. A server that
restarts may have lost some of them and kept the mark that says they are complete."""


class Beats:
    """Looks at the machine, says how the node is, and notices when Redis lost its memory."""

    def __init__(
        self,
        settings: NodeSettings,
        limits: Limits,
        gate: Gate,
        turnstile: Turnstile,
        sandboxes: Sandboxes,
        catalog: Catalog,
        records: Records,
        bus: Bus,
        store: Store,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._gate = gate
        self._turnstile = turnstile
        self._sandboxes = sandboxes
        self._catalog = catalog
        self._records = records
        self._bus = bus
        self._store = store
        self._metrics = metrics
        self._log = log
        self.boot = new_ulid()
        self.is_redis_up = True
        self.pool_free_bytes: Callable[[], int | None] = lambda: None
        """What sandboxes' own pool has room for, which may be less than the disk has."""
        self._sequence = 0
        self._busy = asyncio.Lock()
        self.calls_under_way: Callable[[], int] = lambda: 0
        self.store_failing_since: Callable[[], float | None] = lambda: None
        self.cache_bytes: Callable[[], int] = lambda: 0
        """How many function calls run or wait."""

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            began = time.monotonic()
            async with self._busy:
                await self.beat()
            spent = time.monotonic() - began
            await asyncio.sleep(max(0.05, self._settings.heartbeat_seconds - spent))

    async def finish(self, seconds: float) -> None:
        """Say that the node takes no more sandboxes, then nothing after that."""
        try:
            async with asyncio.timeout(seconds):
                await self._busy.acquire()
                await self.beat()
        except TimeoutError:
            self._log.warning("beat.unfinished")

    async def beat(self) -> None:
        """Beat once."""
        beat = self._next()
        try:
            await self._bus.publish(NODE_BEAT, beat)
        except Unreachable as problem:
            self._log.warning("beat.untold", error=problem.message)
        try:
            is_intact = await self._store.beat(beat)
            if not is_intact or not self.is_redis_up or await self._misses_some():
                await self._resync()
            self.is_redis_up = True
        except Unreachable as problem:
            if self.is_redis_up:
                self._log.warning("redis.away", error=problem.message)
            self.is_redis_up = False

    async def _misses_some(self) -> bool:
        if self._sequence % _COMPARE_BEATS or len(self._records):
            return False
        told = {
            sandbox.id
            for sandbox in self._sandboxes
            if sandbox.state in (State.RUNNING, State.PAUSED)
        }
        return not told <= await self._store.live_on(self._settings.name)

    async def _resync(self) -> None:
        """Put all live sandboxes on record again."""
        for sandbox in self._sandboxes:
            self._sandboxes.note(sandbox)
        await self._records.flush(_FLUSH_SECONDS)
        if not len(self._records):
            await self._store.mark_intact(self._settings.name, self.boot)
            self._log.info("redis.resynced", sandboxes=len(self._sandboxes))

    def _next(self) -> NodeBeat:
        reading = read_machine(self._settings.state_dir)
        room = self.pool_free_bytes()
        if room is not None and room < reading.disk_free_bytes:
            reading = replace(reading, disk_free_bytes=room)
        load, now = self._sandboxes.load, time.monotonic()
        self._judge(reading)
        self._measure(reading)
        self._sequence += 1
        return NodeBeat(
            node=self._settings.name,
            boot=self.boot,
            sequence=self._sequence,
            at=time.time(),
            state=NodeState.DRAINING if load.is_draining else NodeState.READY,
            runtimes=["native"],
            environments=self.environments(),
            capacity=self._limits.as_capacity(),
            requested=load.as_capacity(),
            starting=load.starting,
            starting_limit=self._limits.starting,
            memory_available_bytes=reading.memory_available_bytes,
            load_per_core=round(reading.load_per_core, 3),
            disk_free_bytes=reading.disk_free_bytes,
            refusing=closed(load, self._limits, now),
            paused=sum(sandbox.state is State.PAUSED for sandbox in self._sandboxes),
            pressure=reading.pressure,
            swap_free_bytes=reading.swap_free_bytes,
            inodes_free=reading.inodes_free,
            starts_per_second=load.starts.per_second(now),
            calls=self.calls_under_way(),
            environments_complete=self._catalog.is_complete,
            store_failing_since=self.store_failing_since() or self._catalog.failing_since,
            cache_bytes=self.cache_bytes(),
        )

    def _judge(self, reading: Reading) -> None:
        """Let the machine's pressure decide whether sandboxes are taken, and how fast."""
        gate, load = self._gate, self._sandboxes.load
        before = (gate.refusing is None, gate.slowing is None)
        gate.look(reading)
        load.pressed = gate.refusing
        at_once = self._settings.starting_at_once
        if gate.slowing is not None:
            at_once = min(at_once, self._settings.starting_at_once_slow)
        if at_once != self._turnstile.width:
            self._turnstile.set_width(at_once)
        if before != (gate.refusing is None, gate.slowing is None):
            self._log.info("admission.changed", refusing=gate.refusing, slowing=gate.slowing)

    def environments(self) -> list[str]:
        """Return the names of the environments there are, not all of very many."""
        return self._catalog.names()

    def _measure(self, reading: Reading) -> None:
        load, metrics = self._sandboxes.load, self._metrics
        metrics.memory_available.set(reading.memory_available_bytes)
        metrics.disk_free.set(reading.disk_free_bytes)
        metrics.load_per_core.set(reading.load_per_core)
        metrics.swap_free.set(reading.swap_free_bytes)
        if reading.inodes_free is not None:
            metrics.inodes_free.set(reading.inodes_free)
        for name, value in reading.pressure:
            if value is not None:
                want, _, kind = name.partition("_")
                metrics.pressure.labels(want, kind).set(value)
        now = time.monotonic()
        metrics.refusing.set(closed(load, self._limits, now) is not None)
        metrics.slowed.set(self._gate.slowing is not None)
        metrics.starts_per_second.set(load.starts.per_second(now))
        metrics.requested_cpu.set(load.cpu)
        metrics.requested_memory.set(load.memory_bytes)
        metrics.capacity_cpu.set(self._limits.cpu)
        metrics.capacity_memory.set(self._limits.memory_bytes)
        metrics.records_waiting.set(len(self._records))
