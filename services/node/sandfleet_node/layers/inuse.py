"""Which layers sandboxes stand on, counted as they come and go."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterable, Mapping

_REMEMBERED = 16_384


class InUse:
    """Counts the users of each layer, and remembers when the last one went."""

    def __init__(self) -> None:
        self._users: Counter[str] = Counter()
        self._used_at: dict[str, float] = {}
        self.changed = asyncio.Event()
        """Set when a layer got its first user or lost its last."""

    def take(self, layers: Iterable[str]) -> None:
        """Take note of a sandbox, or of whoever else needs its layers."""
        for digest in layers:
            self._users[digest] += 1
            if self._users[digest] == 1:
                self.changed.set()

    def release(self, layers: Iterable[str]) -> None:
        """Take note that it has gone."""
        for digest in layers:
            self._users[digest] -= 1
            if self._users[digest] > 0:
                continue
            del self._users[digest]
            self._used_at.pop(digest, None)  # the latest come last
            self._used_at[digest] = time.time()
            self.changed.set()
        while len(self._used_at) > _REMEMBERED:
            del self._used_at[next(iter(self._used_at))]

    def digests(self) -> frozenset[str]:
        """Return the layers that have users."""
        return frozenset(self._users)

    def used_at(self) -> Mapping[str, float]:
        """Return when layers without users lost their last one, in seconds since 1970."""
        return self._used_at


def idle(
    mounted: Iterable[str],
    in_use: frozenset[str],
    since: Mapping[str, float],
    now: float,
    *,
    idle_seconds: float,
    most: int,
) -> list[str]:
    """Return which mounted layers to unmount: idle for long, and the longest idle of too many.

    Args:
        mounted: digests.
        in_use: those of sandboxes.
        since: when others were used last; those that are missing, never since they are known.
        now: seconds since 1970, as in `since`.
        idle_seconds: how long one may stay without use.
        most: how many may be mounted.
    """
    every = list(mounted)
    unused = sorted((d for d in every if d not in in_use), key=lambda d: since.get(d, now))
    surplus = max(0, len(every) - most)
    return [
        digest
        for number, digest in enumerate(unused)
        if number < surplus or now - since.get(digest, now) > idle_seconds
    ]
