"""The nodes: their heartbeats, who is silent, who is lost, and what was lost with them.

A node is lost when it has been silent for `node_lost_seconds` on NATS while this
scheduler could hear, and its heartbeat has gone from Redis too: one of the two
alone may be a broken connection, and then its sandboxes live on.

Declaring a node lost ends its sandboxes on record: `failed`, origin `node-lost`.
The compare-and-set of the store makes that safe for any number of schedulers.
`failed` is final. A node that comes back finds out when it writes its sandboxes:
`Store.save` returns False for those, and it ends them.
"""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus
from sandfleet_common.errors import NodeLost, Unreachable
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    JobEvent,
    JobState,
    NodeBeat,
    SandboxEvent,
    SandboxInfo,
    SlotFailure,
)
from sandfleet_common.states import TERMINAL, Origin, State
from sandfleet_common.store import Store

from .config import SchedulerSettings
from .core import Core
from .line import Line
from .metrics import SchedulerMetrics

_AT_ONCE = 500
_TRIES = 3
LOST = "its node stopped answering"


class Fleet:
    """What this scheduler knows of the nodes, kept up to date."""

    def __init__(
        self,
        bus: Bus,
        store: Store,
        core: Core,
        settings: SchedulerSettings,
        metrics: SchedulerMetrics,
        log: Logger,
    ) -> None:
        self.core = core
        self.on_lost: list[Callable[[str], None]] = []
        """Called with the name of each node that is declared lost."""
        self.line = Line()
        """Who waits for room."""
        self.reconnects = 0
        self._bus = bus
        self._store = store
        self._settings = settings
        self._metrics = metrics
        self._log = log
        self._lost: set[str] = set()
        self._scopes: dict[str, set[asyncio.Timeout]] = defaultdict(set)
        self._listening_since = self.now()
        bus.on_reconnect(self._on_reconnect)

    @staticmethod
    def now() -> float:
        """Return the time that the core counts in."""
        return asyncio.get_running_loop().time()

    @property
    def listening_seconds(self) -> float:
        """For how long every heartbeat has been heard."""
        return self.now() - self._listening_since

    async def prime(self) -> None:
        """Take in the heartbeats on record, so that the first request finds nodes."""
        try:
            beats = await self._store.nodes()
        except Unreachable:
            return
        for beat in beats:
            self.core.hear(beat, self.now() - max(0.0, time.time() - beat.at))

    async def on_beat(self, beat: NodeBeat) -> None:
        """Take in a heartbeat."""
        if not self.core.hear(beat, self.now()):
            return
        if beat.node in self._lost:
            self._lost.discard(beat.node)
            self._log.warning("node.returned", node=beat.node)
        self.notify()

    def notify(self) -> None:
        """Wake those that wait for room."""
        self.line.notify()

    def is_lost(self, node: str) -> bool:
        """Return whether nothing is to be expected of a node any more."""
        if node in self.core.nodes:
            return False
        return node in self._lost or self.listening_seconds > self._settings.node_lost_seconds

    @asynccontextmanager
    async def while_alive(self, node: str) -> AsyncGenerator[None]:
        """Run the block until it ends or the node is lost.

        Raises:
            NodeLost: it is, or became so.
        """
        if self.is_lost(node):
            raise NodeLost(f"node {node} stopped answering", node=node)
        scope = asyncio.timeout(None)
        scopes = self._scopes[node]
        try:
            async with scope:
                scopes.add(scope)
                yield
        except TimeoutError:
            if not scope.expired():
                raise
            raise NodeLost(f"node {node} stopped answering", node=node) from None
        finally:
            scopes.discard(scope)
            if not scopes:
                self._scopes.pop(node, None)

    async def watch(self) -> None:
        """Look for lost nodes until cancelled."""
        while True:
            await asyncio.sleep(1)
            if not self._bus.is_connected:
                self._listening_since = self.now()
                continue
            silent = self.core.silent(self.now(), self._settings.node_silent_seconds)
            self._metrics.nodes.set(len(self.core.nodes))
            self._metrics.nodes_silent.set(len(silent))
            try:
                for name in await self._candidates():
                    await self._declare(name)
            except Unreachable as problem:
                self._log.warning("fleet.watch_failed", error=str(problem))

    async def end_lost(self, known: Sequence[SandboxInfo]) -> list[SandboxInfo]:
        """Record sandboxes as lost with their node, and tell; returns those this call ended.

        `known` is the latest that is known of each; what is on record counts when it is newer.

        Raises:
            Unreachable: Redis is down; doing it again is safe.
        """
        ended: list[SandboxInfo] = []
        left = list(known)
        for _ in range(_TRIES):
            records = await self._store.get_many([info.sandbox_id for info in left])
            current = [record or info for record, info in zip(records, left, strict=True)]
            live = [info for info in current if info.state not in TERMINAL]
            failed = [_failed(info) for info in live]
            saved = await self._store.save(failed)
            for before, after, is_saved in zip(live, failed, saved, strict=True):
                if is_saved:
                    ended.append(after)
                    event = SandboxEvent(info=after, previous=before.state)
                    await self._bus.publish(s.SANDBOX_EVENT, event, sandbox=after.sandbox_id)
            left = [info for info, is_saved in zip(live, saved, strict=True) if not is_saved]
            if not left:
                break
        self._metrics.sandboxes_lost.inc(len(ended))
        return ended

    # ---------------------------------------------------------------- internal

    def _on_reconnect(self) -> None:
        self.reconnects += 1
        self._listening_since = self.now()

    async def _candidates(self) -> list[str]:
        """Return the nodes to declare lost."""
        limit, now = self._settings.node_lost_seconds, self.now()
        if self.listening_seconds <= limit:
            return []
        names = set(self.core.silent(now, limit))
        names |= await self._store.node_names() - self.core.nodes.keys()
        if not names:
            return []
        return sorted(names - {beat.node for beat in await self._store.nodes()})

    async def _declare(self, name: str) -> None:
        if name not in self._lost:
            self._log.error("node.lost", node=name)
            self._metrics.nodes_lost.inc()
        self._lost.add(name)
        self.core.forget(name)
        for scope in list(self._scopes.get(name, ())):
            scope.reschedule(self.now())
        for callback in self.on_lost:
            callback(name)
        ids = sorted(await self._store.live_on(name))
        for start in range(0, len(ids), _AT_ONCE):
            records = await self._store.get_many(ids[start : start + _AT_ONCE])
            # One that has moved meanwhile is not lost with the node that it came from.
            lost = [record for record in records if record is not None and record.node == name]
            ended = await self.end_lost(lost)
            await self._tell_jobs(ended)
        # Only now: until then any scheduler that looks begins anew.
        await self._store.forget_node(name)

    async def _tell_jobs(self, ended: Sequence[SandboxInfo]) -> None:
        """Tell jobs that are over which of their sandboxes are gone; a running job knows."""
        by_job: dict[str, list[SandboxInfo]] = defaultdict(list)
        for info in ended:
            if info.job_id is not None and info.slot is not None:
                by_job[info.job_id].append(info)
        for job_id, infos in by_job.items():
            known = await self._store.get_job(job_id)
            if known is None or known[1].state == JobState.PLACING:
                continue
            failed = [lost_slot(info.slot) for info in infos if info.slot is not None]
            await self._bus.publish(s.JOB_EVENTS, JobEvent(job=known[1], failed=failed), job=job_id)


def lost_slot(slot: int) -> SlotFailure:
    """Return what a job is told of a slot whose sandbox was lost."""
    return SlotFailure(slot=slot, code=NodeLost.code, message=f"the sandbox was lost: {LOST}")


def _failed(info: SandboxInfo) -> SandboxInfo:
    return info.model_copy(
        update={
            "state": State.FAILED,
            "version": info.version + 1,
            "ended_at": time.time(),
            "reason": f"{LOST} (node {info.node})",
            "origin": Origin.NODE_LOST,
        }
    )
