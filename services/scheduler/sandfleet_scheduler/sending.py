"""Asking a node to create sandboxes, until the fate of each is known."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping, Sequence

from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus, reconnect_delay
from sandfleet_common.errors import NotFound, TimedOut, Unavailable, Unreachable
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    NodeCreate,
    NodeCreateItem,
    Outcome,
    SandboxInfo,
    SandboxSpec,
)
from sandfleet_common.states import Origin, State
from sandfleet_common.store import Store

from .actions import Actions
from .config import SchedulerSettings
from .fleet import Fleet
from .metrics import SchedulerMetrics
from .refusals import Refusals

GRACE_SECONDS = 5.0
"""A node ends what is not ready at its deadline; its answer may take so much longer."""
ABANDON_SECONDS = 3.0


class NotSent(Exception):
    """No node has heard of it: nothing was created, another may be asked."""

    def __init__(self, problem: Unavailable) -> None:
        super().__init__(problem.message)
        self.wait_seconds = wait_of(problem.fields)
        """When the node that was asked may be asked again, if it said so."""


class Sender:
    """Speaks to nodes. A question that may be lost is asked again under the same ids."""

    def __init__(
        self,
        bus: Bus,
        store: Store,
        fleet: Fleet,
        actions: Actions,
        settings: SchedulerSettings,
        metrics: SchedulerMetrics,
        log: Logger,
    ) -> None:
        self._bus = bus
        self._store = store
        self._fleet = fleet
        self._actions = actions
        self._settings = settings
        self._metrics = metrics
        self._log = log

    async def create(
        self, node: str, items: Sequence[NodeCreateItem], *, is_known: bool = False
    ) -> list[Outcome]:
        """Ask a node for sandboxes of one deadline and return all outcomes.

        The caller has counted them in with `Core.placed`; here they are settled.

        Args:
            node: who is asked.
            items: one to 256.
            is_known: the node may have heard of them already.

        Raises:
            NotSent: the node has heard of none.
            NodeLost: the node is lost; what it had made is gone with it.
            TimedOut: the deadline is over and the node has not answered.
        """
        decided: dict[str, Outcome] = {}
        self._metrics.batch_items.inc(len(items))
        try:
            tries = 0
            while missing := [item for item in items if item.sandbox_id not in decided]:
                outcomes = await self._once(node, missing, is_known or tries > 0)
                decided |= {outcome.sandbox_id: outcome for outcome in outcomes}
                if outcomes:
                    continue
                tries += 1
                self._metrics.asked_again.inc()
                self._log.warning("node.asked_again", node=node, items=len(missing), tries=tries)
                await asyncio.sleep(reconnect_delay(min(tries, 4), random.random()))
        finally:
            for item in items:
                outcome = decided.get(item.sandbox_id)
                is_kept = outcome is not None and outcome.status == "ready"
                self._fleet.core.settled(node, item.sandbox_id, is_kept=is_kept)
            self._fleet.notify()
        for outcome in decided.values():
            if outcome.status == "refused":
                code = outcome.failure.code if outcome.failure else "none"
                self._metrics.refusals.labels(code).inc()
        return [decided[item.sandbox_id] for item in items]

    async def _once(
        self, node: str, items: Sequence[NodeCreateItem], is_known: bool
    ) -> list[Outcome]:
        """Ask once; an empty answer means: unknown, ask again."""
        left = items[0].deadline_at + GRACE_SECONDS - time.time()
        if left <= 0:
            raise TimedOut(f"node {node} did not answer by the deadline", node=node)
        reconnects = self._fleet.reconnects
        try:
            async with self._fleet.while_alive(node):
                with self._metrics.node_answer.time():
                    reply = await self._bus.ask(
                        s.NODE_CREATE,
                        NodeCreate(items=list(items)),
                        within=min(left, self._settings.node_answer_seconds),
                        resend=True,
                        node=node,
                    )
        except TimedOut:
            return []
        except Unreachable as problem:
            # Nobody was there to hear it; unless the connection broke after it was sent.
            if is_known or reconnects != self._fleet.reconnects:
                return []
            raise NotSent(problem) from problem
        except Unavailable as problem:
            if is_known:
                return []
            raise NotSent(problem) from problem
        asked = {item.sandbox_id for item in items}
        return [outcome for outcome in reply.outcomes if outcome.sandbox_id in asked]

    async def abandon(self, infos: Sequence[SandboxInfo], reason: str) -> None:
        """Make sure that sandboxes of unknown fate end, should they exist.

        The record says failed, so a node that reports one of them ends it.
        """
        ended = [
            info.model_copy(
                update={
                    "state": State.FAILED,
                    "version": info.version + 1,
                    "ended_at": time.time(),
                    "reason": reason,
                    "origin": Origin.PLATFORM,
                }
            )
            for info in infos
        ]
        try:
            await self._store.save(ended)
        except Unreachable as problem:
            self._log.warning("sandbox.abandon_failed", error=str(problem))
        # Whoever asked has waited for long enough; the record alone ends them as well.
        ids = [info.sandbox_id for info in infos]
        await self._actions.stop(ids, reason, within=ABANDON_SECONDS)


def wait_of(fields: Mapping[str, object]) -> float | None:
    """Return when to come again, as the fields of a failure say, or None."""
    wait = fields.get("retry_after_seconds")
    return float(wait) if isinstance(wait, int | float) else None


def placing(item: NodeCreateItem, node: str) -> SandboxInfo:
    """Return the record of a sandbox that a node is about to hear of."""
    return SandboxInfo(
        sandbox_id=item.sandbox_id,
        node=node,
        state=State.PLACING,
        version=0,
        spec=item.spec,
        job_id=item.job_id,
        slot=item.slot,
        created_at=item.requested_at,
    )


SETTLED_SECONDS = 2.5
"""Two heartbeats: whoever is alive has been heard by then."""


def known_environments(fleet: Fleet, spec: SandboxSpec, refusals: Refusals) -> None:
    """Refuse an environment that no node has, by their heartbeats or by what they said.

    Raises:
        NotFound: the message lists those there are.
    """
    said = refusals.not_found(fleet.core.may_have(spec.environment, fleet.now()))
    if said is not None:
        raise NotFound(said, environment=spec.environment)
    if fleet.listening_seconds < SETTLED_SECONDS:
        return
    known = fleet.core.lacks_everywhere(spec.environment, fleet.now())
    if known is not None:
        there = ", ".join(known) if known else "none"
        raise NotFound(
            f"no node has an environment {spec.environment!r}; there are: {there}",
            environment=spec.environment,
        )
