"""Nodes that said no to one request: why, and until when they are left alone. Pure.

A node that refuses is left alone for a while, longer each time in a row. One that is
only busy says itself when to come again; that is believed up to a limit, for it is
an estimate and another may have been quicker.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection

from sandfleet_common.messages import Failure

from .reasons import BUSY, Reason, refused

AVOID_FIRST_SECONDS = 0.05
AVOID_MOST_SECONDS = 1.0
BUSY_MOST_SECONDS = 5.0
ABSENT_ENOUGH = 3
"""So many nodes that have looked in the store are believed: they share it."""


class Refusals:
    """What one job, or one creation, has heard from nodes. Times are of any one clock."""

    def __init__(self) -> None:
        self.reasons: dict[str, Reason] = {}
        """The latest of each node that ever refused."""
        self._until: dict[str, float] = {}
        self._in_a_row: dict[str, int] = defaultdict(int)
        self._absent: dict[str, str] = {}
        """What nodes said that looked for the environment and did not find it."""

    def refuse(
        self, node: str, why: str, now: float, roll: float, *, wait_seconds: float | None = None
    ) -> None:
        """Take in a refusal; `roll` in 0..1 spreads those that were refused at once.

        `wait_seconds`: the node is busy, and takes sandboxes again about then.
        """
        self.reasons[node] = refused(why) if wait_seconds is None else BUSY
        if self._until.get(node, 0) > now:
            return
        times = self._in_a_row[node] = self._in_a_row[node] + 1
        pause = min(AVOID_MOST_SECONDS, AVOID_FIRST_SECONDS * 2 ** min(times - 1, 8))
        if wait_seconds is not None:
            pause = min(BUSY_MOST_SECONDS, max(wait_seconds, AVOID_FIRST_SECONDS))
        self._until[node] = now + pause * (0.5 + roll / 2)

    def note_absent(self, node: str, failure: Failure) -> None:
        """Take in a refusal that may say that there is no such environment."""
        if failure.code == "not_found" and "environment" in failure.fields:
            self._absent[node] = failure.message

    def not_found(self, candidates: Collection[str]) -> str | None:
        """Return what nodes said of the environment when enough of them, or all, lack it.

        Args:
            candidates: nodes alive that may have it.
        """
        said = [text for node, text in self._absent.items() if node in candidates]
        is_certain = said and len(said) >= min(ABSENT_ENOUGH, len(candidates))
        return said[-1] if is_certain else None

    def lost(self, node: str) -> None:
        """Take in that a node was lost while it was asked."""
        self.reasons[node] = Reason("was lost", "were lost")

    def accepted(self, node: str) -> None:
        """Take in that a node made a sandbox: its refusals are history."""
        self._in_a_row.pop(node, None)

    def avoided(self, now: float) -> frozenset[str]:
        """Return the nodes to be left alone now."""
        self._until = {node: until for node, until in self._until.items() if until > now}
        return frozenset(self._until)

    def soonest(self, now: float) -> float | None:
        """Return seconds until the first of them may be asked again; None when none is avoided."""
        return max(0.0, min(self._until.values()) - now) if self._until else None
