"""One heap of dates for all sandboxes."""

from __future__ import annotations

import heapq


class Dates:
    """When to look at which sandbox again. Setting a date replaces the one before. Pure."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, str]] = []
        self._due: dict[str, float] = {}

    def __len__(self) -> int:
        return len(self._due)

    def set(self, sandbox_id: str, at: float | None) -> bool:
        """Set or clear a sandbox's date; True if it is now the earliest of all."""
        if at is None:
            self._due.pop(sandbox_id, None)
            return False
        self._due[sandbox_id] = at
        heapq.heappush(self._heap, (at, sandbox_id))
        if len(self._heap) > 64 + 4 * len(self._due):
            self._heap = [(when, which) for which, when in self._due.items()]
            heapq.heapify(self._heap)
        return self._heap[0] == (at, sandbox_id)

    def next_at(self) -> float | None:
        """Return the earliest date."""
        while self._heap:
            at, sandbox_id = self._heap[0]
            if self._due.get(sandbox_id) == at:
                return at
            heapq.heappop(self._heap)
        return None

    def take_due(self, now: float) -> list[str]:
        """Return, and clear, all sandboxes whose date has come."""
        found: list[str] = []
        while (at := self.next_at()) is not None and at <= now:
            _, sandbox_id = heapq.heappop(self._heap)
            del self._due[sandbox_id]
            found.append(sandbox_id)
        return found
