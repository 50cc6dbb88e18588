"""Sandboxes that move: they leave this node for another, or come from one.

A sandbox that is about to leave is paused and packed, and refuses operations. Then the
scheduler has another node create it under the same id, and tells this one. There must never be
two that clients can use:

* The record in Redis decides. It goes on from this node's version, far enough ahead that
  whatever this node still writes is older.
* The newcomer writes no record before it runs. If it fails it leaves no trace, and this node
  goes on with its own.
* Nobody may come back to tell how it ended. Then this node reads the record after a while: when
  another node has it, and it lives, ours ends in silence; else ours goes on. That is done at
  once by a service that starts and finds a sandbox that was about to leave.
* Should both have run for a moment, Redis has refused the writes of one, and that one ends.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from sandfleet_common import messages as m
from sandfleet_common.errors import Busy, Conflict, SandfleetError, Unreachable
from sandfleet_common.ids import new_snapshot_id
from sandfleet_common.logs import Logger
from sandfleet_common.states import TERMINAL, Origin, State
from sandfleet_common.store import Store

from .ending import Ending
from .pausing import Pausing
from .places import Places
from .sandbox import Sandbox
from .sandboxes import Sandboxes

_LOOK_SECONDS = 5.0
_MARK = "departing"
"""File in a sandbox's directory while it is about to leave: whether it ran before."""

_LEFT = "left "
"""What it begins with once the sandbox has left; then comes the node."""

Take = Callable[[m.SandboxSnapshot], Awaitable[m.SnapshotInfo]]


def left_for(directory: str) -> str | None:
    """Return the node that has a sandbox whose end here was cut off; None: it did not leave."""
    try:
        text = Path(directory, _MARK).read_text()
    except (OSError, ValueError):
        return None
    return text.removeprefix(_LEFT) if text.startswith(_LEFT) else None


@dataclass(slots=True)
class _Leaving:
    """A sandbox that is about to leave."""

    was: State
    since: float
    departure: asyncio.Task[m.Departure] | None = None


def _snapshot_of(leaving: _Leaving) -> str | None:
    task = leaving.departure
    if task is None or not task.done() or task.cancelled() or task.exception() is not None:
        return None
    return task.result().snapshot.snapshot_id


class Moving:
    """Lets sandboxes leave. `run` settles moves of which nobody tells the end."""

    def __init__(
        self,
        node: str,
        wait_seconds: float,
        sandboxes: Sandboxes,
        pausing: Pausing,
        ending: Ending,
        places: Places,
        store: Store,
        take: Take,
        forget: Callable[[str], Awaitable[None]],
        log: Logger,
    ) -> None:
        self._node = node
        self._wait_seconds = wait_seconds
        self._sandboxes = sandboxes
        self._pausing = pausing
        self._ending = ending
        self._places = places
        self._store = store
        self._take = take
        self._forget = forget
        self._log = log
        self._leaving: dict[str, _Leaving] = {}

    def demand_stays(self, sandbox_id: str) -> None:
        """Refuse an operation on a sandbox that is about to leave.

        Raises:
            Busy: it is; asked again later, whoever has it then answers.
        """
        if sandbox_id in self._leaving:
            raise Busy("the sandbox is moving to another node", retry_after_seconds=1)

    def forget(self, sandbox: Sandbox) -> None:
        """Forget a sandbox that ends."""
        self._leaving.pop(sandbox.id, None)

    # ---------------------------------------------------------------- leave

    async def depart(self, body: m.SandboxDepart) -> m.Departure:
        """Pause a sandbox, pack it into the store, and say what another node needs.

        Raises:
            Moved: it lives on another node already.
            SandfleetError: it cannot be paused or packed; it goes on.
        """
        sandbox = self._sandboxes.get(body.sandbox_id)
        if sandbox.state not in (State.RUNNING, State.PAUSED) or sandbox.ending is not None:
            raise Conflict(f"the sandbox is {sandbox.state}: it cannot move now")
        leaving = self._leaving.get(sandbox.id)
        if leaving is None:
            leaving = self._leaving[sandbox.id] = _Leaving(sandbox.state, time.monotonic())
            self._mark(sandbox, leaving.was)
            leaving.departure = asyncio.create_task(
                self._depart(sandbox, leaving), name=f"depart {sandbox.id}"
            )
        if leaving.departure is None:
            raise Busy("it is being found out how an earlier move ended", retry_after_seconds=1)
        try:
            departure = await asyncio.shield(leaving.departure)
        except SandfleetError:
            await self._stay(sandbox)
            raise
        leaving.since = time.monotonic()
        return departure

    async def _depart(self, sandbox: Sandbox, leaving: _Leaving) -> m.Departure:
        await self._pausing.pause(sandbox)
        taken = await self._take(
            m.SandboxSnapshot(
                sandbox_id=sandbox.id,
                snapshot_id=new_snapshot_id(self._node),
                description="for moving",
                scrub=False,
                wait_seconds=60,
            )
        )
        if taken.failure is not None:
            raise taken.failure.to_error()
        info = sandbox.info()
        left = info.ttl_left_seconds
        spec = sandbox.spec.model_copy(
            update={
                "environment": taken.snapshot_id,
                "ttl_seconds": None if left is None else max(left, 1.0),
            }
        )
        return m.Departure(
            info=info, spec=spec, snapshot=taken, was=leaving.was, ttl_left_seconds=left
        )

    async def departed(self, body: m.SandboxDeparted) -> m.Ok:
        """Take note of how a move ended."""
        sandbox = self._sandboxes.find(body.sandbox_id)
        if sandbox is not None and sandbox.id in self._leaving:
            if body.node is None or body.node == self._node:
                await self._stay(sandbox)
            else:
                await self.leave(sandbox, body.node)
        return m.Ok()

    async def _stay(self, sandbox: Sandbox) -> None:
        leaving = self._leaving.pop(sandbox.id, None)
        if leaving is None:
            return
        self._path(sandbox).unlink(missing_ok=True)
        await self._drop(_snapshot_of(leaving))
        if leaving.was is State.RUNNING and sandbox.ending is None:
            await self._pausing.resume(sandbox)
        self._log.info("sandbox.stays", sandbox=sandbox.id)

    async def leave(self, sandbox: Sandbox, node: str) -> None:
        """End a sandbox that lives elsewhere now, without a word to anybody."""
        packed = self._packed(sandbox.id)
        sandbox.is_silent = True
        with contextlib.suppress(OSError):
            self._path(sandbox).write_text(f"{_LEFT}{node}")
        reason = f"it moved to node {node}"
        await self._ending.end(sandbox, State.STOPPED, reason, Origin.PLATFORM)
        self._sandboxes.remember_moved(sandbox, node)
        await self._drop(packed)
        self._log.info("sandbox.moved", sandbox=sandbox.id, to=node)

    def _packed(self, sandbox_id: str) -> str | None:
        leaving = self._leaving.get(sandbox_id)
        return None if leaving is None else _snapshot_of(leaving)

    async def _drop(self, snapshot_id: str | None) -> None:
        """Forget the snapshot of a move: it has what scrubbing leaves out, and nobody asked for it.

        The node that has the sandbox now holds the layers by its lease.
        """
        if snapshot_id is None:
            return
        try:
            await self._forget(snapshot_id)
        except SandfleetError as problem:
            self._log.warning("move.snapshot_left", snapshot=snapshot_id, error=problem.message)

    # ------------------------------------------------------------------ settle

    def adopt(self, sandbox: Sandbox) -> None:
        """Find out at once how the move ended that an earlier service had begun."""
        try:
            was = State(self._path(sandbox).read_text())
        except (OSError, ValueError):
            return
        self._leaving[sandbox.id] = _Leaving(was, float("-inf"))

    async def run(self) -> None:
        """Settle moves whose end nobody told, until cancelled."""
        while True:
            now = time.monotonic()
            for sandbox_id, leaving in list(self._leaving.items()):
                sandbox = self._sandboxes.find(sandbox_id)
                if sandbox is None:
                    self._leaving.pop(sandbox_id, None)
                elif now - leaving.since > self._wait_seconds:
                    await self._settle(sandbox)
            await asyncio.sleep(_LOOK_SECONDS)

    async def _settle(self, sandbox: Sandbox) -> None:
        try:
            record = await self._store.get(sandbox.id)
            await self.compare(sandbox, record)
            if sandbox.id in self._leaving and sandbox.ending is None:
                await self._stay(sandbox)
        except Unreachable as problem:
            self._log.warning("move.unsettled", sandbox=sandbox.id, error=problem.message)
        except SandfleetError as problem:
            self._log.error("move.unsettled", sandbox=sandbox.id, error=problem.message)

    async def compare(self, sandbox: Sandbox, record: m.SandboxInfo | None) -> None:
        """End a sandbox in silence if the record says that it lives on another node."""
        if record is not None and record.node != self._node and record.state not in TERMINAL:
            await self.leave(sandbox, record.node)

    def _path(self, sandbox: Sandbox) -> Path:
        return Path(self._places.sandbox(sandbox.id), _MARK)

    def _mark(self, sandbox: Sandbox, was: State) -> None:
        try:
            self._path(sandbox).write_text(was)
        except OSError as problem:
            self._leaving.pop(sandbox.id, None)
            raise Conflict(f"the sandbox cannot move: {problem}") from None
