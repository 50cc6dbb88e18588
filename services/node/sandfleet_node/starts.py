"""How fast sandboxes become ready. Pure."""

from __future__ import annotations

WINDOW_SECONDS = 10
RETRY_LEAST_SECONDS = 0.5
RETRY_MOST_SECONDS = 30.0


class StartRate:
    """Counts what became ready over the last ten seconds, in one counter a second."""

    def __init__(self) -> None:
        self._counts = [0] * WINDOW_SECONDS
        self._second = 0
        """The second that the youngest counter stands for."""

    def note(self, now: float) -> None:
        """Count one that became ready; `now` is of a clock that does not go back."""
        self._forget(int(now))
        self._counts[self._second % WINDOW_SECONDS] += 1

    def per_second(self, now: float) -> float:
        """Return how many became ready each second, over the last ten."""
        self._forget(int(now))
        return sum(self._counts) / WINDOW_SECONDS

    def _forget(self, second: int) -> None:
        for old in range(max(self._second, second - WINDOW_SECONDS) + 1, second + 1):
            self._counts[old % WINDOW_SECONDS] = 0
        self._second = max(self._second, second)


def retry_after(starting: int, limit: int, per_second: float) -> float:
    """Return in how many seconds a full queue should be half empty, at the measured rate.

    Half, because whoever waits would else come back all at once for a single place.
    """
    if per_second <= 0:
        return RETRY_LEAST_SECONDS * 4
    excess = max(1.0, starting - limit / 2)
    return min(RETRY_MOST_SECONDS, max(RETRY_LEAST_SECONDS, round(excess / per_second, 1)))
