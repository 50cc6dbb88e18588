"""One node: its parts put together, and what runs beside requests."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager

from sandfleet_common.bus import Bus
from sandfleet_common.errors import BadRequest, Unreachable
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxInfo
from sandfleet_common.states import TERMINAL, Origin, State
from sandfleet_common.store import Store
from sandfleet_common.wire import Frame

from .acting import Acting
from .adoption import Adoption
from .beats import Beats
from .cgroups import Cgroups
from .chunks import Chunks
from .clientstreams import ClientStreams
from .commandtable import Keeping
from .config import NodeSettings
from .core import Load, closed, is_to_pause
from .cores import CoreScheduling, separate, support
from .creation import Creation
from .disk import Disks
from .egress.network import BuildNetwork
from .ending import LAUNCHER_DIED, Ending
from .files import Files
from .freezer import Freezer
from .functions import FunctionCalls, is_warm
from .hierarchies import detect
from .janitor import Janitor
from .keeper import Keeper
from .launcher import Listeners
from .layercare import LayerCare
from .layermounts import LayerMounts
from .layers import Catalog, DirectoryStore, open_store
from .layers.collection import Collector
from .machine import depths_of, limits_of, raise_file_limit, read_machine, thresholds_of
from .metrics import NodeMetrics
from .moving import Moving
from .outbox import Outbox
from .pausing import Pausing
from .phases import Phases
from .places import Places
from .pressure import Gate
from .reclaim import Reclaimer
from .records import Records
from .sandbox import Hearers, Sandbox
from .sandboxes import Sandboxes, gone
from .shedder import Shedder
from .snapshots import Forks, Making, SnapshotRecords, Snapshots, Storing, read_rules
from .storedesk import StoreDesk
from .storeroom import Storeroom
from .swap import Swap
from .tombstones import Tombstones
from .turnstile import Turnstile
from .uids import IdRanges
from .usage import Usage
from .watches import Watches
from .workshop import Workshop

_SWEEP_SECONDS = 5.0
_FILES_EACH = 8
_MEMORY_THREADS = 3
"""Beside those that give memory back: prefetching, waiting for a freezer, idle reclaim."""


class Node:
    """All parts of a node. Open one with `Node.open`; it has adopted what it found by then."""

    def __init__(
        self,
        settings: NodeSettings,
        bus: Bus,
        store: Store,
        tasks: Tasks,
        pool: ThreadPoolExecutor,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        if settings.core_scheduling and support() is CoreScheduling.MISSING:
            raise BadRequest(
                "core_scheduling is set, but the kernel has none: it came with Linux 5.14 and "
                "needs CONFIG_SCHED_CORE"
            )
        self.settings = settings
        self.metrics = metrics
        self.log = log
        self.tasks = tasks
        self._store = store
        self.places = Places(settings.state_dir, settings.name)
        self.places.make()
        reading = read_machine(settings.state_dir)
        self.limits = limits_of(settings, reading)
        self.load = Load(is_draining=self.places.draining.exists())
        self.gate = Gate(thresholds_of(settings))
        self.gate.look(reading)
        self.load.pressed = self.gate.refusing
        self.turnstile = Turnstile(settings.starting_at_once)
        self.cgroups = Cgroups(detect(), settings.name)
        self.phases = Phases(self.cgroups, log)
        self.layers = open_store(
            settings.store_url or self.places.layers.as_uri(),
            settings.store_endpoint,
            settings.store_timeout_seconds,
        )
        self.local_layers = DirectoryStore(self.places.root / "layers")
        self.catalog = Catalog(self.layers, log)
        self.records = Records(store, self._on_outdated, log)
        self.outbox = Outbox(bus, log)
        self.janitor = Janitor(self.places.trash, log)
        self.streams = ClientStreams(bus.publish_raw, tasks.start, self._awake, log)
        self.watches = Watches(self.outbox.tell)
        self.files = Files()
        ranges = IdRanges(settings.uid_base, settings.ranges())
        tombstones = Tombstones(self.places.ended, settings.ended_kept_seconds, settings.ended_kept)
        self.sandboxes = Sandboxes(
            settings.name, self.load, self.records, self.outbox, tombstones, metrics, log
        )
        self.keeper = Keeper(
            settings.binary(), self.places.run, settings.orphan_seconds,
            self.load, metrics, tasks, log,
        )  # fmt: skip
        self.disks = Disks(
            self.places, settings.disk_cap, settings.disk_pool_bytes, settings.disk_reserve_bytes,
            self.cgroups, self._end_for_disk, self._lose_disks, pool, log,
        )  # fmt: skip
        self.keeper.on_open.append(self.disks.prepare)
        self.ending = Ending(
            self.sandboxes, self.keeper, self.cgroups, self.disks, ranges, self.places,
            self.janitor, pool, tasks, log,
        )  # fmt: skip
        self.ending.on_end += [
            self._close_streams,
            self.watches.forget,
            self.files.forget,
            self.phases.forget,
        ]
        self.memory_pool = ThreadPoolExecutor(
            settings.pausing_at_once + _MEMORY_THREADS, thread_name_prefix="node-memory"
        )
        """For what takes seconds: writing memory to swap, and reading it."""
        self.swap = Swap(
            self.places.swap, settings.swap_bytes, is_wanted=settings.swap == "auto", log=log
        )
        self.pausing = Pausing(
            self.sandboxes, self.ending, self.cgroups, Freezer(self.cgroups, self.memory_pool),
            self.swap, settings.pausing_at_once, settings.prefetch_bytes, self.memory_pool,
            tasks, metrics, log,
        )  # fmt: skip
        self.reclaimer = Reclaimer(
            self.sandboxes, self.pausing, self.swap, settings.reclaim_idle_seconds,
            settings.reclaim_cpu_cores, self.memory_pool, metrics, log,
        )  # fmt: skip
        self.acting = Acting(self.sandboxes, self.pausing, self.ending, self.records)
        self.ending.on_end += [self.pausing.forget, self.reclaimer.forget]
        self.usage = Usage(
            settings.name, settings.usage_seconds, self.sandboxes, self.cgroups, pool, metrics
        )
        self.usage.disk_usage = self.disks.usage
        self.build_network = BuildNetwork(
            settings, self.places.run, self.files, tasks, metrics, log
        )
        self.usage.sent_bytes = self.build_network.sent_bytes
        self.ending.on_end += [self.usage.on_end, self.build_network.forget]
        self.shedder = Shedder(
            settings.state_dir, *depths_of(settings), self.sandboxes, self.ending, self.cgroups,
            self.reclaimer.reclaim_idle, self.pausing.pause_idle, self.disks.usage, pool, tasks,
            metrics, log,
        )  # fmt: skip
        keeping = Keeping(settings.commands_kept, settings.output_kept_bytes)
        hearers = Hearers(on_closed=self.ending.on_closed, on_watch=self._on_watch)
        workshop = Workshop(settings.name, self.places, self.cgroups, keeping, hearers, log)
        self.storeroom = Storeroom(
            settings.parts_ahead, self.keeper, self.cgroups, self.places, ranges, self.load,
            pool, metrics, log,
        )  # fmt: skip
        collector = Collector(self.layers, log, self.sandboxes.layers.used_at)
        self.store_desk = StoreDesk(self.layers, self.catalog, collector, log)
        self.layer_care = LayerCare(
            settings, self.layers, self.local_layers, self.sandboxes.layers, self.keeper,
            collector, self.places.run / "layers.json", metrics, log,
        )  # fmt: skip
        self.chunks = Chunks(settings, self.places, self.keeper, metrics, log)
        mounting = LayerMounts(self.keeper, self.layers, self.local_layers, self.chunks)
        self.creation = Creation(
            settings.name, self.limits, self.turnstile, workshop, self.sandboxes,
            self.ending, self.keeper, self.catalog, mounting, self.cgroups, self.disks,
            self.storeroom, self.build_network, self.records, pool, tasks, metrics, log,
            has_cookies=settings.core_scheduling,
        )  # fmt: skip
        self.adoption = Adoption(
            settings.name, workshop, self.sandboxes, self.ending, self.keeper, self.cgroups,
            self.disks, ranges, self.places, self.pausing, log,
        )  # fmt: skip
        self.snapshot_records = SnapshotRecords(self.places, self.layers, log)
        self.making = Making(
            settings, self.places, self.disks, self.pausing,
            read_rules(settings.snapshot_rules), metrics, log,
        )  # fmt: skip
        storing = Storing(
            self.places, self.making, self.layers, self.local_layers, self.snapshot_records, log
        )
        self.catalog.local_snapshots = self.snapshot_records.local
        self.store_desk.snapshots.local = self.snapshot_records.local
        self.layer_care.needed_here = self._needed_layers
        self.snapshots = Snapshots(
            self.sandboxes, self.making, storing, self.snapshot_records, self.janitor.wake,
            tasks, metrics, log,
        )  # fmt: skip
        self.forks = Forks(
            settings.name, self.sandboxes, self.snapshots, self.snapshot_records,
            self.making, self.keeper, self.creation.create, log,
        )  # fmt: skip
        self.moving = Moving(
            settings.name, settings.departure_seconds, self.sandboxes, self.pausing, self.ending,
            self.places, store, self.snapshots.take, self._forget_snapshot, log,
        )  # fmt: skip
        self.ending.on_end.append(self.moving.forget)
        self.functions = FunctionCalls(
            settings, self.creation, self.sandboxes, self.ending, self.catalog,
            self.pausing.using, self.cgroups.oom_kills, tasks, metrics, log,
        )  # fmt: skip
        self.beats = Beats(
            settings, self.limits, self.gate, self.turnstile, self.sandboxes, self.catalog,
            self.records, bus, store, metrics, log,
        )  # fmt: skip
        self.pausing.is_exempt = is_warm
        metrics.on_page.append(self._show_swap)
        self.beats.calls_under_way = lambda: self.functions.under_way
        self.beats.store_failing_since = lambda: self.chunks.failing_since
        self.beats.cache_bytes = lambda: self.chunks.cache_bytes
        self.beats.pool_free_bytes = self.disks.free_bytes
        self.store_desk.tell = self.beats.beat
        self.listeners = Listeners(
            on_exit=self.ending.on_exit,
            on_channel=self.adoption.on_channel,
            on_lost=self._on_launcher_lost,
        )

    @classmethod
    @asynccontextmanager
    async def open(
        cls, settings: NodeSettings, bus: Bus, store: Store, metrics: NodeMetrics, log: Logger
    ) -> AsyncGenerator[Node]:
        """Find or start the launcher, take over what it holds, and run until the block ends.

        The sandboxes stay when it does.
        """
        raise_file_limit(settings.sandboxes_max * _FILES_EACH + 4096)
        with ThreadPoolExecutor(4, thread_name_prefix="node-files") as pool:
            async with Tasks(log) as tasks:
                node = cls(settings, bus, store, tasks, pool, metrics, log)
                try:
                    await node._begin()
                    yield node
                finally:
                    node._close()

    async def _begin(self) -> None:
        self.cgroups.open()
        self.swap.drop_stale()
        self.phases.open()
        self.sandboxes.tombstones.load(time.time())
        self.disks.held = self.snapshot_records.load_forks()
        self.tasks.start(self.records.run(), "records", critical=True)
        self.tasks.start(self.outbox.run(), "outbox", critical=True)
        self.tasks.start(self.catalog.run(), "catalog", critical=True)
        if not isinstance(self.layers, DirectoryStore):
            self.tasks.start(self.chunks.run(), "chunks", critical=True)
        found = await self.keeper.open(self.listeners)
        await self.adoption.adopt(found)
        await self.storeroom.adopt(found.prepared)
        for sandbox in self.sandboxes:
            self.phases.adopt(sandbox)
            self.moving.adopt(sandbox)
            if self.settings.core_scheduling:
                self._separate(sandbox)
        await self.build_network.adopt(self.sandboxes)
        self.tasks.start(self.build_network.run(), "build network", critical=True)
        self.functions.end_strangers()
        self.tasks.start(self.snapshots.recover(), "unfinished snapshots", critical=True)
        self.tasks.start(self.forks.run(), "forks", critical=True)
        self.tasks.start(self.layer_care.run_leases(), "leases", critical=True)
        self.tasks.start(self.layer_care.run_unmounting(), "unmounting", critical=True)
        self.tasks.start(self.layer_care.run_room(), "room for layers", critical=True)
        self.tasks.start(self.janitor.run(), "janitor", critical=True)
        self.tasks.start(self.phases.run(), "phases", critical=True)
        self.tasks.start(self.storeroom.run(), "parts", critical=True)
        self.tasks.start(self.shedder.run(), "shedder", critical=True)
        self.tasks.start(self._end_in_time(), "dates", critical=True)
        self.tasks.start(self.reclaimer.run(), "reclaim", critical=True)
        self.tasks.start(self._sweep(), "sweep", critical=True)
        self.tasks.start(self.usage.run(), "usage", critical=True)
        self.tasks.start(self._reconcile(), "reconcile")
        self.tasks.start(self.disks.run(), "disks", critical=True)
        self.tasks.start(self.moving.run(), "moves", critical=True)
        self.tasks.start(self.disks.accounting.run(), "disk accounting", critical=True)

    def _separate(self, sandbox: Sandbox) -> None:
        """Give a sandbox its cookie that an earlier service had no time, or no order, to give."""
        try:
            separate(sandbox.pid)
        except OSError as problem:
            self.log.warning("sandbox.not_separated", sandbox=sandbox.id, error=str(problem))

    def _close(self) -> None:
        self.pausing.close()
        self.making.close()
        self.build_network.close()
        # Waits for what is under way: it leaves off within a slice, and uses the node's files.
        self.memory_pool.shutdown(wait=True, cancel_futures=True)
        for sandbox in self.sandboxes:
            if sandbox.link is not None:
                sandbox.link.close()
            sandbox.commands.close()
        self.keeper.close()
        self.disks.close()

    async def stop_all(self, reason: str) -> None:
        """End every sandbox and the launcher, and remove what is left of them."""
        self.load.is_draining = True
        self.functions.close("stopped")
        endings = [
            self.ending.begin(sandbox, State.STOPPED, reason, Origin.PLATFORM)
            for sandbox in self.sandboxes
        ]
        if endings:
            await asyncio.wait(endings)
        await self.keeper.quit()
        self.build_network.quit()
        await self.storeroom.empty()
        await asyncio.get_running_loop().run_in_executor(self.memory_pool, self.swap.remove)
        await self.janitor.empty()
        await asyncio.to_thread(self.disks.discard)
        self.cgroups.close()

    def drain(self, draining: bool) -> None:
        """Take no new sandboxes, or take them again; a later service of this node does the same."""
        self.load.is_draining = draining
        if draining:
            self.places.draining.touch()
        else:
            self.places.draining.unlink(missing_ok=True)

    def refusing(self) -> str | None:
        """Return why no sandbox would be taken now, or None."""
        return closed(self.load, self.limits, time.monotonic())

    # ------------------------------------------------------- beside requests

    async def _end_in_time(self) -> None:
        """End sandboxes whose time is over or that are idle."""
        dates, changed = self.sandboxes.dates, self.sandboxes.dates_changed
        while True:
            changed.clear()
            at = dates.next_at()
            delay = None if at is None else max(0.0, at - time.time())
            try:
                async with asyncio.timeout(delay):
                    await changed.wait()
            except TimeoutError:
                pass
            for sandbox_id in dates.take_due(time.time()):
                sandbox = self.sandboxes.find(sandbox_id)
                if sandbox is None or sandbox.ending is not None:
                    continue
                reason = self.sandboxes.due(sandbox, time.time())
                if reason is None:
                    continue
                if is_to_pause(sandbox.life(), time.time()):
                    self.pausing.begin_idle_pause(sandbox, reason)
                else:
                    self.ending.begin(sandbox, State.STOPPED, reason, Origin.PLATFORM)

    async def _sweep(self) -> None:
        """Drop streams, watches and uploads of clients that have fallen silent."""
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            self.streams.expire(now)
            self.watches.expire(self.sandboxes.find, now)
            self.files.expire(self.sandboxes.find, now)
            self.metrics.streams.set(len(self.streams))

    async def _reconcile(self) -> None:
        while True:
            try:
                return await self.adoption.reconcile(self._store, self.records)
            except Unreachable:
                await asyncio.sleep(1)

    def _close_streams(self, sandbox: Sandbox) -> None:
        self.streams.forget(sandbox, gone(sandbox.info()))

    def _show_swap(self) -> None:
        self.metrics.swap.set(self.swap.sizes()[0])
        self.metrics.swap_missing.set(self.swap.problem is not None)

    def _needed_layers(self) -> set[str]:
        """Return the layers that forks and snapshots under way need."""
        forks = self.snapshot_records.forks()
        return self.snapshots.needed() | {d for fork in forks for d in fork.info.layers}

    async def _awake(self, sandbox: Sandbox) -> None:
        await self.pausing.awake(sandbox)

    def _on_watch(self, sandbox: Sandbox, frame: Frame) -> None:
        self.watches.on_event(sandbox, frame)

    def _end_for_disk(self, sandbox_id: str, reason: str) -> None:
        sandbox = self.sandboxes.find(sandbox_id)
        if sandbox is not None:
            self.ending.begin(sandbox, State.FAILED, reason, Origin.AGENT)

    def _lose_disks(self, sandbox_ids: Sequence[str], reason: str) -> None:
        for sandbox_id in sandbox_ids:
            sandbox = self.sandboxes.find(sandbox_id)
            if sandbox is not None:
                self.ending.begin(sandbox, State.FAILED, reason, Origin.PLATFORM)

    def _on_launcher_lost(self) -> None:
        """Fail all sandboxes: they have died with the launcher."""
        self.log.error("launcher.died", sandboxes=len(self.sandboxes))
        for sandbox in self.sandboxes:
            self.ending.begin(sandbox, State.FAILED, LAUNCHER_DIED, Origin.PLATFORM)
        if not self.keeper.is_opening:
            self.tasks.start(self._reopen(), "reopen launcher", critical=True)

    async def _reopen(self) -> None:
        found = await self.keeper.reopen(self.listeners)
        await self.storeroom.refresh(found.prepared)

    async def _forget_snapshot(self, snapshot_id: str) -> None:
        await self.layers.remove_record("snapshots", snapshot_id)
        self.catalog.forget(snapshot_id)

    def _on_outdated(self, infos: list[SandboxInfo]) -> None:
        self.tasks.start(self._end_given_up(infos), "outdated records")

    async def _end_given_up(self, infos: list[SandboxInfo]) -> None:
        """End sandboxes that Redis has as ended: others gave them up while this node was away."""
        try:
            on_record = await self._store.get_many([info.sandbox_id for info in infos])
        except Unreachable as problem:
            self.log.warning("records.unread", error=problem.message)
            return
        for info in on_record:
            sandbox = None if info is None else self.sandboxes.find(info.sandbox_id)
            if info is None or sandbox is None:
                continue
            if info.state not in TERMINAL:
                await self.moving.compare(sandbox, info)
                continue
            sandbox.version = max(sandbox.version, info.version)
            reason = f"it was given up: {info.reason or 'no reason is known'}"
            self.ending.begin(sandbox, State.STOPPED, reason, info.origin or Origin.PLATFORM)
