"""Moving a sandbox to another node: packed where it is, created elsewhere under its id.

Every step may be lost, repeated, or be the last one that this scheduler does:

* The source answers the same departure again, so asking anew goes on where it was.
* The record in Redis says where it lives. A newcomer writes it once it runs, and not before.
* A source that never hears how the move ended reads the record, and stays or ends by that.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time

from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus
from sandfleet_common.errors import (
    Moved,
    NoCapacity,
    NodeLost,
    NotFound,
    SandboxGone,
    SandfleetError,
    TimedOut,
    Unavailable,
)
from sandfleet_common.ids import node_of
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    Departure,
    NodeAct,
    NodeCreateItem,
    SandboxDepart,
    SandboxDeparted,
    SandboxInfo,
    SandboxMigrate,
)
from sandfleet_common.states import TERMINAL, State
from sandfleet_common.store import Store

from .fleet import Fleet
from .reasons import sentence
from .refusals import Refusals
from .sending import NotSent, Sender

_LOOK_SECONDS = 0.2
_TELL_SECONDS = 10.0


class Migration:
    """Answers `sandbox.migrate`."""

    def __init__(self, bus: Bus, store: Store, fleet: Fleet, sender: Sender, log: Logger) -> None:
        self._bus = bus
        self._store = store
        self._fleet = fleet
        self._sender = sender
        self._log = log

    async def migrate(self, request: SandboxMigrate) -> SandboxInfo:
        """Move a sandbox, to the node that was named or to the one with most room.

        Raises:
            NotFound: there is no such sandbox or node.
            SandboxGone: it has ended.
            Conflict: it starts or ends just now.
            NoCapacity: no node took it by the deadline; it goes on where it was.
        """
        deadline_at = time.time() + request.deadline_seconds
        info = await self._living(request.sandbox_id)
        if request.node is not None:
            if info.node == request.node:
                return info
            self._demand_alive(request.node)
        try:
            departure = await self._depart(info, deadline_at)
        except Moved:
            return await self._living(request.sandbox_id)
        try:
            moved = await self._arrive(departure, request.node, deadline_at)
        except BaseException:
            await self._tell(departure.info, None)
            raise
        await self._tell(departure.info, moved)
        self._log.info("sandbox.migrated", sandbox=moved.sandbox_id, to=moved.node)
        return moved

    async def _living(self, sandbox_id: str) -> SandboxInfo:
        node_of(sandbox_id)
        info = await self._store.get(sandbox_id)
        if info is None:
            raise NotFound(f"there is no sandbox {sandbox_id} on record", sandbox=sandbox_id)
        if info.state in TERMINAL:
            raise SandboxGone(
                f"{sandbox_id} has ended ({info.state}): {info.reason or 'no reason is known'}",
                state=str(info.state),
                reason=info.reason,
                origin=str(info.origin) if info.origin else None,
            )
        return info

    def _demand_alive(self, node: str) -> None:
        if node not in self._fleet.core.nodes:
            raise NotFound(f"no node {node!r} is alive", node=node)

    async def _depart(self, info: SandboxInfo, deadline_at: float) -> Departure:
        left = deadline_at - time.time()
        body = SandboxDepart(sandbox_id=info.sandbox_id)
        return await self._bus.ask(
            s.NODE_DEPART, body, within=max(1.0, left), resend=True, node=info.node
        )

    # ----------------------------------------------------------------- arrive

    async def _arrive(
        self, departure: Departure, wanted: str | None, deadline_at: float
    ) -> SandboxInfo:
        """Have another node go on with a sandbox.

        Raises:
            NoCapacity: none did by the deadline.
        """
        refusals = Refusals()
        while time.time() < deadline_at:
            node = self._choose(departure, wanted, refusals)
            if node is None:
                await asyncio.sleep(_LOOK_SECONDS)
                continue
            info = await self._ask(departure, node, deadline_at, refusals)
            if info is not None:
                return info
        spec, now = departure.spec, self._fleet.now()
        reasons = refusals.reasons | self._fleet.core.reasons(spec, now)
        reasons.pop(departure.info.node, None)
        why = sentence(reasons.values(), len(reasons)) if reasons else "there is no other node"
        raise NoCapacity(f"the sandbox goes on where it was: {why}")

    def _choose(self, departure: Departure, wanted: str | None, refusals: Refusals) -> str | None:
        now = self._fleet.now()
        avoided = refusals.avoided(now) | {departure.info.node}
        if wanted is not None:
            avoided |= frozenset(self._fleet.core.nodes) - {wanted}
        return self._fleet.core.choose(departure.spec, now, avoided)

    async def _ask(
        self, departure: Departure, node: str, deadline_at: float, refusals: Refusals
    ) -> SandboxInfo | None:
        """Ask a node; None when another is to be asked, or the same one again."""
        before = departure.info
        item = NodeCreateItem(
            sandbox_id=before.sandbox_id,
            spec=departure.spec,
            job_id=before.job_id,
            slot=before.slot,
            requested_at=before.created_at,
            deadline_at=deadline_at,
            moved_from=before.node,
            version=before.version,
            pause=departure.was is State.PAUSED,
        )
        self._fleet.core.placed(node, item.sandbox_id, item.spec.resources)
        try:
            outcome = (await self._sender.create(node, [item]))[0]
        except NotSent as problem:
            self._refuse(refusals, node, str(problem))
            return None
        except (NodeLost, TimedOut):
            # It may live there all the same: then it is on record, or soon will be.
            found = await self._store.get(before.sandbox_id)
            if found is not None and found.node == node and found.state not in TERMINAL:
                return found
            self._refuse(refusals, node, "did not answer in time")
            return None
        if outcome.status != "ready" or outcome.info is None:
            why = outcome.failure.message if outcome.failure else "no reason given"
            self._refuse(refusals, node, why)
            return None
        if item.pause:
            await self._pause(node, item.sandbox_id)
        return outcome.info

    def _refuse(self, refusals: Refusals, node: str, why: str) -> None:
        self._log.warning("migration.refused", node=node, reason=why)
        refusals.refuse(node, why, self._fleet.now(), random.random())

    async def _pause(self, node: str, sandbox_id: str) -> None:
        body = NodeAct(action="pause", sandbox_ids=[sandbox_id])
        with contextlib.suppress(Unavailable):  # it runs, which costs memory and no more
            await self._bus.ask(s.NODE_ACT, body, within=_TELL_SECONDS, resend=True, node=node)

    async def _tell(self, before: SandboxInfo, moved: SandboxInfo | None) -> None:
        """Tell the source how it ended; if that is lost, it finds out by itself."""
        node = None if moved is None else moved.node
        body = SandboxDeparted(sandbox_id=before.sandbox_id, node=node)
        if moved is not None:
            with contextlib.suppress(SandfleetError):
                await self._store.leave_node(before.node, before.sandbox_id)
        try:
            await self._bus.ask(
                s.NODE_DEPARTED, body, within=_TELL_SECONDS, resend=True, node=before.node
            )
        except SandfleetError as problem:
            self._log.warning("migration.untold", node=before.node, error=problem.message)
