"""Ranges of host ids, one for each sandbox. Which are taken stands in the sandboxes' spec files."""

from __future__ import annotations

from .config import IDS_EACH


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

    def __len__(self) -> int:
        return len(self._taken)

    def take(self) -> int:
        """Return the first id of a free range.

        Raises:
            LookupError: there is none.
        """
        while self._free:
            first = self._free.pop()
            if first not in self._taken:
                self._taken.add(first)
                return first
        while self._next < self._count:
            first = self._base + self._next * IDS_EACH
            self._next += 1
            if first not in self._taken:
                self._taken.add(first)
                return first
        raise LookupError("all ranges of host ids are taken")

    def is_free(self, first: int) -> bool:
        """Return whether a range is one of these and nobody has it."""
        offset = first - self._base
        is_ours = 0 <= offset < self._count * IDS_EACH and offset % IDS_EACH == 0
        return is_ours and first not in self._taken

    def adopt(self, first: int) -> None:
        """Take a certain range, which a sandbox has had since before this service started.

        Raises:
            ValueError: it is taken, or begins where no range begins.
        """
        if first % IDS_EACH or first in self._taken:
            raise ValueError(f"the id range at {first} is taken or no range")
        self._taken.add(first)

    def free(self, first: int) -> None:
        """Give a range back; once more is no error."""
        if first in self._taken:
            self._taken.discard(first)
            if self._base <= first < self._base + self._count * IDS_EACH:
                self._free.append(first)
