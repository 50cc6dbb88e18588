"""The sensor of one machine: facts from the kernel, in batches onto the bus."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from pathlib import Path

from sandfleet_common import subjects
from sandfleet_common.bus import Bus
from sandfleet_common.errors import Unreachable
from sandfleet_common.lifecycle import Health, Tasks, serve
from sandfleet_common.logs import Logger
from sandfleet_common.messages import FactBatch
from sandfleet_common.metrics import exposed
from sandfleet_common.settings import load

from .calls import KINDS
from .cgroups import find_cgroup2
from .config import SensorSettings
from .facts import Clock, Waiting, is_of, to_fact
from .metrics import SensorMetrics
from .program import Command, ProgramFailed, sensing
from .records import Beat, Call, Dropped, Exec, Ready, Record

DOCTOR = "see the line `ebpf` of `sandfleet doctor`"


class Sensor:
    """Runs the sensor program again and again, and publishes what it tells.

    Where eBPF does not load, the service stays up and ready, and says in its
    warnings that nobody watches this machine, and why.
    """

    name = "sensor"

    def __init__(
        self,
        settings: SensorSettings,
        bus: Bus,
        metrics: SensorMetrics,
        health: Health,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._metrics = metrics
        self._log = log
        self._waiting = Waiting(limit=settings.waiting_facts, starts_each=settings.starts_each)
        metrics.waiting.set_function(lambda: len(self._waiting))
        self._blind: str | None = "the sensor program is not attached yet"
        self._beat: Beat | None = None
        self._sequence = 0
        self._full = asyncio.Event()
        health.checks["bus"] = lambda: None if bus.is_connected else "NATS is not connected"
        health.warnings["ebpf"] = lambda: self._blind

    async def run(self, ready: Callable[[], None]) -> None:
        """Work until cancelled."""
        async with Tasks(self._log) as tasks:
            tasks.start(self._watch(ready), "sensor.watch", critical=True)
            tasks.start(self._publish_forever(), "sensor.publish", critical=True)
            raise await tasks.failed()

    async def drain(self) -> None:
        """Send what waits."""
        await self._publish()

    # ------------------------------------------------------------ the program

    async def _watch(self, ready: Callable[[], None]) -> None:
        tries = 0
        while True:
            started = time.monotonic()
            try:
                await self._sense(ready)
            except ProgramFailed as problem:
                self._went_blind(str(problem), attempt=tries)
                ready()
                lasted = time.monotonic() - started
                tries = 0 if lasted > self._settings.retry_seconds else tries + 1
                await asyncio.sleep(self._pause(tries, problem.is_for_good))

    def _pause(self, tries: int, is_for_good: bool) -> float:
        most = self._settings.retry_seconds
        delay = most if is_for_good else min(most, 0.25 * 2 ** min(tries, 16))
        return delay * (0.75 + random.random() / 4)

    def _went_blind(self, reason: str, attempt: int) -> None:
        told = f"nobody watches the sandboxes of this machine: {reason}; {DOCTOR}"
        if attempt == 0 or told != self._blind:
            self._log.error("sensor.blind", reason=told)
        self._blind = told
        self._metrics.attached.set(0)

    async def _sense(self, ready: Callable[[], None]) -> None:
        self._metrics.starts.inc()
        self._beat = None
        command = self._command()
        async with sensing(command, silence_seconds=self._settings.silence_seconds) as told:
            async for records in told:
                clock = Clock(time.time() - time.clock_gettime(time.CLOCK_BOOTTIME))
                for record in records:
                    if isinstance(record, Ready):
                        self._sees(command.sandboxes)
                        ready()
                    self._take(record, clock)
                if len(self._waiting) >= self._settings.batch_facts:
                    self._full.set()

    def _command(self) -> Command:
        settings = self._settings
        binary = settings.binary()
        if binary is None:
            raise ProgramFailed(
                "the program sandfleet-sensor is missing; build it with `make -C native/bpf`",
                is_for_good=True,
            )
        mount = settings.cgroup2_mount or find_cgroup2(Path("/proc/self/mountinfo").read_text())
        if mount is None:
            raise ProgramFailed("cgroup v2 is not mounted", is_for_good=True)
        return Command(
            binary,
            f"{mount}/{settings.cgroup_directory}/{settings.node}",
            settings.calls_per_second,
            settings.calls_burst,
            settings.execs_per_second,
            settings.execs_burst,
        )

    def _sees(self, sandboxes: str) -> None:
        self._blind = None
        self._metrics.attached.set(1)
        self._log.info("sensor.attached", sandboxes=sandboxes)

    # --------------------------------------------------------------- the facts

    def _take(self, record: Record, clock: Clock) -> None:
        match record:
            case Call() | Exec() | Dropped():
                fact = to_fact(record, clock)
                if is_of(fact, self._settings.node):
                    before = self._waiting.lost_in_all
                    self._waiting.add(fact)
                    self._metrics.lost.labels("bus").inc(self._waiting.lost_in_all - before)
                else:
                    self._metrics.foreign.inc()
            case Beat():
                self._waiting.lost += self._metrics.add(self._beat, record)
                self._beat = record
            case Ready():
                pass

    async def _publish_forever(self) -> None:
        while True:
            try:
                async with asyncio.timeout(self._settings.batch_seconds):
                    await self._full.wait()
            except TimeoutError:
                pass
            self._full.clear()
            await self._publish()

    async def _publish(self) -> None:
        while (self._waiting or self._waiting.lost) and self._bus.is_connected:
            facts, lost = self._waiting.take(self._settings.batch_facts)
            batch = FactBatch(
                node=self._settings.node, sequence=self._sequence, facts=facts, lost=lost
            )
            try:
                await self._bus.publish(subjects.SECURITY_FACTS, batch, node=self._settings.node)
            except Unreachable as problem:
                self._waiting.give_back(facts, lost)
                self._log.warning("sensor.bus_down", error=str(problem))
                break
            self._sequence += 1
            self._metrics.batches.inc()
            for fact in facts:
                self._metrics.facts.labels(fact.kind if fact.kind in KINDS else "other").inc()


async def run_sensor() -> int:
    """Run the sensor as a process, and return its exit status."""
    settings = load(SensorSettings, "sensor")
    log = Logger("sensor", level=settings.level(), node=settings.node)
    metrics, health = SensorMetrics(), Health()
    async with (
        exposed(metrics, health, host=settings.metrics_host, port=settings.metrics_port) as port,
        Bus.connect(settings.bus("sensor"), log) as bus,
    ):
        log.info("sensor.metrics", port=port)
        service = Sensor(settings, bus, metrics, health, log)
        return await serve(service, log, health, drain_seconds=settings.drain_seconds)
