"""One job under way: slots to nodes, outcomes to the client and to Redis.

What a run knows it holds in memory, and writes to Redis what another scheduler
needs to go on: the request, who holds each slot (before a node hears of it), the
failures. When Redis has lost its memory the run writes all of it again.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from sandfleet_common.bus import Bus, Delivery
from sandfleet_common.errors import NoCapacity, NodeLost, NotFound, SandfleetError, TimedOut
from sandfleet_common.ids import new_sandbox_id, node_of
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    Failure,
    JobState,
    JobSubmit,
    NodeCreateItem,
    Outcome,
    SlotFailure,
)
from sandfleet_common.store import FAILED_SLOT, Store

from . import takeover
from .actions import Actions
from .ahead import Ahead
from .config import SchedulerSettings
from .fitting import fitting
from .fleet import Fleet, lost_slot
from .jobnews import JobNews, chunks, until_done
from .line import LOOK_SECONDS, wait
from .metrics import SchedulerMetrics
from .pace import Pace
from .reasons import sentence
from .refusals import Refusals
from .sending import NotSent, Sender, known_environments, placing, wait_of
from .slots import Slot, Slots

ROUND_SLOTS = 1024
"""Slots given to nodes in one round, with one write to Redis."""
YIELD_SECONDS = 0.02
"""Before it looks for room, a job gives so much to those that came earlier elsewhere."""
SETTLE_SECONDS = 10.0
"""What a cancelled job gives to requests that are with nodes."""


@dataclass(frozen=True, slots=True)
class Means:
    """What every run works with."""

    bus: Bus
    store: Store
    fleet: Fleet
    actions: Actions
    ahead: Ahead
    sender: Sender
    settings: SchedulerSettings
    metrics: SchedulerMetrics
    log: Logger


class JobRun:
    """One job, from its delivery to its end."""

    def __init__(self, submit: JobSubmit, delivery: Delivery, means: Means) -> None:
        self.submit = submit
        self.delivery = delivery
        """The latest: an earlier one may have run out while NATS was away."""
        self.slots = Slots(submit.count)
        self.news = JobNews(
            submit, delivery.stored_at, self.slots, means.bus, means.store, means.log
        )
        self.is_cancelled = False
        self.is_handed_over = False
        self._means = means
        self._log = means.log.bind(job=submit.job_id)
        self._batch_items = fitting(submit.spec, means.settings.batch_items)
        self._wake = asyncio.Event()
        self._refusals = Refusals()
        self._pace = Pace()
        self._bug: BaseException | None = None

    @property
    def deadline_at(self) -> float:
        """When slots that wait fail."""
        return self.news.submitted_at + self.submit.deadline_seconds

    async def run(self) -> None:
        """Work until the job has ended and is off the queue, or is handed over."""
        async with Tasks(self._log) as tasks:
            tasks.start(self._keep(), "keep job")
            again = await self._open()
            if again is None:
                await until_done(self.delivery.done)
                return
            tasks.start(self._tell(), "tell job")
            self._resume(again, tasks)
            await self._place(tasks)
            if self._bug is not None:
                raise self._bug
            if self.is_cancelled:
                await self._end_all()
        if self.is_handed_over and not self.slots.is_complete:
            await self.news.flush()
            await self.delivery.again(0.05)
            return
        self.news.end(JobState.CANCELLED if self.is_cancelled else JobState.DONE)
        await until_done(self.news.flush)
        await until_done(self.delivery.done)

    def cancel(self) -> None:
        """End the job: place no more, end what was created."""
        self.is_cancelled = True
        self._wake.set()

    def hand_over(self) -> None:
        """Stop here; another scheduler goes on."""
        self.is_handed_over = True
        self._wake.set()

    def node_lost(self, node: str) -> None:
        """Tell the client which of its ready sandboxes are gone."""
        held = [
            slot
            for slot, holder in enumerate(self.slots.holders)
            if holder is not None and node_of(holder) == node
        ]
        self.slots.lost(held, lost_slot(0))

    # ---------------------------------------------------------------- starting

    async def _open(self) -> dict[int, str] | None:
        """Put the job on record, or take it over from there.

        Returns slot -> sandbox whose node is to be asked again; None when the job is over.
        """
        job_id, store = self.submit.job_id, self._means.store
        known = await until_done(lambda: store.get_job(job_id))
        if known is not None and known[1].state != JobState.PLACING:
            return None
        again: dict[int, str] = {}
        if known is not None:
            self.news.submitted_at = known[1].submitted_at
            again = await until_done(lambda: takeover.restore(job_id, self.slots, store, self._log))
        elif self.delivery.attempt > 1:
            again = await until_done(
                lambda: takeover.search(job_id, self.slots, store, self._means.fleet, self._log)
            )
        if known is not None or self.delivery.attempt > 1:
            self._means.metrics.jobs_taken_over.inc()
        await until_done(lambda: store.open_job(self.submit, self.news.info()))
        self._log.info("job.opened", count=self.submit.count, attempt=self.delivery.attempt)
        return again

    def _resume(self, again: dict[int, str], tasks: Tasks) -> None:
        by_node: dict[str, list[tuple[int, str]]] = defaultdict(list)
        for slot, sandbox_id in again.items():
            by_node[node_of(sandbox_id)].append((slot, sandbox_id))
        for node, pairs in by_node.items():
            for slot, sandbox_id in pairs:
                self.slots.send(slot, sandbox_id)
                self._count_in(node, sandbox_id)
            self._send(node, pairs, tasks, is_known=True)

    # ----------------------------------------------------------------- placing

    async def _place(self, tasks: Tasks) -> None:
        while not (self.slots.is_complete or self._is_stopped()):
            self._wake.clear()
            if self.slots.waiting:
                if time.time() >= self.deadline_at:
                    self._fail_waiting(NoCapacity(self._why()))
                    continue
                if (unknown := self._unknown_environment()) is not None:
                    self._fail_waiting(unknown)
                    continue
                if plan := self._plan():
                    await self._launch(plan, tasks)
                    continue
            await self._rest()
        if self.is_cancelled:
            await self._settle()

    def _is_stopped(self) -> bool:
        return self.is_cancelled or self.is_handed_over or self._bug is not None

    async def _rest(self) -> None:
        """Wait for an outcome, for room on a node, or for the deadline."""
        if not self.slots.waiting:
            await self._wake.wait()
            return
        soonest = self._refusals.soonest(self._means.fleet.now())
        left = max(0.0, self.deadline_at - time.time())
        pause = min(left, LOOK_SECONDS if soonest is None else min(LOOK_SECONDS, soonest))
        with self._means.fleet.line.place(self.news.submitted_at, self._wake):
            await wait(self._wake, max(pause, 0.01))
        if self.news.ahead:
            await asyncio.sleep(YIELD_SECONDS)

    def _plan(self) -> dict[str, list[tuple[int, str]]]:
        """Choose nodes for slots that wait: node -> (slot, new id)."""
        plan: dict[str, list[tuple[int, str]]] = defaultdict(list)
        core, now = self._means.fleet.core, self._means.fleet.now()
        avoided = self._refusals.avoided(now)
        for _ in range(ROUND_SLOTS):
            slot = self.slots.next_waiting()
            if slot is None:
                break
            node = core.choose(self.submit.spec, now, avoided)
            if node is None:
                self.slots.wait(slot)
                break
            sandbox_id = new_sandbox_id(node)
            self._count_in(node, sandbox_id)
            plan[node].append((slot, sandbox_id))
        return plan

    async def _launch(self, plan: dict[str, list[tuple[int, str]]], tasks: Tasks) -> None:
        """Record who holds each slot, then ask the nodes."""
        given = {slot: sandbox_id for pairs in plan.values() for slot, sandbox_id in pairs}
        claims = {slot: (self.slots.holders[slot], given[slot]) for slot in given}
        store, job_id = self._means.store, self.submit.job_id
        try:
            holders = await until_done(lambda: store.claim_slots(job_id, claims))
        except BaseException:
            for sandbox_id in given.values():
                self._count_out(sandbox_id)
            raise
        foreign: dict[int, str] = {}
        for slot, sandbox_id in given.items():
            if holders[slot] == sandbox_id:
                self.slots.send(slot, sandbox_id)
                continue
            # Another scheduler works on this job too, and was first.
            self._count_out(sandbox_id)
            if holders[slot] == FAILED_SLOT:
                self.slots.fail(SlotFailure(slot=slot, code="no_capacity", message=self._why()))
            else:
                foreign[slot] = holders[slot]
        self._resume(foreign, tasks)
        for node, pairs in plan.items():
            mine = [pair for pair in pairs if holders[pair[0]] == pair[1]]
            self._send(node, mine, tasks, is_known=False)

    def _send(
        self, node: str, pairs: Sequence[tuple[int, str]], tasks: Tasks, *, is_known: bool
    ) -> None:
        for part in chunks(pairs, self._batch_items):
            task = tasks.start(self._batch(node, dict(part), is_known), "create batch")
            task.add_done_callback(self._on_batch_done)

    def _on_batch_done(self, task: asyncio.Task[None]) -> None:
        # A bug must not leave slots in limbo: the job is delivered again.
        if not task.cancelled() and (error := task.exception()) is not None:
            self._bug = error
        self._wake.set()

    async def _batch(self, node: str, given: dict[int, str], is_known: bool) -> None:
        """Ask a node for some slots, and take in what comes of it."""
        items = [self._item(slot, sandbox_id) for slot, sandbox_id in given.items()]
        try:
            outcomes = await self._means.sender.create(node, items, is_known=is_known)
            for slot, outcome in zip(given, outcomes, strict=True):
                self._take(slot, node, outcome)
        except NotSent as problem:
            self._refuse(node, str(problem), problem.wait_seconds)
            self._wait_again(given)
        except NodeLost:
            records = [placing(item, node) for item in items]
            await until_done(lambda: self._means.fleet.end_lost(records))
            self._refusals.lost(node)
            self._wait_again(given)
        except TimedOut as problem:
            await self._means.sender.abandon([placing(i, node) for i in items], problem.message)
            for slot in given:
                self._fail(slot, problem)
        except SandfleetError as problem:
            self._refuse(node, problem.message, wait_of(problem.fields))
            self._wait_again(given)

    def _take(self, slot: int, node: str, outcome: Outcome) -> None:
        failure = outcome.failure
        if outcome.status == "ready" and outcome.info is not None:
            self._refusals.accepted(node)
            self.slots.became_ready(slot, outcome.info)
            self._means.metrics.placements.labels("ready").inc()
        elif outcome.status == "refused":
            failure = failure or Failure(code="none", message="no reason given")
            self._refusals.note_absent(node, failure)
            self._refuse(node, failure.message, wait_of(failure.fields))
            self.slots.wait(slot)
        else:
            code = failure.code if failure else "sandbox_failed"
            message = failure.message if failure else "the sandbox could not start"
            self.slots.fail(SlotFailure(slot=slot, code=code, message=message))
            self._means.metrics.placements.labels(code).inc()

    def _refuse(self, node: str, why: str, wait_seconds: float | None) -> None:
        now, roll = self._means.fleet.now(), random.random()
        self._refusals.refuse(node, why, now, roll, wait_seconds=wait_seconds)

    def _wait_again(self, given: dict[int, str]) -> None:
        for slot in given:
            self.slots.wait(slot)

    def _fail(self, slot: int, problem: SandfleetError) -> None:
        if self.slots.state(slot) in (Slot.READY, Slot.FAILED):
            return
        self.slots.fail(SlotFailure(slot=slot, code=problem.code, message=problem.message))
        self._means.metrics.placements.labels(problem.code).inc()

    def _fail_waiting(self, problem: SandfleetError) -> None:
        for slot in self.slots.all_waiting():
            self._fail(slot, problem)

    def _why(self) -> str:
        core = self._means.fleet.core
        known = {node: why for node, why in self._refusals.reasons.items() if node in core.nodes}
        reasons = known | core.reasons(self.submit.spec, self._means.fleet.now())
        return sentence(reasons.values(), len(core.nodes))

    def _unknown_environment(self) -> NotFound | None:
        try:
            known_environments(self._means.fleet, self.submit.spec, self._refusals)
        except NotFound as problem:
            return problem
        return None

    def _item(self, slot: int, sandbox_id: str) -> NodeCreateItem:
        return NodeCreateItem(
            sandbox_id=sandbox_id,
            spec=self.submit.spec,
            job_id=self.submit.job_id,
            slot=slot,
            requested_at=self.news.submitted_at,
            deadline_at=self.deadline_at,
        )

    def _count_in(self, node: str, sandbox_id: str) -> None:
        self._means.fleet.core.placed(node, sandbox_id, self.submit.spec.resources)

    def _count_out(self, sandbox_id: str) -> None:
        self._means.fleet.core.settled(node_of(sandbox_id), sandbox_id, is_kept=False)

    # ------------------------------------------------------------------ ending

    async def _settle(self) -> None:
        """Let requests that are with nodes come to an end."""
        try:
            async with asyncio.timeout(SETTLE_SECONDS):
                while self.slots.sent:
                    self._wake.clear()
                    await self._wake.wait()
        except TimeoutError:
            self._log.warning("job.unsettled", slots=self.slots.sent)

    async def _end_all(self) -> None:
        held = [holder for holder in self.slots.holders if holder is not None]
        await self._means.actions.stop(held, "its job was cancelled")

    # -------------------------------------------------------------- background

    async def _keep(self) -> None:
        """Say that the job is in good hands."""
        while True:
            await asyncio.sleep(self._means.settings.job_ack_seconds / 3)
            try:
                await self.delivery.keep()
            except SandfleetError:
                continue

    async def _tell(self) -> None:
        """Record and tell progress, and hear whether the job was cancelled."""
        looked_at = 0.0
        while True:
            await asyncio.sleep(self._means.settings.event_seconds)
            try:
                if time.monotonic() - looked_at > LOOK_SECONDS:
                    looked_at = time.monotonic()
                    self._look_ahead()
                    if await self._means.store.is_cancelled(self.submit.job_id):
                        self.cancel()
                await self.news.flush()
            except SandfleetError as problem:
                self._log.warning("job.untold", error=str(problem))
                await asyncio.sleep(0.2)

    def _look_ahead(self) -> None:
        """Work out what the job waits for, and how long that may take."""
        fleet, slots = self._means.fleet, self.slots
        now = fleet.now()
        ahead = self._means.ahead.of(self.submit.job_id, self.news.submitted_at)
        room = fleet.core.room(self.submit.spec, now)
        self._pace.note(now, slots.ready, is_short=room < slots.waiting + ahead)
        left, rate = slots.waiting + slots.sent, fleet.core.starts_per_second(now)
        self.news.expect(ahead, self._pace.expected_seconds(left, ahead, rate))
