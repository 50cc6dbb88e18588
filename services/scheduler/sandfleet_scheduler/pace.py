"""How fast sandboxes become ready, and what is to be expected from that. Pure."""

from __future__ import annotations

from collections import deque

WINDOW_SECONDS = 10.0
"""Rates are of so long, as those in heartbeats are."""
LEAST_SECONDS = 2.0
"""Less than this says nothing about a rate."""
RETRY_FIRST_SECONDS = 1.0
RETRY_MOST_SECONDS = 60.0
RETRY_UNKNOWN_SECONDS = 5.0


class Pace:
    """How fast one job's sandboxes become ready, lately.

    While there is room they become ready as fast as nodes start them; afterwards as
    fast as others end. So the measuring begins anew when room runs out or comes back.
    """

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque()
        self._is_short: bool | None = None
        self._since = 0.0

    def note(self, now: float, ready: int, *, is_short: bool) -> None:
        """Take in how many are ready, and whether there is less room than is waited for."""
        if is_short != self._is_short:
            self._is_short, self._since = is_short, now
            self._samples.clear()
        self._samples.append((now, ready))
        while len(self._samples) > 2 and now - self._samples[0][0] > WINDOW_SECONDS:
            self._samples.popleft()

    def expected_seconds(self, left: int, ahead: int, fleet_per_second: float) -> float | None:
        """Return how long `left` of ours take behind `ahead` of others; None: not known.

        `fleet_per_second` is what all nodes together bring up, over the same window.
        """
        if left <= 0:
            return 0.0
        rate = self._per_second()
        now = self._samples[-1][0] if self._samples else 0.0
        if not self._is_short or now - self._since >= WINDOW_SECONDS:
            rate = max(rate, fleet_per_second)
        return (left + ahead) / rate if rate > 0 else None

    def _per_second(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (first, before), (last, after) = self._samples[0], self._samples[-1]
        return (after - before) / (last - first) if last - first >= LEAST_SECONDS else 0.0


def retry_after(waiting: int, per_second: float) -> float:
    """Return when to come again, in seconds, behind so many that wait."""
    if per_second <= 0:
        return RETRY_UNKNOWN_SECONDS
    return min(RETRY_MOST_SECONDS, max(RETRY_FIRST_SECONDS, waiting / per_second))
