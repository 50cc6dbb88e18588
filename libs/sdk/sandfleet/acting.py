"""Doing one thing to many sandboxes at once, by their job or labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from sandfleet_common import messages as m
from sandfleet_common import subjects as s

from .calls import call
from .transport import Transport

HELD_SECONDS = 60.0
"""How long doing something to thousands of sandboxes may take before its answer comes."""
ACT_SECONDS = 120.0


async def act(
    transport: Transport,
    action: Literal["pause", "resume", "stop"],
    *,
    job_id: str | None = None,
    labels: Mapping[str, str] | None = None,
    reason: str | None = None,
) -> m.SandboxesActed:
    """Pause, resume or stop all live sandboxes of a job, or with certain labels, or both.

    Raises:
        BadRequest: neither a job nor labels were given.
    """
    given = {} if reason is None else {"reason": reason}
    body = m.SandboxesAct.of(action=action, job_id=job_id, labels=dict(labels or {}), **given)
    return await call(transport, s.SANDBOXES_ACT, body, within=ACT_SECONDS, held=HELD_SECONDS)
