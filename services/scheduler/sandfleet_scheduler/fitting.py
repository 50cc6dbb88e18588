"""How much goes into one message: the bus takes so many bytes and no more. Pure.

A specification may be long (environment variables may hold whole prompts), and it
stands in every record. So lists of records are cut by their bytes, not only by count.
"""

from __future__ import annotations

from sandfleet_common.messages import MIB, SandboxPage, SandboxSpec

MESSAGE_BYTES = 2 * MIB
"""Half of what the bus takes: the rest is for what is not counted here."""
_RECORD_BYTES = 1024
"""A record, or a failure, without its specification."""


def fitting(spec: SandboxSpec, most: int) -> int:
    """Return how many records of one specification go into a message, from 1 to `most`."""
    return max(1, min(most, MESSAGE_BYTES // (len(spec.encode()) + _RECORD_BYTES)))


def fitted(page: SandboxPage) -> SandboxPage:
    """Return a page, or the first part of it that goes into a message."""
    while len(page.sandboxes) > 1 and len(page.encode()) > MESSAGE_BYTES:
        kept = page.sandboxes[: len(page.sandboxes) // 2]
        page = SandboxPage(sandboxes=kept, next=kept[-1].sandbox_id)
    return page
