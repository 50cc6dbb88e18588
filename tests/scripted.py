"""A node that does as it is told: speaks the contract over real NATS and Redis, runs nothing.

It is the scheduler's peer in tests of the scheduler: it admits or refuses, answers
late or never, and keeps the truth about its sandboxes as a node does.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus, Subscription
from sandfleet_common.errors import NotFound, SandfleetError, Unreachable
from sandfleet_common.ids import new_ulid
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    GIB,
    ActOutcome,
    Failure,
    NodeAct,
    NodeActed,
    NodeBeat,
    NodeCapacity,
    NodeCreate,
    NodeCreated,
    NodeCreateItem,
    NodeState,
    Outcome,
    Pressure,
    SandboxInfo,
    SandboxStop,
)
from sandfleet_common.states import TERMINAL, Origin, State
from sandfleet_common.store import Store


class ScriptedNode:
    """One node. Change its attributes to change what it says and does."""

    def __init__(self, name: str, bus: Bus, store: Store) -> None:
        self.name = name
        self.bus = bus
        self.store = store
        self.boot = new_ulid()
        self.state = NodeState.READY
        self.environments = ["debian"]
        self.environments_complete = True
        self.lacks: set[str] = set()
        """Environments that it looks for and does not find."""
        self.capacity = 1000
        self.starting_limit = 512
        self.start_seconds = 0.0
        self.refusing: str | None = None
        self.busy_seconds: float | None = None
        """It refuses as busy, and says to come again after so long."""
        self.pressure = Pressure()
        self.starts_per_second = 0.0
        self.is_beating = True
        self.refuse: Callable[[NodeCreateItem], str | None] = lambda item: None
        """Why an item is refused, or None."""
        self.fail: Callable[[NodeCreateItem], str | None] = lambda item: None
        self.gate = asyncio.Event()
        """Answers wait for it."""
        self.gate.set()
        self.asked = asyncio.Event()
        self.losing = 0
        """So many answers are lost."""
        self.sandboxes: dict[str, SandboxInfo] = {}
        self.creations: Counter[str] = Counter()
        """How often each id was really created."""
        self.requests: list[NodeCreate] = []
        self.stopped: list[str] = []
        self.actions: list[NodeAct] = []
        self.act: Callable[[NodeAct], SandfleetError | None] = lambda request: None
        """Why a request to act on many is answered with an error, or None."""
        self._sequence = 0
        self._starting: dict[str, asyncio.Event] = {}
        self._closing = asyncio.Event()
        self._subscriptions: list[Subscription] = []

    @property
    def live(self) -> list[SandboxInfo]:
        """Return its live sandboxes."""
        return [info for info in self.sandboxes.values() if info.state not in TERMINAL]

    async def open(self) -> None:
        """Serve, and be heard."""
        self._subscriptions = [
            await self.bus.serve(s.NODE_CREATE, self._create, node=self.name),
            await self.bus.serve(s.STOP, self._stop, node=self.name),
            await self.bus.serve(s.NODE_ACT, self._act, node=self.name),
        ]
        await self.beat()
        await self.bus.flush()

    async def close(self) -> None:
        """Fall silent, without a word and with all sandboxes running."""
        self.is_beating = False
        self._closing.set()
        for subscription in self._subscriptions:
            await subscription.close()

    async def beat(self) -> None:
        """Send one heartbeat; write the inventory anew when Redis has lost it."""
        self._sequence += 1
        live = self.live
        beat = NodeBeat(
            node=self.name,
            boot=self.boot,
            sequence=self._sequence,
            at=time.time(),
            state=self.state,
            runtimes=["native"],
            environments=self.environments,
            environments_complete=self.environments_complete,
            capacity=NodeCapacity(
                sandboxes=self.capacity, cpu=1e4, memory_bytes=GIB * 10**4, disk_bytes=GIB * 10**5
            ),
            requested=NodeCapacity(
                sandboxes=len(live),
                cpu=sum(i.spec.resources.cpu for i in live),
                memory_bytes=sum(i.spec.resources.memory_bytes for i in live),
                disk_bytes=sum(i.spec.resources.disk_bytes for i in live),
            ),
            starting=len(self._starting),
            starting_limit=self.starting_limit,
            memory_available_bytes=GIB,
            load_per_core=0.0,
            disk_free_bytes=GIB,
            refusing=self.refusing,
            pressure=self.pressure,
            starts_per_second=self.starts_per_second,
        )
        try:
            await self.bus.publish(s.NODE_BEAT, beat)
            if not await self.store.beat(beat):
                await self._report()
        except Unreachable:
            return

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            if self.is_beating:
                await self.beat()
            await asyncio.sleep(0.2)

    async def _report(self) -> None:
        live = self.live
        for info, is_saved in zip(live, await self.store.save(live), strict=True):
            if not is_saved:
                self.sandboxes[info.sandbox_id] = _ended(info, State.FAILED, "declared lost")
                self.stopped.append(info.sandbox_id)
        await self.store.mark_intact(self.name, self.boot)

    async def _create(self, request: NodeCreate) -> NodeCreated:
        self.requests.append(request)
        self.asked.set()
        outcomes = await asyncio.gather(*(self._one(item) for item in request.items))
        await self.gate.wait()
        if self.losing:
            self.losing -= 1
            await self._closing.wait()
        return NodeCreated(outcomes=list(outcomes))

    async def _one(self, item: NodeCreateItem) -> Outcome:
        sandbox_id = item.sandbox_id
        if (starting := self._starting.get(sandbox_id)) is not None:
            await starting.wait()
        known = self.sandboxes.get(sandbox_id)
        if known is not None:
            status = "ready" if known.state == State.RUNNING else "failed"
            return Outcome(sandbox_id=sandbox_id, status=status, info=known)
        if self.busy_seconds is not None:
            fields = {"retry_after_seconds": self.busy_seconds}
            failure = Failure(code="busy", message="its starting queue is full", fields=fields)
            return Outcome(sandbox_id=sandbox_id, status="refused", failure=failure)
        if item.spec.environment in self.lacks:
            return _lacking(item)
        why = self.refuse(item)
        if why is None and len(self.live) + len(self._starting) >= self.capacity:
            why = "it is full"
        if why is not None:
            return _outcome(item, "refused", why)
        starting = self._starting[sandbox_id] = asyncio.Event()
        try:
            await asyncio.sleep(self.start_seconds)
            if (problem := self.fail(item)) is not None:
                return _outcome(item, "failed", problem)
            return await self._ready(item)
        finally:
            starting.set()
            del self._starting[sandbox_id]

    async def _ready(self, item: NodeCreateItem) -> Outcome:
        now = time.time()
        info = SandboxInfo(
            sandbox_id=item.sandbox_id,
            node=self.name,
            state=State.RUNNING,
            version=2,
            spec=item.spec,
            job_id=item.job_id,
            slot=item.slot,
            created_at=item.requested_at,
            ready_at=now,
        )
        self.sandboxes[item.sandbox_id] = info
        self.creations[item.sandbox_id] += 1
        try:
            await self.store.save([info])
        except Unreachable:
            # As a node does: the next heartbeat finds its mark gone, or tries again.
            await self.store_later(info)
        return Outcome(sandbox_id=item.sandbox_id, status="ready", info=info)

    async def store_later(self, info: SandboxInfo) -> None:
        """Take a new boot, so that the next heartbeat writes everything."""
        self.boot = new_ulid()

    async def _stop(self, request: SandboxStop) -> SandboxInfo:
        known = self.sandboxes.get(request.sandbox_id)
        if known is None:
            raise NotFound("no such sandbox here")
        if known.state not in TERMINAL:
            known = _ended(known, State.STOPPED, request.reason)
            self.sandboxes[request.sandbox_id] = known
            self.stopped.append(request.sandbox_id)
            await self.store.save([known])
        return known

    async def _act(self, request: NodeAct) -> NodeActed:
        self.actions.append(request)
        self.asked.set()
        if (problem := self.act(request)) is not None:
            raise problem
        outcomes = [await self._act_on(request, name) for name in request.sandbox_ids]
        await self.gate.wait()
        if self.losing:
            self.losing -= 1
            await self._closing.wait()
        return NodeActed(outcomes=outcomes)

    async def _act_on(self, request: NodeAct, sandbox_id: str) -> ActOutcome:
        known = self.sandboxes.get(sandbox_id)
        if known is None or (known.state in TERMINAL and request.action != "stop"):
            failure = Failure(code="sandbox_gone", message="it has ended")
            return ActOutcome(sandbox_id=sandbox_id, failure=failure)
        if request.action == "stop":
            info = await self._stop(SandboxStop(sandbox_id=sandbox_id, reason=request.reason))
            return ActOutcome(sandbox_id=sandbox_id, info=info)
        state = State.PAUSED if request.action == "pause" else State.RUNNING
        if known.state != state:
            known = known.model_copy(update={"state": state, "version": known.version + 1})
            self.sandboxes[sandbox_id] = known
            await self.store.save([known])
        return ActOutcome(sandbox_id=sandbox_id, info=known)


def _outcome(item: NodeCreateItem, status: str, why: str) -> Outcome:
    code = "no_capacity" if status == "refused" else "sandbox_failed"
    failure = Failure(code=code, message=why)
    return Outcome.of(sandbox_id=item.sandbox_id, status=status, failure=failure)


def _lacking(item: NodeCreateItem) -> Outcome:
    name = item.spec.environment
    fields = {"environment": name}
    failure = Failure(code="not_found", message=f"there is no environment {name}", fields=fields)
    return Outcome(sandbox_id=item.sandbox_id, status="refused", failure=failure)


def _ended(info: SandboxInfo, state: State, reason: str) -> SandboxInfo:
    return info.model_copy(
        update={
            "state": state,
            "version": info.version + 1,
            "ended_at": time.time(),
            "reason": reason,
            "origin": Origin.USER,
        }
    )


@asynccontextmanager
async def scripted_node(
    name: str, bus: Bus, store: Store, log: Logger
) -> AsyncGenerator[ScriptedNode]:
    """Run a node while the block runs."""
    node = ScriptedNode(name, bus, store)
    async with Tasks(log) as tasks:
        await node.open()
        tasks.start(node.run(), f"node {name}")
        try:
            yield node
        finally:
            await node.close()
