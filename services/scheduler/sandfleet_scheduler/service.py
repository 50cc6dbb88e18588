"""The scheduler: what it hears, what it answers, what it does all the time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from random import Random

from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus, Subscription
from sandfleet_common.errors import Broken, NotFound, Unreachable
from sandfleet_common.ids import node_of
from sandfleet_common.lifecycle import Health
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    NodeList,
    NodePage,
    SandboxGet,
    SandboxInfo,
    SandboxList,
    SandboxPage,
)
from sandfleet_common.store import ENDED_SECONDS, Store

from .actions import Actions
from .ahead import Ahead
from .config import SchedulerSettings
from .core import Core
from .fitting import fitted
from .fleet import Fleet
from .jobrun import Means
from .jobs import Jobs, watch_memory
from .metrics import SchedulerMetrics
from .migration import Migration
from .placement import Placer
from .records import Recorder
from .sending import Sender

CREATE_SECONDS = 3700.0
"""Longer than the longest deadline of a creation."""
_SWEEP_SECONDS = 30.0


class Scheduler:
    """One replica; any number may run."""

    name = "scheduler"

    def __init__(
        self,
        settings: SchedulerSettings,
        bus: Bus,
        store: Store,
        metrics: SchedulerMetrics,
        health: Health,
        log: Logger,
    ) -> None:
        self._bus = bus
        self._store = store
        self._log = log
        core = Core(Random(), choices=settings.choices, silent_seconds=settings.node_silent_seconds)
        self._fleet = Fleet(bus, store, core, settings, metrics, log)
        self._actions = Actions(bus, store, self._fleet, settings, metrics, log)
        sender = Sender(bus, store, self._fleet, self._actions, settings, metrics, log)
        self._migration = Migration(bus, store, self._fleet, sender, log)
        self._ahead = Ahead(store)
        self._recorder = Recorder(store, log)
        self._placer = Placer(
            store, self._fleet, self._actions, sender, self._recorder, settings, metrics, log
        )
        self._means = Means(
            bus, store, self._fleet, self._actions, self._ahead, sender, settings, metrics, log
        )
        self._jobs = Jobs(self._means)
        self._serving: list[Subscription] = []
        self._taking: asyncio.Task[None] | None = None
        self._store_problem: str | None = None
        health.checks["bus"] = lambda: None if bus.is_connected else "NATS is not connected"
        health.checks["store"] = lambda: self._store_problem

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled."""
        await self._bus.ensure_streams(self._means.settings.stream_replicas)
        await self._fleet.prime()
        await self._bus.listen(s.NODE_BEAT, self._fleet.on_beat)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._end_when_closed())
            group.create_task(self._fleet.watch())
            group.create_task(self._recorder.run())
            group.create_task(self._watch_store())
            group.create_task(self._ahead.watch(lambda: len(self._jobs) > 0))
            group.create_task(self._sweep())
            group.create_task(watch_memory(self._jobs, self._means))
            self._taking = group.create_task(self._jobs.take())
            await self._serve()
            await self._bus.flush()
            ready()

    async def drain(self) -> None:
        """Answer what was asked, hand running jobs to another scheduler."""
        for subscription in self._serving:
            await subscription.close()
        if self._taking is not None:
            self._taking.cancel()
            await asyncio.wait({self._taking}, timeout=1)
        await self._jobs.hand_over()

    async def _serve(self) -> None:
        bus, queue = self._bus, s.SCHEDULER_QUEUE
        self._serving += [
            await bus.serve(
                s.SANDBOX_CREATE, self._placer.create, queue=queue, within=CREATE_SECONDS
            ),
            await bus.serve(
                s.SANDBOX_MIGRATE, self._migration.migrate, queue=queue, within=CREATE_SECONDS
            ),
            await bus.serve(s.SANDBOX_GET, self._get, queue=queue),
            await bus.serve(
                s.SANDBOXES_ACT,
                self._actions.act,
                queue=queue,
                within=self._means.settings.act_seconds + 10,
            ),
            await bus.serve(s.SANDBOX_LIST, self._list, queue=queue),
            await bus.serve(s.NODE_LIST, self._nodes, queue=queue),
            await bus.serve(s.JOB_GET, self._jobs.get, queue=queue),
            await bus.serve(s.JOB_SLOTS, self._jobs.slots, queue=queue),
            await bus.serve(s.JOB_CANCEL, self._jobs.cancel, queue=queue),
        ]

    async def _get(self, request: SandboxGet) -> SandboxInfo:
        node_of(request.sandbox_id)
        info = await self._store.get(request.sandbox_id)
        if info is None:
            raise NotFound(
                f"there is no sandbox {request.sandbox_id} on record",
                sandbox=request.sandbox_id,
            )
        return info

    async def _list(self, request: SandboxList) -> SandboxPage:
        return fitted(await self._store.list(request))

    async def _nodes(self, request: NodeList) -> NodePage:
        return NodePage(nodes=await self._store.nodes())

    async def _watch_store(self) -> None:
        while True:
            try:
                await self._store.ping()
                self._store_problem = None
            except Unreachable as problem:
                self._store_problem = problem.message
            await asyncio.sleep(1)

    async def _sweep(self) -> None:
        """Drop ended sandboxes from the index once their records have expired."""
        while True:
            try:
                while await self._store.forget_ended(time.time() - ENDED_SECONDS) == 1000:
                    pass
            except Unreachable as problem:
                self._log.warning("sweep.failed", error=str(problem))
            await asyncio.sleep(_SWEEP_SECONDS)

    async def _end_when_closed(self) -> None:
        await self._bus.until_closed()
        raise Broken("NATS has closed the connection for good")
