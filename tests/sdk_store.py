"""The other end of what the SDK keeps: snapshots, forks and environments, lost answers included."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from sdk_peer import NODE, Peer

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus
from sandfleet_common.errors import NoCapacity, NotFound, SandboxFailed

DIGEST = "sha256:" + "5" * 64


@dataclass(slots=True)
class StorePeer:
    """Serves a node's and the store's subjects from memory, over the real bus."""

    peer: Peer
    snapshots: dict[str, m.SnapshotInfo] = field(default_factory=dict[str, m.SnapshotInfo])
    environments: dict[str, m.EnvironmentInfo] = field(default_factory=dict[str, m.EnvironmentInfo])
    asked: list[m.Message] = field(default_factory=list[m.Message])
    lose_answers: Counter[str] = field(default_factory=Counter[str])
    ready_after: int = 1
    """So many questions about a snapshot until it is ready."""
    failure: str | None = None
    """Why snapshots fail."""
    room: int = 10_000
    """So many children fit."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    def questions(self, kind: type[m.Message]) -> list[Any]:
        """Return what was asked of one kind, in order."""
        return [body for body in self.asked if isinstance(body, kind)]

    async def snapshot(self, body: m.SandboxSnapshot) -> m.SnapshotInfo:
        if body.snapshot_id not in self.snapshots:
            self.snapshots[body.snapshot_id] = m.SnapshotInfo(
                snapshot_id=body.snapshot_id,
                sandbox_id=body.sandbox_id,
                node=NODE,
                state=m.SnapshotState.PACKING,
                name=body.name,
                labels=body.labels,
                layers=[DIGEST],
                created_at=time.time(),
            )
        return self._looked_at(body.snapshot_id)

    async def snapshot_get(self, body: m.SnapshotGet) -> m.SnapshotInfo:
        if body.snapshot_id not in self.snapshots:
            raise NotFound(f"there is no snapshot {body.snapshot_id}")
        return self._looked_at(body.snapshot_id)

    def _looked_at(self, snapshot_id: str) -> m.SnapshotInfo:
        self.ready_after -= 1
        info = self.snapshots[snapshot_id]
        if self.ready_after <= 0 and info.state is m.SnapshotState.PACKING:
            state, failure = m.SnapshotState.READY, None
            if self.failure is not None:
                state = m.SnapshotState.FAILED
                failure = m.Failure.from_error(SandboxFailed(self.failure))
            info = info.model_copy(update={"state": state, "failure": failure})
            self.snapshots[snapshot_id] = info
        return info

    async def snapshot_remove(self, body: m.SnapshotRemove) -> m.SnapshotsRemoved:
        if self.snapshots.pop(body.snapshot_id, None) is None:
            raise NotFound(f"there is no snapshot {body.snapshot_id}")
        return m.SnapshotsRemoved(snapshot_ids=[body.snapshot_id])

    async def snapshot_list(self, body: m.SnapshotList) -> m.SnapshotPage:
        known = sorted(self.snapshots.values(), key=lambda one: one.snapshot_id, reverse=True)
        known = [one for one in known if body.after is None or one.snapshot_id < body.after]
        page = known[:2]  # small, so that there are several
        more = page[-1].snapshot_id if len(known) > len(page) else None
        return m.SnapshotPage(snapshots=page, next=more)

    async def fork(self, body: m.SandboxFork) -> m.SandboxForked:
        ask = m.SandboxSnapshot(sandbox_id=body.sandbox_id, snapshot_id=body.snapshot_id)
        outcomes: list[m.Outcome] = []
        for child in body.children:
            if child not in self.peer.sandboxes and self.room <= 0:
                failure = m.Failure.from_error(NoCapacity("the node is full"))
                outcomes.append(m.Outcome(sandbox_id=child, status="refused", failure=failure))
                continue
            if child not in self.peer.sandboxes:
                self.room -= 1
                info = self.peer.new_sandbox(m.SandboxSpec(labels=body.changes.labels or {}))
                del self.peer.sandboxes[info.sandbox_id]
                self.peer.sandboxes[child] = info.model_copy(update={"sandbox_id": child})
            made = self.peer.sandboxes[child]
            outcomes.append(m.Outcome(sandbox_id=child, status="ready", info=made))
        return m.SandboxForked(snapshot=await self.snapshot(ask), outcomes=outcomes)

    async def environment_get(self, body: m.EnvironmentGet) -> m.EnvironmentInfo:
        if body.environment not in self.environments:
            raise NotFound(f"there is no environment {body.environment!r}")
        return self.environments[body.environment]

    async def environment_remove(self, body: m.EnvironmentRemove) -> m.Ok:
        if self.environments.pop(body.environment, None) is None:
            raise NotFound(f"there is no environment {body.environment!r}")
        return m.Ok()

    async def layer_find(self, body: m.LayerFind) -> m.LayerFound:
        del body
        return m.LayerFound()

    def handlers(self) -> dict[s.Subject[Any, Any], Callable[[Any], Awaitable[Any]]]:
        return {
            s.SNAPSHOT: self.snapshot,
            s.FORK: self.fork,
            s.SNAPSHOT_GET: self.snapshot_get,
            s.SNAPSHOT_LIST: self.snapshot_list,
            s.SNAPSHOT_REMOVE: self.snapshot_remove,
            s.ENVIRONMENT_GET: self.environment_get,
            s.ENVIRONMENT_REMOVE: self.environment_remove,
            s.LAYER_FIND: self.layer_find,
        }


@asynccontextmanager
async def storing(peer: Peer, bus: Bus) -> AsyncGenerator[StorePeer]:
    """Serve until the block ends; an answer that is to be lost is held until then."""
    it = StorePeer(peer)

    def losing(
        subject: s.Subject[Any, Any], handler: Callable[[Any], Awaitable[Any]]
    ) -> Callable[[Any], Awaitable[Any]]:
        async def answer(body: Any) -> Any:
            it.asked.append(body)
            reply = await handler(body)
            if it.lose_answers[subject.pattern] > 0:
                it.lose_answers[subject.pattern] -= 1
                await it.over.wait()
            return reply

        return answer

    for subject, handler in it.handlers().items():
        answer = losing(subject, handler)
        if "{node}" in subject.pattern:
            await bus.serve(subject, answer, node=NODE)
        else:
            await bus.serve(subject, answer, queue=s.STORE_QUEUE)
    await bus.flush()
    try:
        yield it
    finally:
        it.over.set()
