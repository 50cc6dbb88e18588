"""The warm sandboxes of one environment: started, lent, taken back, replaced."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sandfleet_common.errors import Busy, SandfleetError
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger

from .answers import Hello
from .roster import QueueFull, Roster, Shape
from .warm import Warm

SETTLE_SECONDS = 20.0
"""What a sandbox may take to clear up after a call."""
_PAUSE_SECONDS = 1.0
"""After a failed start nobody tries again for so long."""

CALLS_SERVED = "calls"
"""What a zygote says, in place of what was left behind, when it has served its number."""


@dataclass(eq=False, slots=True)
class Ticket:
    """A call that waits."""

    asked_at: float
    future: asyncio.Future[Warm] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


@dataclass(frozen=True, slots=True)
class Claim:
    """A warm sandbox that belongs to one call until it has settled."""

    warm: Warm
    wait_seconds: float
    is_cold: bool


class Pool:
    """Lends each of its sandboxes to one call at a time."""

    def __init__(
        self,
        environment: str,
        shape: Shape,
        start: Callable[[Pool], Awaitable[Warm]],
        retire: Callable[[Warm, str], None],
        tasks: Tasks,
        log: Logger,
    ) -> None:
        self.environment = environment
        """With its version."""
        self.roster: Roster[Warm, Ticket] = Roster(shape)
        self.hello: Hello | None = None
        """What the environment has, once a sandbox has said so."""
        self.used_at = time.monotonic()
        self._start = start
        self._retire = retire
        self._tasks = tasks
        self._log = log
        self._failure: SandfleetError | None = None
        self._failed_at = 0.0
        self._is_closed = False
        self._closed_for = ""

    async def claim(self, wait_seconds: float) -> Claim:
        """Return a sandbox; it is the caller's until it has settled or is discarded.

        Raises:
            Busy: the queue is full, or nothing was free in time.
            NoCapacity: none runs and none can be started; says why.
        """
        now = self.used_at = time.monotonic()
        ticket = Ticket(now)
        try:
            warm = self.roster.ask(ticket)
        except QueueFull:
            waiting = len(self.roster.waiting)
            raise self._busy(f"the node's queue of calls is full ({waiting} wait)") from None
        if warm is not None:
            return Claim(warm, 0.0, is_cold=False)
        self.grow()
        self._give_up_if_hopeless()
        return await self._wait(ticket, wait_seconds)

    async def _wait(self, ticket: Ticket, seconds: float) -> Claim:
        try:
            async with asyncio.timeout(seconds):
                warm = await ticket.future
        except TimeoutError:
            self._leave(ticket)
            raise self._busy(f"no warm sandbox was free within {seconds:g} s") from None
        except asyncio.CancelledError:
            self._leave(ticket)
            raise
        now = time.monotonic()
        is_cold = warm.calls == 0 and warm.started_at > ticket.asked_at
        return Claim(warm, now - ticket.asked_at, is_cold)

    def _leave(self, ticket: Ticket) -> None:
        """Wait no more; a sandbox that was given at this very moment goes to the next."""
        self.roster.abandon(ticket)
        future = ticket.future
        if future.done() and not future.cancelled() and future.exception() is None:
            self._give_back(future.result())

    def _give_back(self, warm: Warm) -> None:
        if not warm.is_over:
            self.settled(warm, "")

    def _busy(self, text: str) -> Busy:
        return Busy(text, retry_after_seconds=self.roster.retry_after())

    # ---------------------------------------------------------------- growing

    def grow(self) -> None:
        """Start what is missing."""
        if self._is_closed or time.monotonic() - self._failed_at < _PAUSE_SECONDS:
            return
        for _ in range(self.roster.wanted()):
            self.roster.begin_start()
            self._tasks.start(self._add_one(), f"warm {self.environment}")

    async def _add_one(self) -> None:
        try:
            warm = await self._start(self)
        except SandfleetError as problem:
            self._failure, self._failed_at = problem, time.monotonic()
            self._log.warning(
                "function.start_failed", environment=self.environment, error=problem.message
            )
            self._refuse(self.roster.failed_start())
            return
        except BaseException:
            self._refuse(self.roster.failed_start())
            raise
        self.hello = warm.hello
        self._failed_at = 0.0
        if self._is_closed:  # meanwhile: it would idle for ever, for nobody sweeps this pool
            self._refuse(self.roster.failed_start())
            self._retire(warm, self._closed_for)
            return
        self._hand_over(warm, self.roster.started(warm, time.monotonic()))

    def _give_up_if_hopeless(self) -> None:
        if len(self.roster) == 0:
            waiting = list(self.roster.waiting)
            self.roster.waiting.clear()
            self._refuse(waiting)

    def _refuse(self, tickets: list[Ticket]) -> None:
        problem = self._failure or self._busy("no warm sandbox could be started")
        for ticket in tickets:
            if not ticket.future.done():
                ticket.future.set_exception(problem)
                ticket.future.exception()

    def _hand_over(self, warm: Warm, ticket: Ticket | None) -> None:
        while ticket is not None and ticket.future.done():  # it has given up meanwhile
            ticket = self.roster.settled(warm, time.monotonic())
        if ticket is not None:
            ticket.future.set_result(warm)

    # --------------------------------------------------------------- settling

    def settled(self, warm: Warm, problem: str) -> None:
        """Take a sandbox back, or replace it when a call left something behind or ended it."""
        if problem or self._is_closed:
            self.discard(warm, problem or self._closed_for)
        elif warm in self.roster.busy:
            self._hand_over(warm, self.roster.settled(warm, time.monotonic()))

    def discard(self, warm: Warm, reason: str) -> None:
        """End a sandbox; another starts when it is needed."""
        self.roster.remove(warm)
        self._retire(warm, reason)
        self.grow()

    def sweep(self) -> None:
        """End what has idled for long or does not settle, and keep as many as there should be."""
        for warm in self.roster.surplus(time.monotonic()):
            self.discard(warm, "idle")
        now = asyncio.get_running_loop().time()
        for warm in list(self.roster.busy):
            since = warm.settling_since
            if since is not None and now - since > SETTLE_SECONDS:
                self.discard(warm, "it did not clear up in time")
        self.grow()

    def close(self, reason: str) -> None:
        """End all that is idle, and the rest when its call is over."""
        self._is_closed, self._closed_for = True, reason
        for warm, _ in list(self.roster.idle):
            self.discard(warm, reason)
        waiting = list(self.roster.waiting)
        self.roster.waiting.clear()
        self._refuse(waiting)

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing at all."""
        return len(self.roster) == 0 and not self.roster.waiting
