"""The slots of one job. Pure: assignments and outcomes in, counts and news out.

    waiting <-> sent -> ready | failed

A slot's holder is the sandbox id it was given last. It is recorded before a node
hears of it, and is kept when the slot waits again, so that whoever takes the slot
next names the holder it takes it from.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from enum import IntEnum

from sandfleet_common.messages import SandboxInfo, SlotFailure


class Slot(IntEnum):
    """Where a slot is."""

    WAITING = 0
    SENT = 1
    READY = 2
    FAILED = 3


class Slots:
    """All slots of a job, numbered from 0."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.holders: list[str | None] = [None] * count
        self.failures: dict[int, SlotFailure] = {}
        self._states = bytearray(count)
        self._waiting = deque(range(count))
        self._totals = [count, 0, 0, 0]
        self._ready: list[SandboxInfo] = []
        self._failed: list[SlotFailure] = []

    @property
    def ready(self) -> int:
        """How many became ready."""
        return self._totals[Slot.READY]

    @property
    def failed(self) -> int:
        """How many failed."""
        return self._totals[Slot.FAILED]

    @property
    def waiting(self) -> int:
        """How many wait for a node."""
        return self._totals[Slot.WAITING]

    @property
    def sent(self) -> int:
        """How many a node was asked for."""
        return self._totals[Slot.SENT]

    @property
    def is_complete(self) -> bool:
        """Whether every slot is ready or has failed."""
        return self.ready + self.failed == self.count

    def state(self, slot: int) -> Slot:
        """Return where a slot is."""
        return Slot(self._states[slot])

    def next_waiting(self) -> int | None:
        """Take the next slot that waits off the line; give it to `sent` or `wait`."""
        while self._waiting:
            slot = self._waiting.popleft()
            if self._states[slot] == Slot.WAITING:
                return slot
        return None

    def all_waiting(self) -> list[int]:
        """Return every slot that waits."""
        return [slot for slot in range(self.count) if self._states[slot] == Slot.WAITING]

    def send(self, slot: int, sandbox_id: str) -> None:
        """Give a slot to a sandbox that a node is asked for."""
        if self._move(slot, Slot.SENT):
            self.holders[slot] = sandbox_id

    def wait(self, slot: int) -> None:
        """Put a slot back into the line."""
        if self._move(slot, Slot.WAITING):
            self._waiting.append(slot)

    def became_ready(self, slot: int, info: SandboxInfo) -> None:
        """Take in that a slot's sandbox is ready."""
        if self._move(slot, Slot.READY):
            self.holders[slot] = info.sandbox_id
            self._ready.append(info)

    def fail(self, failure: SlotFailure) -> None:
        """Take in that a slot will have no sandbox."""
        if self._move(failure.slot, Slot.FAILED):
            self.failures[failure.slot] = failure
            self._failed.append(failure)

    def lost(self, slots: Iterable[int], failure: SlotFailure) -> None:
        """Tell that sandboxes which had been ready are gone. The counts stay: they were ready."""
        for slot in slots:
            if self._states[slot] == Slot.READY:
                self._failed.append(failure.model_copy(update={"slot": slot}))

    def take_news(self) -> tuple[list[SandboxInfo], list[SlotFailure]]:
        """Return what became ready and what failed since the last call."""
        news = self._ready, self._failed
        self._ready, self._failed = [], []
        return news

    def first_failures(self, limit: int) -> list[SlotFailure]:
        """Return the failures of the lowest slots."""
        if len(self.failures) > limit:
            return [self.failures[slot] for slot in sorted(self.failures)[:limit]]
        return sorted(self.failures.values(), key=lambda failure: failure.slot)

    def check(self) -> None:
        """Assert what must always hold."""
        assert sum(self._totals) == self.count
        for state in Slot:
            assert self._totals[state] == self._states.count(state)
        assert len(self.failures) == self.failed
        for slot, state in enumerate(self._states):
            if state in (Slot.SENT, Slot.READY):
                assert self.holders[slot] is not None

    def _move(self, slot: int, after: Slot) -> bool:
        """Move a slot unless its fate is sealed."""
        before = self._states[slot]
        if before in (Slot.READY, Slot.FAILED):
            return False
        self._states[slot] = after
        self._totals[before] -= 1
        self._totals[after] += 1
        return True
