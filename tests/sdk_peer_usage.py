"""The peer's part that pauses, resumes and tells what sandboxes use."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import Conflict, NotFound
from sandfleet_common.ranking import most
from sandfleet_common.states import TERMINAL, Origin, State

if TYPE_CHECKING:
    from sdk_peer import Peer

Handlers = dict[s.Subject[Any, Any], Callable[[Any], Awaitable[Any]]]


@dataclass
class Usages:
    """What a test says that sandboxes use, and what it finds was done to them."""

    peer: Peer
    node: str
    used: dict[str, m.SandboxUsage] = field(default_factory=dict[str, m.SandboxUsage])
    phases: list[m.SandboxPhase] = field(default_factory=list[m.SandboxPhase])
    waited: list[float] = field(default_factory=list[float])
    """How long each pause was to wait."""
    acts: list[m.SandboxesAct] = field(default_factory=list[m.SandboxesAct])
    unpausable: set[str] = field(default_factory=set[str])
    strangers: list[str] = field(default_factory=list[str])
    """Nodes that are told of and never answer."""
    node_is_listed: bool = True

    def handlers(self) -> Handlers:
        """Return each subject with what answers it."""
        return {
            s.PAUSE: self.pause,
            s.RESUME: self.resume,
            s.SET_PHASE: self.set_phase,
            s.USAGE: self.usage,
            s.NODE_USAGE: self.node_usage,
            s.NODE_LIST: self.nodes,
            s.SANDBOXES_ACT: self.act,
        }

    def _move(self, sandbox_id: str, state: State) -> m.SandboxInfo:
        info = self.peer.sandboxes.get(sandbox_id)
        if info is None:
            raise NotFound(f"{sandbox_id} is not here")
        info = info.model_copy(update={"state": state})
        self.peer.sandboxes[sandbox_id] = info
        return info

    async def pause(self, body: m.SandboxPause) -> m.SandboxInfo:
        if body.sandbox_id in self.unpausable:
            raise Conflict(f"{body.sandbox_id} is a warm one, it is not paused")
        self.waited.append(body.wait_seconds)
        return self._move(body.sandbox_id, State.PAUSED)

    async def resume(self, body: m.SandboxResume) -> m.SandboxInfo:
        return self._move(body.sandbox_id, State.RUNNING)

    async def set_phase(self, body: m.SandboxSetPhase) -> m.Ok:
        self.phases.append(body.phase)
        return m.Ok()

    def _usage(self, info: m.SandboxInfo) -> m.SandboxUsage:
        used = self.used.get(info.sandbox_id) or m.SandboxUsage(
            sandbox_id=info.sandbox_id, state=info.state, at=time.time(), labels=info.spec.labels
        )
        return used.model_copy(update={"state": info.state})

    async def usage(self, body: m.SandboxUsageGet) -> m.SandboxUsage:
        return self._usage(await self.peer.get(m.SandboxGet(sandbox_id=body.sandbox_id)))

    async def node_usage(self, body: m.NodeUsageGet) -> m.NodeUsage:
        live = [self._usage(i) for i in self.peer.sandboxes.values() if i.state not in TERMINAL]
        return m.NodeUsage(
            node=self.node,
            at=time.time(),
            sandboxes=most(live, body.order, body.limit),
            count=len(live),
            paused=sum(u.state is State.PAUSED for u in live),
            cpu_cores=sum(u.cpu_cores for u in live),
            memory_bytes=sum(u.memory_bytes for u in live),
        )

    async def nodes(self, body: m.NodeList) -> m.NodePage:
        own = [self.node] if self.node_is_listed else []
        return m.NodePage(nodes=[beat_of(name) for name in (*own, *self.strangers)])

    async def act(self, body: m.SandboxesAct) -> m.SandboxesActed:
        self.acts.append(body)
        wanted = [
            info.sandbox_id
            for info in self.peer.sandboxes.values()
            if info.state not in TERMINAL
            and body.job_id in (None, info.job_id)
            and body.labels.items() <= info.spec.labels.items()
        ]
        failures: list[m.ActOutcome] = []
        for sandbox_id in wanted:
            if body.action == "stop":
                self.peer.end(sandbox_id, body.reason, Origin.USER)
            elif sandbox_id in self.unpausable:
                failure = m.Failure(code="conflict", message="a warm one is not paused")
                failures.append(m.ActOutcome(sandbox_id=sandbox_id, failure=failure))
            else:
                self._move(sandbox_id, State.PAUSED if body.action == "pause" else State.RUNNING)
        return m.SandboxesActed(
            matched=len(wanted), done=len(wanted) - len(failures), failures=failures
        )


def beat_of(name: str) -> m.NodeBeat:
    """Return the heartbeat of a node with 24 GiB and two cores."""
    amounts = m.NodeCapacity(sandboxes=4000, cpu=2, memory_bytes=24 * m.GIB, disk_bytes=m.GIB)
    return m.NodeBeat(
        node=name,
        boot="b",
        sequence=1,
        at=time.time(),
        state=m.NodeState.READY,
        runtimes=["native"],
        environments=["debian"],
        capacity=amounts,
        requested=amounts,
        starting=0,
        starting_limit=512,
        memory_available_bytes=20 * m.GIB,
        load_per_core=0.25,
        disk_free_bytes=30 * m.GIB,
        pressure=m.Pressure(cpu_some=1.5, memory_some=0, io_some=12),
    )
