"""Placing one sandbox: choose, ask, ask elsewhere, until it is ready or its time is up."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field

from sandfleet_common.errors import (
    Busy,
    NoCapacity,
    NodeLost,
    NotFound,
    SandboxFailed,
    SandfleetError,
    TimedOut,
)
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.logs import Logger
from sandfleet_common.messages import Failure, NodeCreateItem, Outcome, SandboxCreate, SandboxInfo
from sandfleet_common.states import Origin, State
from sandfleet_common.store import Store

from .actions import Actions
from .config import SchedulerSettings
from .fleet import Fleet
from .line import LOOK_SECONDS, wait
from .metrics import SchedulerMetrics
from .pace import retry_after
from .reasons import sentence
from .records import Recorder
from .refusals import Refusals
from .sending import NotSent, Sender, known_environments, placing, wait_of

BACKOFF_FIRST_SECONDS = 0.02
BACKOFF_MOST_SECONDS = 0.5
STALE_SECONDS = 15.0
"""A creation under a key that nothing is heard of for so long has lost its scheduler."""
DOUBT_SECONDS = 5.0
"""One that took longer than this asks whether the key is still its own."""


def backoff(tries: int, roll: float) -> float:
    """Return how long to wait for another, growing with `tries`; `roll` in 0..1 spreads callers."""
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
    refusals: Refusals = field(default_factory=Refusals)
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    is_waiting: bool = False
    """For room, among those that are counted."""

    @property
    def deadline_at(self) -> float:
        return self.arrived_at + self.request.deadline_seconds

    @property
    def is_over(self) -> bool:
        return time.time() >= self.deadline_at


class Placer:
    """Answers `sandbox.create`."""

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        actions: Actions,
        sender: Sender,
        recorder: Recorder,
        settings: SchedulerSettings,
        metrics: SchedulerMetrics,
        log: Logger,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._actions = actions
        self._sender = sender
        self._recorder = recorder
        self._waiting_most = settings.creates_waiting
        self._waiting = 0
        self._metrics = metrics
        self._log = log

    async def create(self, request: SandboxCreate) -> SandboxInfo:
        """Create one sandbox.

        Raises:
            NoCapacity: no node took it by the deadline; says why not.
            Busy: no node can take it now, and too many wait for room already.
            NotFound: no node has the environment.
            SandboxFailed: it could not start.
            TimedOut: its node did not answer by the deadline.
        """
        started = time.monotonic()
        attempt, outcome = _Attempt(request, time.time()), "failed"
        try:
            info = await self._place(attempt)
            outcome = "ready"
            return info
        except SandfleetError as problem:
            outcome = problem.code
            raise
        finally:
            self._count(attempt, is_waiting=False)
            self._metrics.placements.labels(outcome).inc()
            self._metrics.placing.observe(time.monotonic() - started)

    async def _place(self, attempt: _Attempt) -> SandboxInfo:
        while True:
            attempt.wake.clear()
            node = None if attempt.is_over else self._choose(attempt)
            if node is None:
                if attempt.is_over:
                    raise self._give_up(attempt)
                self._demand_environment(attempt)
                await self._pause(attempt)
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

    def _choose(self, attempt: _Attempt) -> str | None:
        now = self._fleet.now()
        return self._fleet.core.choose(attempt.request.spec, now, attempt.refusals.avoided(now))

    async def _pause(self, attempt: _Attempt) -> None:
        """Wait for room.

        Raises:
            Busy: too many do.
        """
        if not attempt.is_waiting and self._waiting >= self._waiting_most:
            self._metrics.creates_turned_away.inc()
            raise self._turn_away(attempt)
        self._count(attempt, is_waiting=True)
        soonest = attempt.refusals.soonest(self._fleet.now())
        left = max(0.0, attempt.deadline_at - time.time())
        look = LOOK_SECONDS if soonest is None else min(LOOK_SECONDS, soonest)
        with self._fleet.line.place(attempt.arrived_at, attempt.wake):
            await wait(attempt.wake, min(look, left))

    def _count(self, attempt: _Attempt, *, is_waiting: bool) -> None:
        if attempt.is_waiting != is_waiting:
            attempt.is_waiting = is_waiting
            self._waiting += 1 if is_waiting else -1
            self._metrics.creates_waiting.set(self._waiting)

    def _turn_away(self, attempt: _Attempt) -> Busy:
        rate = self._fleet.core.starts_per_second(self._fleet.now())
        seconds = round(retry_after(self._waiting + 1, rate), 1)
        why = f"{self._waiting} creations wait for room already; come again in {seconds:g} s"
        self._reject(attempt, why)
        return Busy(why, retry_after_seconds=seconds)

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
            self._refuse(attempt, node, str(problem), problem.wait_seconds)
            return None
        except NodeLost:
            await self._fleet.end_lost([attempt.last])
            attempt.refusals.lost(node)
            return None
        except TimedOut:
            await self._sender.abandon([attempt.last], "its node did not answer by the deadline")
            raise
        if outcome.status != "refused":
            return outcome
        failure = outcome.failure or Failure(code="none", message="no reason given")
        attempt.refusals.note_absent(node, failure)
        self._refuse(attempt, node, failure.message, wait_of(failure.fields))
        self._demand_environment(attempt)
        return None

    def _demand_environment(self, attempt: _Attempt) -> None:
        """Go on only with an environment that there may be."""
        try:
            known_environments(self._fleet, attempt.request.spec, attempt.refusals)
        except NotFound as problem:
            self._reject(attempt, problem.message)
            raise

    def _refuse(self, attempt: _Attempt, node: str, why: str, wait_seconds: float | None) -> None:
        now, roll = self._fleet.now(), random.random()
        attempt.refusals.refuse(node, why, now, roll, wait_seconds=wait_seconds)

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
        reasons = attempt.refusals.reasons | core.reasons(spec, now)
        why = sentence(reasons.values(), len(core.nodes))
        self._reject(attempt, why)
        return NoCapacity(why)

    def _reject(self, attempt: _Attempt, why: str) -> None:
        """Say on record that nothing came of the sandbox that nodes were asked for last."""
        if attempt.last is None:
            return
        end = {
            "state": State.REJECTED,
            "version": 1,
            "ended_at": time.time(),
            "reason": why,
            "origin": Origin.PLATFORM,
        }
        self._recorder.put(attempt.last.model_copy(update=end))


def _may_retry(info: SandboxInfo) -> bool:
    """Whether nothing came of it and a new sandbox may be tried under its key."""
    return info.state == State.REJECTED or (
        info.state == State.FAILED and info.origin == Origin.NODE_LOST
    )
