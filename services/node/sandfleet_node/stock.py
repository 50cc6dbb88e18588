"""Which id ranges have parts made ahead for their next sandbox. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

STARTING_QUIET = 2
"""Parts are made ahead while no more sandboxes than these are being started."""


@dataclass(frozen=True, slots=True)
class Part:
    """What one creation starts from."""

    uid: int
    """First host id of its range."""
    is_ready: bool
    """Groups, directory and namespaces of the range are there."""


class Stock:
    """Ranges that are ready, each handed out once, and whether to make more."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ready: dict[int, None] = {}

    def __len__(self) -> int:
        return len(self._ready)

    def claim(self) -> int | None:
        """Take a range out, the one made last, whose parts the processor may still hold."""
        return self._ready.popitem()[0] if self._ready else None

    def add(self, uid: int) -> None:
        """Put a range in whose parts have just been made.

        Raises:
            ValueError: it is in already, or the stock is full.
        """
        if uid in self._ready or len(self._ready) >= self._limit:
            raise ValueError(f"the range at {uid} has no place in the stock")
        self._ready[uid] = None

    def lacks(self) -> bool:
        """Return whether there is room for another."""
        return len(self._ready) < self._limit

    def without(self, prepared: Iterable[int]) -> list[int]:
        """Return the ranges in stock that a launcher does not name as prepared."""
        known = set(prepared)
        return [uid for uid in self._ready if uid not in known]

    def empty(self) -> list[int]:
        """Take all ranges out and return them."""
        ready, self._ready = list(self._ready), {}
        return ready


def is_quiet(starting: int, *, is_open: bool) -> bool:
    """Return whether something may be made ahead now: not while creations want the machine."""
    return is_open and starting <= STARTING_QUIET


def sort_found(
    found: Iterable[int], limit: int, is_usable: Callable[[int], bool]
) -> tuple[list[int], list[int]]:
    """Return which ranges that an earlier service made parts for are kept, and which are dropped.

    Args:
        found: first ids, in any order, also twice.
        limit: how many to keep at most.
        is_usable: whether a range is one of ours that no sandbox has.
    """
    keep: list[int] = []
    drop: list[int] = []
    for uid in sorted(set(found)):
        (keep if len(keep) < limit and is_usable(uid) else drop).append(uid)
    return keep, drop
