"""Placing one sandbox: choose, ask, ask elsewhere, until it is ready or its time is up."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from sandfleet_common.errors import (
    NoCapacity,
    NodeLost,
    SandboxFailed,
    SandfleetError,
    TimedOut,
)
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.logs import Logger
from sandfleet_common.messages import NodeCreateItem, Outcome, SandboxCreate, SandboxInfo
from sandfleet_common.states import Origin, State
from sandfleet_common.store import Store

from .actions import Actions
from .core import Reason, refused, sentence
from .fleet import Fleet
from .metrics import SchedulerMetrics
from .records import Recorder
from .sending import NotSent, Sender, known_environments, placing

BACKOFF_FIRST_SECONDS = 0.02
BACKOFF_MOST_SECONDS = 0.5
STALE_SECONDS = 15.0
"""A creation under a key that nothing is heard of for so long has lost its scheduler."""
DOUBT_SECONDS = 5.0
"""One that took longer than this asks whether the key is still its own."""


def backoff(tries: int, roll: float) -> float:
    """Return how long to wait for room, growing with `tries`; `roll` in 0..1 spreads callers."""
    ceiling = min(BACKOFF_MOST_SECONDS, BACKOFF_FIRST_SECONDS * 2 ** min(tries, 10))
    return ceiling * (0.5 + roll / 2)


@dataclass(slots=True)
class _Attempt:
    """What one request has been through."""

    request: SandboxCreate
    arrived_at: float
    held: str | None = None
    """The id the key is tied to, by us."""
    last: SandboxInfo | None = None
    refusals: dict[str, Reason] = field(default_factory=dict[str, Reason])
    """Of the nodes asked in this round; they are not asked again before the next."""
    remembered: dict[str, Reason] = field(default_factory=dict[str, Reason])

    @property
    def deadline_at(self) -> float:
        return self.arrived_at + self.request.deadline_seconds

    @property
    def is_over(self) -> bool:
        return time.time() >= self.deadline_at

    def refuse(self, node: str, why: str) -> None:
        self.refusals[node] = self.remembered[node] = refused(why)


class Placer:
    """Answers `sandbox.create`."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        actions: Actions,
        sender: Sender,
        recorder: Recorder,
        metrics: SchedulerMetrics,
        log: Logger,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._actions = actions
        self._sender = sender
        self._recorder = recorder
        self._metrics = metrics
        self._log = log

    async def create(self, request: SandboxCreate) -> SandboxInfo:
        """Create one sandbox.

        Raises:
            NoCapacity: no node took it by the deadline; says why not.
            NotFound: no node has the environment.
            SandboxFailed: it could not start.
            TimedOut: its node did not answer by the deadline.
        """
        started = time.monotonic()
        outcome = "failed"
        try:
            info = await self._place(_Attempt(request, time.time()))
            outcome = "ready"
            return info
        except SandfleetError as problem:
            outcome = problem.code
            raise
        finally:
            self._metrics.placements.labels(outcome).inc()
            self._metrics.placing.observe(time.monotonic() - started)

    async def _place(self, attempt: _Attempt) -> SandboxInfo:
        tries = 0
        while True:
            node = None
            if not attempt.is_over:
                spec = attempt.request.spec
                node = self._fleet.core.choose(spec, self._fleet.now(), attempt.refusals)
            if node is None:
                if attempt.is_over:
                    raise self._give_up(attempt)
                known_environments(self._fleet, attempt.request.spec)
                await self._pause(attempt, tries)
                tries += 1
                continue
            sandbox_id = new_sandbox_id(node)
            holder = await self._claim(attempt, sandbox_id)
            if holder != sandbox_id:
                if (info := await self._join(attempt, holder)) is not None:
                    return info
                continue
            outcome = await self._ask(attempt, node, sandbox_id)
            if outcome is not None:
                return await self._conclude(attempt, outcome)

    async def _pause(self, attempt: _Attempt, tries: int) -> None:
        """Wait for room; every node may be asked again then."""
        left = max(0.0, attempt.deadline_at - time.time())
        pause = backoff(tries, random.random())
        if attempt.refusals:
            await asyncio.sleep(min(pause, left))
            attempt.refusals.clear()
        else:
            await self._fleet.change(min(max(pause, 0.1), left))

    async def _ask(self, attempt: _Attempt, node: str, sandbox_id: str) -> Outcome | None:
        """Ask a node; None when another is to be asked."""
        item = NodeCreateItem(
            sandbox_id=sandbox_id,
            spec=attempt.request.spec,
            requested_at=attempt.arrived_at,
            deadline_at=attempt.deadline_at,
        )
        attempt.last = placing(item, node)
        self._fleet.core.placed(node, sandbox_id, item.spec.resources)
        self._recorder.put(attempt.last)
        try:
            outcome = (await self._sender.create(node, [item]))[0]
        except NotSent as problem:
            attempt.refuse(node, str(problem))
            return None
        except NodeLost:
            await self._fleet.end_lost([attempt.last])
            attempt.remembered[node] = Reason("was lost", "were lost")
            return None
        except TimedOut:
            await self._sender.abandon([attempt.last], "its node did not answer by the deadline")
            raise
        if outcome.status != "refused":
            return outcome
        attempt.refuse(node, outcome.failure.message if outcome.failure else "no reason given")
        return None

    async def _conclude(self, attempt: _Attempt, outcome: Outcome) -> SandboxInfo:
        if outcome.status == "failed":
            if outcome.failure is not None:
                raise outcome.failure.to_error()
            raise SandboxFailed("the sandbox could not start", sandbox=outcome.sandbox_id)
        info = outcome.info or await self._store.get(outcome.sandbox_id)
        if info is None:
            raise SandboxFailed("the sandbox ended at once", sandbox=outcome.sandbox_id)
        key = attempt.request.key
        if key is not None and time.time() - attempt.arrived_at > DOUBT_SECONDS:
            holder = await self._store.claim_key(key, info.sandbox_id)
            if holder != info.sandbox_id:
                # Another scheduler took us for dead; there must be one sandbox under the key.
                await self._actions.stop([info.sandbox_id], "another was created for it")
                return await self._join(attempt, holder) or await self._place(attempt)
        return info

    # -------------------------------------------------------------------- keys

    async def _claim(self, attempt: _Attempt, sandbox_id: str) -> str:
        """Tie the request's key to an id, and return the id that holds it."""
        key = attempt.request.key
        if key is None:
            return sandbox_id
        if attempt.held is None:
            holder = await self._store.claim_key(key, sandbox_id)
        elif await self._store.swap_key(key, attempt.held, sandbox_id):
            holder = sandbox_id
        else:
            holder = await self._store.claim_key(key, sandbox_id)
        attempt.held = holder if holder == sandbox_id else None
        return holder

    async def _join(self, attempt: _Attempt, holder: str) -> SandboxInfo | None:
        """Wait for what another request under the same key creates.

        Returns None when its scheduler is gone, or it was rejected: then the key may be
        taken from it.

        Raises:
            SandboxFailed: it could not start.
            TimedOut: the deadline came first.
        """
        assert attempt.request.key is not None
        tries, since = 0, time.monotonic()
        while not attempt.is_over:
            info = await self._store.get(holder)
            if info is not None and info.ready_at is not None:
                return info
            if info is not None and info.state == State.FAILED and not _may_retry(info):
                raise SandboxFailed(info.reason or "the sandbox could not start", sandbox=holder)
            is_stale = time.monotonic() - since > STALE_SECONDS
            if is_stale or (info is not None and (_may_retry(info) or info.state == State.STOPPED)):
                attempt.held = holder
                return None
            await asyncio.sleep(backoff(tries, random.random()))
            tries += 1
            current = await self._store.claim_key(attempt.request.key, holder)
            if current != holder:
                holder, since = current, time.monotonic()
        raise TimedOut("another request under the same key was not done by the deadline")

    def _give_up(self, attempt: _Attempt) -> NoCapacity:
        now, spec = self._fleet.now(), attempt.request.spec
        core = self._fleet.core
        reasons = attempt.remembered | core.reasons(spec, now)
        why = sentence(reasons.values(), len(core.nodes))
        if attempt.last is not None:
            end = {
                "state": State.REJECTED,
                "version": 1,
                "ended_at": time.time(),
                "reason": why,
                "origin": Origin.PLATFORM,
            }
            self._recorder.put(attempt.last.model_copy(update=end))
        return NoCapacity(why)


def _may_retry(info: SandboxInfo) -> bool:
    """Whether nothing came of it and a new sandbox may be tried under its key."""
    return info.state == State.REJECTED or (
        info.state == State.FAILED and info.origin == Origin.NODE_LOST
    )
