"""What a node that runs out of something does about it, one step after another. Pure.

New sandboxes are refused already (see `pressure`). Then, for memory:

    reclaim   take cold memory from idle sandboxes
    pause     pause idle best-effort sandboxes
    end       end the largest best-effort sandbox, and only far below the floor

Each step waits for the effect of the one before: a step that helped is taken again,
one that did not leads to the next. For disk there is only the last step. Sandboxes
that are latency-sensitive are never ended here: should they alone fill the machine,
the kernel's own choice among processes remains.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from sandfleet_common.messages import MIB, Qos

WORTHWHILE_BYTES = 16 * MIB
"""What a step must bring to have helped. Smaller sandboxes are not ended: it would not help."""
HASTE = 4
"""Where the last step is due, the others are given only this part of their time."""


class Step(StrEnum):
    """What is done."""

    RECLAIM = "reclaim"
    PAUSE = "pause"
    END = "end"


@dataclass(frozen=True, slots=True)
class Depths:
    """How little of something leads to what."""

    floor_bytes: int
    """Below it the steps begin."""
    end_bytes: int
    """Below it the last step is allowed."""
    margin: float
    """All is well again at so much above the floor, as a part of it."""
    settle_seconds: float
    """How long a step's effect is waited for."""
    rest_seconds: float
    """When no step is left that may be taken, how long until they begin anew."""


class Ladder:
    """Which step is next, for one thing a node can run out of."""

    def __init__(self, steps: tuple[Step, ...], depths: Depths) -> None:
        self._steps = steps
        self._depths = depths
        self._taken: int | None = None
        """Position of the step taken last; None: none, or all was well since."""
        self._free_before = 0
        self._next_at = float("-inf")

    def next_step(self, free_bytes: int, now: float) -> Step | None:
        """Return what to do now, or None. Call `took` when it has been done."""
        depths = self._depths
        if free_bytes >= depths.floor_bytes:
            if free_bytes >= depths.floor_bytes * (1 + depths.margin):
                self._taken = None
            return None
        if now < self._next_at:
            return None
        position = self._position(free_bytes)
        if position < len(self._steps) and self._is_allowed(position, free_bytes):
            return self._steps[position]
        self._taken, self._next_at = None, now + depths.rest_seconds
        return None

    def took(self, step: Step, free_bytes: int, now: float, *, found: bool) -> None:
        """Take note that a step has been taken.

        Args:
            step: which.
            free_bytes: what was free before it.
            now: when it was over.
            found: there was something to take it on; otherwise nothing has to be waited for.
        """
        depths = self._depths
        self._taken, self._free_before = self._steps.index(step), free_bytes
        wait = depths.settle_seconds if found else 0.0
        if free_bytes < depths.end_bytes and step is not Step.END:
            wait /= HASTE
        self._next_at = now + wait
        if not found and step is Step.END:
            self._next_at = now + depths.rest_seconds

    def _position(self, free_bytes: int) -> int:
        if self._taken is None:
            return 0
        if free_bytes - self._free_before >= WORTHWHILE_BYTES:
            return self._taken
        last = len(self._steps) - 1
        return last if self._taken == last else self._taken + 1

    def _is_allowed(self, position: int, free_bytes: int) -> bool:
        return self._steps[position] is not Step.END or free_bytes < self._depths.end_bytes


def memory_ladder(depths: Depths) -> Ladder:
    """Return the steps against a want of memory."""
    return Ladder((Step.RECLAIM, Step.PAUSE, Step.END), depths)


def disk_ladder(depths: Depths) -> Ladder:
    """Return the steps against a want of disk."""
    return Ladder((Step.END,), depths)


@dataclass(frozen=True, slots=True)
class Victim:
    """A sandbox that might be ended."""

    sandbox_id: str
    qos: Qos
    bytes: int
    """What its end would give back."""


def choose(sandboxes: Iterable[Victim]) -> Victim | None:
    """Return the largest best-effort sandbox, if ending it is worth it."""
    able = [v for v in sandboxes if v.qos is Qos.BEST_EFFORT and v.bytes >= WORTHWHILE_BYTES]
    return max(able, key=lambda victim: victim.bytes, default=None)


def memory_reason(victim: Victim) -> str:
    """Say why a sandbox was ended for want of memory."""
    return (
        "the node ran out of memory: it was the largest best-effort sandbox, "
        f"{victim.bytes // MIB} MiB"
    )


def disk_reason(victim: Victim) -> str:
    """Say why a sandbox was ended for want of disk."""
    return (
        "the node ran out of disk: it was the best-effort sandbox that had written most, "
        f"{victim.bytes // MIB} MiB"
    )
