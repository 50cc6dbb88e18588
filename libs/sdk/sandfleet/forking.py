"""Forking: ids chosen here, one snapshot, and batches of children that share it."""

from __future__ import annotations

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.ids import new_sandbox_id, new_snapshot_id

from .calls import call
from .connection import Connection

BATCH_CHILDREN = 256


async def fork(
    connection: Connection,
    sandbox_id: str,
    node: str,
    count: int,
    changes: m.ForkChanges,
    deadline_seconds: float,
) -> m.SandboxForked:
    """Fork a sandbox, in batches that share one snapshot; return the outcomes of all.

    Ids are chosen here, so that a lost answer is asked for again and nothing happens twice.

    Raises:
        BadRequest: the count does not fit.
        SandboxGone, NodeLost: the sandbox has ended.
    """
    snapshot_id = new_snapshot_id(node)
    children = [new_sandbox_id(node) for _ in range(count)]
    outcomes: list[m.Outcome] = []
    told: m.SandboxForked | None = None
    for first in range(0, max(count, 1), BATCH_CHILDREN):
        body = m.SandboxFork.of(
            sandbox_id=sandbox_id,
            snapshot_id=snapshot_id,
            children=children[first : first + BATCH_CHILDREN],
            changes=changes,
            deadline_seconds=deadline_seconds,
        )
        told = await call(
            connection.transport,
            s.FORK,
            body,
            within=deadline_seconds + 5,
            held=deadline_seconds,
        )
        outcomes += told.outcomes
    assert told is not None
    return told.model_copy(update={"outcomes": outcomes})
