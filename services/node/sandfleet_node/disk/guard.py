"""How much all sandboxes of a pool may take together, so that the disk below never fills.

The pool's image is sparse: were the disk below it full, a write that btrfs has accepted
would fail, and the kernel would stop the whole pool. So what is accepted is bounded by
what is free, and a part of the disk is never given out.
"""

from __future__ import annotations

CALM_SECONDS, BUSY_SECONDS = 1.0, 0.2
_CALM = 16
"""With so many times the reserve free there is no hurry."""


def bound(used_bytes: int, free_bytes: int, reserve_bytes: int) -> int:
    """Return what the pool's sandboxes may take together, now that so much of the disk is free."""
    return used_bytes + max(0, free_bytes - reserve_bytes)


def is_worth_setting(new: int, old: int, reserve_bytes: int) -> bool:
    """Return whether a bound differs enough from the one in force; lower ones matter sooner."""
    return new <= old - reserve_bytes // 32 or new >= old + reserve_bytes // 4


def pause(free_bytes: int, reserve_bytes: int) -> float:
    """Return after how many seconds to look at the disk again."""
    return CALM_SECONDS if free_bytes > _CALM * reserve_bytes else BUSY_SECONDS
