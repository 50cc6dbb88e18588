"""Who has which warm sandbox, and who waits for one. Pure: things in, decisions out."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Generic, TypeVar

WarmT = TypeVar("WarmT")
TicketT = TypeVar("TicketT")

_FIRST_GUESS_SECONDS = 0.05
_WEIGHT = 0.1
_RETRY_LEAST_SECONDS, _RETRY_MOST_SECONDS = 0.05, 60.0


class QueueFull(Exception):
    """No sandbox is free and as many calls wait as may."""


@dataclass(frozen=True, slots=True)
class Shape:
    """How large a pool may be."""

    least: int
    """Sandboxes kept warm although nobody calls."""
    most: int
    """Sandboxes at once, those that are starting included."""
    queue: int
    """Calls that may wait."""
    idle_seconds: float
    """One that was not called for so long ends, unless it is among the least."""


class Roster(Generic[WarmT, TicketT]):
    """The warm sandboxes of one environment. A sandbox has one owner at any time.

    Tickets wait in the order they came. A sandbox that was used last is given first:
    its memory is in the caches, and the others may fall idle.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.idle: list[tuple[WarmT, float]] = []
        """With the time at which each fell idle; the latest is last."""
        self.busy: set[WarmT] = set()
        """Claimed, or clearing up after a call."""
        self.settling: set[WarmT] = set()
        """Those of the busy that are clearing up: they will be free in a moment."""
        self.starting = 0
        self.waiting: deque[TicketT] = deque()
        self.run_seconds = _FIRST_GUESS_SECONDS
        """What a call takes lately."""

    def __len__(self) -> int:
        return len(self.idle) + len(self.busy) + self.starting

    def ask(self, ticket: TicketT) -> WarmT | None:
        """Return a sandbox for this ticket, which then owns it; None: it waits.

        Raises:
            QueueFull: it may not even wait.
        """
        if self.idle and not self.waiting:
            warm, _ = self.idle.pop()
            self.busy.add(warm)
            return warm
        if len(self.waiting) >= self.shape.queue:
            raise QueueFull
        self.waiting.append(ticket)
        return None

    def abandon(self, ticket: TicketT) -> None:
        """Let a ticket wait no more."""
        if ticket in self.waiting:
            self.waiting.remove(ticket)

    def begin_start(self) -> None:
        """Count one that is starting."""
        self.starting += 1

    def started(self, warm: WarmT, now: float) -> TicketT | None:
        """Take on a sandbox that has started; return whose it is now, if anybody waits."""
        self.starting -= 1
        return self._offer(warm, now)

    def failed_start(self) -> list[TicketT]:
        """Take note of a failure; return the tickets for which there is no hope left."""
        self.starting -= 1
        if len(self):
            return []
        hopeless = list(self.waiting)
        self.waiting.clear()
        return hopeless

    def answered(self, warm: WarmT) -> None:
        """Take note that a sandbox has answered and is clearing up."""
        if warm in self.busy:
            self.settling.add(warm)

    def settled(self, warm: WarmT, now: float) -> TicketT | None:
        """Take a sandbox back after a call; return whose it is now, if anybody waits."""
        self.busy.discard(warm)
        self.settling.discard(warm)
        return self._offer(warm, now)

    def _offer(self, warm: WarmT, now: float) -> TicketT | None:
        if self.waiting:
            self.busy.add(warm)
            return self.waiting.popleft()
        self.idle.append((warm, now))
        return None

    def remove(self, warm: WarmT) -> None:
        """Forget a sandbox; one that is unknown is no error."""
        self.busy.discard(warm)
        self.settling.discard(warm)
        self.idle = [one for one in self.idle if one[0] is not warm]

    def ran(self, seconds: float) -> None:
        """Take note of how long a call took."""
        self.run_seconds += _WEIGHT * (seconds - self.run_seconds)

    def wanted(self) -> int:
        """Return how many sandboxes to start now."""
        # A lone sandbox gets company: who calls again and again would wait each time.
        soon_free = len(self.settling) if len(self) > 1 else 0
        for_queue = len(self.waiting) - self.starting - soon_free
        for_least = self.shape.least - len(self)
        return max(0, min(max(for_queue, for_least), self.shape.most - len(self)))

    def surplus(self, now: float) -> list[WarmT]:
        """Return idle sandboxes to end; they stay in the roster until removed."""
        spare = len(self) - self.shape.least
        old = [warm for warm, since in self.idle if now - since >= self.shape.idle_seconds]
        return old[: max(0, spare)]

    def retry_after(self) -> float:
        """Return in how many seconds a place in the queue is likely to be free."""
        lanes = max(1, len(self.idle) + len(self.busy))
        expected = len(self.waiting) * self.run_seconds / lanes
        return round(min(_RETRY_MOST_SECONDS, max(_RETRY_LEAST_SECONDS, expected)), 3)

    def check(self) -> None:
        """Raise AssertionError where the roster contradicts itself."""
        idle = [warm for warm, _ in self.idle]
        assert not set(idle) & self.busy, "a sandbox is idle and busy"
        assert self.settling <= self.busy, "a sandbox is clearing up that nobody had"
        assert len(set(idle)) == len(idle), "a sandbox is idle twice"
        assert not (self.idle and self.waiting), "somebody waits beside an idle sandbox"
        assert self.starting >= 0 and len(self) <= self.shape.most, "too many sandboxes"
