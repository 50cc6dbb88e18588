"""The shell of the node service: what it hears on the bus, and how it stops."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

from sandfleet_common.bus import Bus, Subscription
from sandfleet_common.errors import Unreachable
from sandfleet_common.lifecycle import Health
from sandfleet_common.logs import Logger
from sandfleet_common.messages import NodeDrain, Ok
from sandfleet_common.store import Store
from sandfleet_common.subjects import (
    FORK,
    NODE_ACT,
    NODE_CREATE,
    NODE_DEPART,
    NODE_DEPARTED,
    NODE_DRAIN,
    NODE_USAGE,
    STORE_QUEUE,
    Subject,
    io_subject,
)

from .config import NodeSettings
from .functions import Hearing
from .metrics import NodeMetrics
from .node import Node
from .operations import Operations
from .places import Places

_CREATE_SECONDS = 3600.0
"""A batch has deadlines of its own; the handler's is only the last resort."""
_WITHIN_SECONDS = 120.0
_FLUSH_SECONDS = 3.0


class AlreadyRunning(RuntimeError):
    """Another service runs this node."""


def take_lock(places: Places) -> int:
    """Make sure that this process alone runs the node, and return the lock to close in the end.

    Raises:
        AlreadyRunning: another does.
    """
    places.make()
    handle = os.open(places.lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise AlreadyRunning(f"another service runs the node in {places.root}") from None
    return handle


class NodeService:
    """One node on the bus."""

    name = "node"

    def __init__(
        self,
        settings: NodeSettings,
        bus: Bus,
        store: Store,
        metrics: NodeMetrics,
        health: Health,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._bus = bus
        self._store = store
        self._metrics = metrics
        self._health = health
        self._log = log
        self._heard: list[Subscription] = []
        self._calls: Hearing | None = None
        self.node: Node | None = None

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled; the sandboxes stay for the next service."""
        lock = take_lock(Places(self._settings.state_dir, self._settings.name))
        try:
            async with Node.open(
                self._settings, self._bus, self._store, self._metrics, self._log
            ) as node:
                self.node = node
                self._watch_health(node)
                node.tasks.start(node.beats.run(), "beats", critical=True)
                await self._listen(node)
                self._log.info("node.cgroups", mode=node.cgroups.hierarchies.describe())
                ready()
                await self._until_broken(node)
        finally:
            os.close(lock)

    async def drain(self) -> None:
        """Take no more requests, bring records up to date, and, if set so, end all sandboxes."""
        for subscription in self._heard:
            await subscription.close()
        if self._calls is not None:
            await self._calls.close()
        node = self.node
        if node is None:
            return
        if self._settings.stop_sandboxes_on_exit:
            await node.stop_all("its node was stopped")
        node.load.is_draining = True
        await node.beats.finish(_FLUSH_SECONDS)
        await node.records.finish(_FLUSH_SECONDS)

    async def _until_broken(self, node: Node) -> None:
        """Wait until a part of the node fails, or the bus throws us out for good."""
        failed = node.tasks.start(node.tasks.failed(), "failed")
        closed = node.tasks.start(self._bus.until_closed(), "bus closed")
        await asyncio.wait({failed, closed}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            raise failed.result()
        raise Unreachable("the bus has closed the connection for good")

    def _watch_health(self, node: Node) -> None:
        self._health.checks["launcher"] = node.keeper.problem
        self._health.checks["bus"] = lambda: (
            None if self._bus.is_connected else "the bus is not connected"
        )
        self._health.warnings["store"] = lambda: (
            None if node.beats.is_redis_up else "Redis does not answer"
        )
        self._health.warnings["swap"] = lambda: node.swap.problem

    async def _listen(self, node: Node) -> None:
        name = self._settings.name
        await self._serve(NODE_CREATE, node.creation.create, within=_CREATE_SECONDS)
        await self._serve(NODE_DRAIN, partial(self._drain_node, node))
        await self._serve(NODE_USAGE, node.usage.top)
        await self._serve(NODE_ACT, node.acting.act)
        await self._serve(NODE_DEPART, node.moving.depart, within=_CREATE_SECONDS)
        await self._serve(NODE_DEPARTED, node.moving.departed)
        for subject, handler in Operations(node).table():
            within = _CREATE_SECONDS if subject is FORK else _WITHIN_SECONDS
            await self._serve(subject, handler, within=within)
        for subject, handler, within in node.store_desk.table():
            await self._serve(subject, handler, within=within, queue=STORE_QUEUE)
        wildcard = io_subject(name, "x").removesuffix("x") + "*"

        async def on_frame(subject: str, payload: bytes) -> None:
            await node.streams.on_message(subject.rpartition(".")[2], payload)

        self._heard.append(await self._bus.subscribe_raw(wildcard, on_frame))
        self._calls = Hearing(
            self._bus,
            node.functions,
            lambda: [] if node.load.is_draining else node.catalog.followed(),
            self._log,
        )
        await self._calls.look()
        node.tasks.start(self._calls.run(), "function calls", critical=True)
        await self._bus.flush()

    async def _serve(
        self,
        subject: Subject[Any, Any],
        handler: Callable[[Any], Awaitable[Any]],
        within: float = _WITHIN_SECONDS,
        queue: str = "",
    ) -> None:
        count = self._metrics.operations.labels(subject.pattern.rpartition(".")[2])

        async def counted(body: Any) -> Any:
            count.inc()
            return await handler(body)

        holes = {"node": self._settings.name} if "node" in subject.holes() else {}
        self._heard.append(
            await self._bus.serve(subject, counted, queue=queue, within=within, **holes)
        )

    async def _drain_node(self, node: Node, body: NodeDrain) -> Ok:
        node.drain(body.draining)
        await node.beats.beat()
        return Ok()
