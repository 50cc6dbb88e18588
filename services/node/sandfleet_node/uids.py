"""Ranges of host ids, one for each sandbox. Which are taken stands in the sandboxes' spec files."""

from __future__ import annotations

from .config import IDS_EACH, STRIDE


class IdRanges:
    """Hands out ranges of 65536 ids.

    The range given back last is given out first: the launcher keeps the user
    namespaces of ranges it has seen, and a known one costs next to nothing.
    """

    def __init__(self, base: int, count: int) -> None:
        self._base = base
        self._count = count
        self._next = 0
        self._free: list[int] = []
        self._taken: set[int] = set()
        self._blocked: dict[int, int] = {}
        """Ranges of ours that one of other settings reaches into, and how many do."""

    def __len__(self) -> int:
        return len(self._taken)

    def take(self) -> int:
        """Return the first id of a free range.

        Raises:
            LookupError: there is none.
        """
        while self._free:
            first = self._free.pop()
            if self.is_free(first):
                self._taken.add(first)
                return first
        while self._next < self._count:
            first = self._base + self._next * STRIDE
            self._next += 1
            if self.is_free(first):
                self._taken.add(first)
                return first
        raise LookupError("all ranges of host ids are taken")

    def is_free(self, first: int) -> bool:
        """Return whether a range is one of these and nobody has any of it."""
        return self._is_ours(first) and first not in self._taken and first not in self._blocked

    def adopt(self, first: int) -> None:
        """Take a certain range, which a sandbox has had since before this service started.

        Raises:
            ValueError: it is taken.
        """
        if first in self._taken or first in self._blocked:
            raise ValueError(f"the id range at {first} is taken")
        self._taken.add(first)
        for ours in self._reached_by(first):
            self._blocked[ours] = self._blocked.get(ours, 0) + 1

    def free(self, first: int) -> None:
        """Give a range back; once more is no error."""
        if first not in self._taken:
            return
        self._taken.discard(first)
        if self._is_ours(first):
            self._free.append(first)
        for ours in self._reached_by(first):
            self._blocked[ours] -= 1
            if not self._blocked[ours]:
                del self._blocked[ours]
                self._free.append(ours)

    def _is_ours(self, first: int) -> bool:
        number, beside = divmod(first - self._base, STRIDE)
        return not beside and 0 <= number < self._count

    def _reached_by(self, first: int) -> list[int]:
        """Return which of our ranges one that is none of ours has ids of."""
        if self._is_ours(first):
            return []
        number = (first - self._base) // STRIDE
        near = [self._base + n * STRIDE for n in (number, number + 1)]
        return [
            ours
            for ours in near
            if self._is_ours(ours) and ours < first + IDS_EACH and first < ours + IDS_EACH
        ]
