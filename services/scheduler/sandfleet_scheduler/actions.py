"""One thing done to many sandboxes: found on record, sent to their nodes in batches.

A node is sent the next batch when it has answered the one before, two at a time,
so a job of thousands does not flood it. A node that does not answer is asked again
until the time is up; when nobody is there for some seconds, or the node is lost, its
sandboxes are reported with that reason. What was done stays done: asking for the same
again is harmless.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus
from sandfleet_common.errors import (
    Broken,
    NotFound,
    SandboxGone,
    SandfleetError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from sandfleet_common.ids import node_of
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    Action,
    ActOutcome,
    Failure,
    NodeAct,
    SandboxesAct,
    SandboxesActed,
    SandboxList,
)
from sandfleet_common.store import Store

from .config import SchedulerSettings
from .fleet import Fleet
from .jobnews import chunks
from .metrics import SchedulerMetrics

BATCH = 256
"""The most a node takes in one request."""
FAILURES_SHOWN = 100
RETRY_SECONDS = 0.25
_PAGE = 1000
_GONE = (NotFound.code, SandboxGone.code)


@dataclass(frozen=True, slots=True)
class Order:
    """What is to be done, why, and until when."""

    action: Action
    reason: str
    ends_at: float
    """By the event loop's clock."""


@dataclass(slots=True)
class Tally:
    """What came of it."""

    done: int = 0
    failed: int = 0
    failures: list[ActOutcome] = field(default_factory=list[ActOutcome])
    """The first hundred."""

    def take(self, order: Order, asked: Sequence[str], outcomes: Iterable[ActOutcome]) -> None:
        """Take in a node's answer; a sandbox that it says nothing of has failed."""
        by_id = {outcome.sandbox_id: outcome for outcome in outcomes}
        for sandbox_id in asked:
            outcome = by_id.get(sandbox_id)
            if outcome is None:
                self.fail([sandbox_id], Broken("its node said nothing of it"))
            elif outcome.failure is None or (
                # It ended by itself meanwhile, which is what was wanted.
                order.action == "stop" and outcome.failure.code in _GONE
            ):
                self.done += 1
            else:
                self._add(outcome)

    def fail(self, sandbox_ids: Sequence[str], problem: SandfleetError) -> None:
        """Take in why nothing is known to have been done for some."""
        failure = Failure(code=problem.code, message=problem.message)
        for sandbox_id in sandbox_ids:
            self._add(ActOutcome(sandbox_id=sandbox_id, failure=failure))

    def _add(self, outcome: ActOutcome) -> None:
        self.failed += 1
        if len(self.failures) < FAILURES_SHOWN:
            self.failures.append(outcome)


class Actions:
    """Answers `sandbox.act`, and ends sandboxes for the rest of the scheduler."""

    def __init__(
        self,
        bus: Bus,
        store: Store,
        fleet: Fleet,
        settings: SchedulerSettings,
        metrics: SchedulerMetrics,
        log: Logger,
    ) -> None:
        self._bus = bus
        self._store = store
        self._fleet = fleet
        self._settings = settings
        self._metrics = metrics
        self._log = log

    async def act(self, request: SandboxesAct) -> SandboxesActed:
        """Pause, resume or stop all live sandboxes of a job, or with certain labels.

        It takes `act_seconds` at most; what was not done by then is among the failures.

        Raises:
            Unreachable: Redis is down, so it is not known which sandboxes there are.
        """
        ends_at = self._fleet.now() + self._settings.act_seconds
        sandbox_ids = await self._matching(request)
        order = Order(request.action, request.reason, ends_at)
        tally = await self._carry_out(order, sandbox_ids)
        self._log.info(
            "sandboxes.acted",
            action=request.action,
            request_id=request.request_id,
            matched=len(sandbox_ids),
            done=tally.done,
            failed=tally.failed,
        )
        return SandboxesActed(matched=len(sandbox_ids), done=tally.done, failures=tally.failures)

    async def stop(
        self, sandbox_ids: Iterable[str], reason: str, *, within: float | None = None
    ) -> None:
        """End many. That some are gone already, or their node, is no error."""
        ends_at = self._fleet.now() + (within or self._settings.act_seconds)
        homes = {sandbox_id: node_of(sandbox_id) for sandbox_id in sandbox_ids}
        tally = await self._carry_out(Order("stop", reason, ends_at), homes)
        if tally.failed:
            first = tally.failures[0]
            why = first.failure.message if first.failure else ""
            self._log.warning(
                "sandboxes.stop_failed", count=tally.failed, sandbox=first.sandbox_id, error=why
            )

    async def _matching(self, request: SandboxesAct) -> dict[str, str]:
        """Return the live sandboxes meant with their nodes, read a page of records at a time."""
        found: dict[str, str] = {}
        after: str | None = None
        while True:
            page = await self._store.list(
                SandboxList(job_id=request.job_id, labels=request.labels, limit=_PAGE, after=after)
            )
            found |= {info.sandbox_id: info.node for info in page.sandboxes}
            after = page.next
            if after is None:
                return found

    async def _carry_out(self, order: Order, homes: Mapping[str, str]) -> Tally:
        tally = Tally()
        by_node: dict[str, list[str]] = defaultdict(list)
        for sandbox_id, node in homes.items():
            by_node[node].append(sandbox_id)
        async with asyncio.TaskGroup() as group:
            for node, ids in by_node.items():
                batches = chunks(ids, BATCH)
                for _ in range(min(self._settings.act_batches, -(-len(ids) // BATCH))):
                    group.create_task(self._send(order, node, batches, tally))
        self._metrics.acted.labels(order.action, "done").inc(tally.done)
        self._metrics.acted.labels(order.action, "failed").inc(tally.failed)
        return tally

    async def _send(
        self, order: Order, node: str, batches: Iterator[Sequence[str]], tally: Tally
    ) -> None:
        """Send a node one batch after the other; several of us share its batches."""
        for sandbox_ids in batches:
            try:
                outcomes = await self._ask(order, node, sandbox_ids)
            except SandfleetError as problem:
                tally.fail(sandbox_ids, problem)
            else:
                tally.take(order, sandbox_ids, outcomes)

    async def _ask(self, order: Order, node: str, sandbox_ids: Sequence[str]) -> list[ActOutcome]:
        """Ask until there is an answer, the time is up or the node is given up."""
        body = NodeAct(action=order.action, sandbox_ids=list(sandbox_ids), reason=order.reason)
        problem: SandfleetError = TimedOut("its turn did not come in time; ask again", node=node)
        unheard_since: float | None = None
        while (left := order.ends_at - self._fleet.now()) > 0:
            within = min(left, self._settings.act_answer_seconds)
            wait = RETRY_SECONDS
            try:
                async with self._fleet.while_alive(node):
                    reply = await self._bus.ask(
                        s.NODE_ACT, body, within=within, resend=True, node=node
                    )
                    return reply.outcomes
            except Unreachable as nobody:
                problem, now = nobody, self._fleet.now()
                # A node service that starts anew is back by then.
                unheard_since = unheard_since or now
                if now - unheard_since > self._settings.node_silent_seconds:
                    raise
            except Unavailable as trouble:
                problem = trouble
                wait = float(trouble.fields.get("retry_after_seconds") or wait)
            await asyncio.sleep(max(0.0, min(wait, order.ends_at - self._fleet.now())))
        raise problem
