"""All sandboxes of the node, live and lately ended, and what follows from a transition."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

from sandfleet_common.errors import BadRequest, Moved, NotFound, SandboxGone
from sandfleet_common.ids import node_of
from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxEvent, SandboxInfo
from sandfleet_common.states import TERMINAL, Origin, State

from .core import Load, verdict
from .layers.inuse import InUse
from .metrics import NodeMetrics
from .outbox import Outbox
from .records import Records
from .sandbox import Sandbox
from .timers import Dates
from .tombstones import Tombstones

_TOLD = frozenset({State.RUNNING, State.PAUSED, State.STOPPED, State.FAILED})
"""States whose beginning is announced."""


def gone(info: SandboxInfo) -> SandboxGone:
    """Return the error that says how a sandbox ended."""
    return SandboxGone(
        f"the sandbox has ended ({info.state}): {info.reason or 'no reason is known'}",
        state=str(info.state),
        reason=info.reason,
        origin=str(info.origin) if info.origin else None,
    )


class Sandboxes:
    """The registry. Every change of a sandbox's state goes through `move`."""

    def __init__(
        self,
        node: str,
        load: Load,
        records: Records,
        outbox: Outbox,
        tombstones: Tombstones,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self.load = load
        self.tombstones = tombstones
        self.dates = Dates()
        self.dates_changed = asyncio.Event()
        self._node = node
        self._records = records
        self._outbox = outbox
        self._metrics = metrics
        self._log = log
        self._live: dict[str, Sandbox] = {}
        self.layers = InUse()
        """What they stand on."""

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Sandbox]:
        return iter(list(self._live.values()))

    def find(self, sandbox_id: str) -> Sandbox | None:
        """Return a live sandbox, or None."""
        return self._live.get(sandbox_id)

    def get(self, sandbox_id: str) -> Sandbox:
        """Return a live sandbox.

        Raises:
            SandboxGone: it has ended; says how.
            NotFound: this node does not know it.
            BadRequest: that is no sandbox id.
        """
        sandbox = self._live.get(sandbox_id)
        if sandbox is not None:
            return sandbox
        raise self._absent(sandbox_id)

    def _absent(self, sandbox_id: str) -> SandboxGone | Moved | NotFound | BadRequest:
        info = self.tombstones.get(sandbox_id)
        if info is not None:
            return self.absence(info)
        try:
            owner = node_of(sandbox_id)
        except BadRequest as problem:
            return problem
        if owner != self._node:
            return NotFound(f"{sandbox_id} belongs to node {owner}, this is {self._node}")
        return NotFound(f"node {self._node} knows no sandbox {sandbox_id}")

    def absence(self, info: SandboxInfo) -> SandboxGone | Moved:
        """Return the error that says where a sandbox is, or how it ended, by its tombstone."""
        if info.node != self._node:
            return Moved(f"{info.sandbox_id} lives on node {info.node} now", node=info.node)
        return gone(info)

    def ended(self, sandbox_id: str) -> SandboxInfo:
        """Return how a sandbox ended.

        Raises:
            NotFound: this node does not know it.
        """
        info = self.tombstones.get(sandbox_id)
        if info is None or info.node != self._node:
            raise self._absent(sandbox_id)
        return info

    def remember_moved(self, sandbox: Sandbox, node: str) -> None:
        """Tell whoever asks for a sandbox that left which node has it."""
        now = time.time()
        info = sandbox.info().model_copy(update={"node": node, "ended_at": now})
        self._remember(info, now)

    def add(self, sandbox: Sandbox) -> None:
        """Take a sandbox on, and count what it asked for."""
        self._live[sandbox.id] = sandbox
        self.layers.take(sandbox.ground.layers)
        self.load.add(sandbox.spec.resources)
        if sandbox.state is State.PREPARING:
            self.load.starting += 1
        self._metrics.sandboxes.labels(sandbox.state).inc()

    def move(
        self,
        sandbox: Sandbox,
        state: State,
        *,
        reason: str | None = None,
        origin: Origin | None = None,
    ) -> None:
        """Let a sandbox go on to another state: record, event, timers and sums follow."""
        before = sandbox.state
        sandbox.move(state, reason=reason, origin=origin)
        if before is State.PREPARING:
            self.load.starting -= 1
            if state is State.RUNNING:
                self.load.starts.note(time.monotonic())
        self._metrics.sandboxes.labels(before).dec()
        now = time.time()
        if state in TERMINAL:
            sandbox.ended_at = now
            self._bury(sandbox, now)
        else:
            self._metrics.sandboxes.labels(state).inc()
            self.watch(sandbox, now)
        if sandbox.is_silent:
            return
        info = sandbox.info()
        if state in _TOLD:
            self._outbox.tell_event(SandboxEvent(info=info, previous=before))
        self._records.save(info)

    def note(self, sandbox: Sandbox) -> None:
        """Write a sandbox's record as it is."""
        if not sandbox.is_silent:
            self._records.save(sandbox.info())

    def keep(self, sandbox: Sandbox) -> None:
        """Write a sandbox's spec.json; on a full disk the one before has to do.

        From that one the next service goes on: what happened since is told again, or undone.
        """
        try:
            sandbox.save()
        except OSError as problem:
            self._log.warning("sandbox.unsaved", sandbox=sandbox.id, error=str(problem))

    def _bury(self, sandbox: Sandbox, now: float) -> None:
        del self._live[sandbox.id]
        self.layers.release(sandbox.ground.layers)
        self.load.remove(sandbox.spec.resources)
        self.dates.set(sandbox.id, None)
        if not sandbox.is_silent:
            self._remember(sandbox.info(), now)
        self._metrics.endings.labels(sandbox.state, sandbox.origin or "").inc()

    def _remember(self, info: SandboxInfo, now: float) -> None:
        try:
            self.tombstones.add(info, now)
        except OSError as problem:
            # The disk is full. Its end is told and on record in Redis all the same.
            self._log.warning("sandbox.unburied", sandbox=info.sandbox_id, error=str(problem))

    def watch(self, sandbox: Sandbox, now: float) -> None:
        """Have a sandbox looked at when its time is over; at once when it is already."""
        reason = self.due(sandbox, now)
        if reason is not None:
            self.look_at(sandbox, now)

    def due(self, sandbox: Sandbox, now: float) -> str | None:
        """Return why a sandbox ends, or is paused, now; if it does not, set the next date."""
        if sandbox.state not in (State.RUNNING, State.PAUSED):
            self.dates.set(sandbox.id, None)
            return None
        reason, again = verdict(sandbox.life(), now)
        if self.dates.set(sandbox.id, again):
            self.dates_changed.set()
        return reason

    def look_at(self, sandbox: Sandbox, at: float) -> None:
        """Have a sandbox looked at again at a certain time."""
        if self.dates.set(sandbox.id, at):
            self.dates_changed.set()
