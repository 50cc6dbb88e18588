"""Which sandboxes use most: one order for the node that is asked and for whoever asks several."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from .messages import SandboxUsage, UsageOrder

_KEYS: dict[UsageOrder, Callable[[SandboxUsage], float]] = {
    "cpu": lambda u: u.cpu_cores,
    "cpu_seconds": lambda u: u.cpu_seconds,
    "memory": lambda u: u.memory_bytes,
    "disk": lambda u: u.disk_bytes,
    "egress": lambda u: u.egress_bytes,
    "processes": lambda u: u.processes,
    "idle": lambda u: u.idle_seconds,
}


def most(found: Iterable[SandboxUsage], order: UsageOrder, limit: int) -> list[SandboxUsage]:
    """Return the `limit` sandboxes that use most, the most first; equals by id."""
    key = _KEYS[order]
    return heapq.nsmallest(limit, found, key=lambda u: (-key(u), u.sandbox_id))
