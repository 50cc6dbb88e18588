"""From records to facts, and facts in wait for the bus. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from sandfleet_common.errors import BadRequest
from sandfleet_common.ids import node_of
from sandfleet_common.messages import Fact

from .calls import call_name, held_back_name
from .records import Call, Dropped, Exec, RecordFlag

_NOTES = (
    (RecordFlag.I386, "i386"),
    (RecordFlag.X32, "x32"),
    (RecordFlag.AT_INIT, "at-init"),
    (RecordFlag.SHARES_PARENT, "shares-parent"),
    (RecordFlag.UNLINKED, "unlinked"),
)


@dataclass(frozen=True, slots=True)
class Clock:
    """What has to be added to the kernel's time to get the time of day."""

    offset_seconds: float

    def at(self, time_ns: int) -> float:
        """Return the time of day of a record, to the millisecond."""
        return round(self.offset_seconds + time_ns / 1e9, 3)


def to_fact(record: Call | Exec | Dropped, clock: Clock) -> Fact:
    """Return what a record says, in the words of the contract."""
    flags = record.header.flags
    notes = [note for flag, note in _NOTES if flags & flag]
    at = clock.at(record.header.time_ns)
    match record:
        case Exec():
            return Fact(
                sandbox_id=record.sandbox,
                at=at,
                kind="exec",
                pid=record.pid,
                uid=record.uid,
                program=record.program,
                path=record.path,
                notes=notes,
            )
        case Call():
            return Fact(
                sandbox_id=record.sandbox,
                at=at,
                kind=call_name(record.number, is_i386=bool(flags & RecordFlag.I386)),
                pid=record.pid,
                uid=record.uid,
                program=record.program,
                arguments=list(record.arguments),
                result=record.result,
                notes=notes,
            )
        case Dropped():
            return Fact(
                sandbox_id=record.sandbox,
                at=at,
                kind="held-back",
                pid=0,
                uid=0,
                program="",
                count=record.count,
                notes=[held_back_name(record.number)],
            )


def is_of(fact: Fact, node: str) -> bool:
    """Return whether the directory that a fact names is a sandbox of this node."""
    try:
        return node_of(fact.sandbox_id) == node
    except BadRequest:
        return False


class Waiting:
    """Facts that wait for the next batch, at most so many.

    System calls and program starts wait apart, so that a flood of starts drops no
    call. Facts alike are told once with a count: calls always, starts once a
    sandbox has `starts_each` of them waiting.
    """

    def __init__(self, *, limit: int, starts_each: int) -> None:
        self._limit = limit
        self._starts_each = starts_each
        self._calls: deque[Fact] = deque()
        self._starts: deque[Fact] = deque()
        self._of_sandbox: dict[str, int] = {}
        self._counts: dict[tuple[object, ...], int] = {}
        self.lost = 0
        """Facts dropped since the last `take`, because too many waited."""
        self.lost_in_all = 0

    def __len__(self) -> int:
        return len(self._calls) + len(self._starts)

    def add(self, fact: Fact) -> None:
        """Take a fact; when too many of its kind wait, it is counted and dropped."""
        key = _alike(fact)
        is_start = fact.kind == "exec"
        queue = self._starts if is_start else self._calls
        if key in self._counts and (not is_start or self._is_flooding(fact.sandbox_id)):
            self._counts[key] += fact.count
            return
        if len(queue) >= self._limit:
            self.lost += fact.count
            self.lost_in_all += fact.count
            return
        queue.append(fact)
        self._counts.setdefault(key, 0)
        if is_start:
            self._of_sandbox[fact.sandbox_id] = self._of_sandbox.get(fact.sandbox_id, 0) + 1

    def take(self, most: int) -> tuple[list[Fact], int]:
        """Return facts for one batch and how many were lost since the batch before.

        They are in order of time; where not all fit, calls go before starts.
        """
        taken: list[Fact] = []
        for queue in (self._calls, self._starts):
            while queue and len(taken) < most:
                taken.append(self._counted(queue.popleft()))
        if not self:
            self._counts.clear()
            self._of_sandbox.clear()
        lost, self.lost = self.lost, 0
        return sorted(taken, key=lambda fact: fact.at), lost

    def give_back(self, facts: list[Fact], lost: int) -> None:
        """Undo a `take` whose batch could not be sent; the newest go when it is too much."""
        self.lost += lost
        for fact in reversed(facts):
            queue = self._starts if fact.kind == "exec" else self._calls
            if len(queue) >= self._limit:
                dropped = self._counted(queue.pop())
                self.lost += dropped.count
                self.lost_in_all += dropped.count
            queue.appendleft(fact)

    def _is_flooding(self, sandbox_id: str) -> bool:
        return self._of_sandbox.get(sandbox_id, 0) >= self._starts_each

    def _counted(self, fact: Fact) -> Fact:
        more = self._counts.pop(_alike(fact), 0)
        if fact.kind == "exec":
            self._of_sandbox[fact.sandbox_id] = self._of_sandbox.get(fact.sandbox_id, 1) - 1
        return fact.model_copy(update={"count": fact.count + more}) if more else fact


def _alike(fact: Fact) -> tuple[object, ...]:
    who = (fact.sandbox_id, fact.kind, fact.uid, fact.program, fact.path, *fact.notes)
    if fact.kind == "exec":
        return who
    return (*who, fact.pid, fact.result, *fact.arguments)
