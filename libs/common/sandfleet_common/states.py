"""The life of a sandbox: one table, obeyed by the node and by Redis.

    requested -> placing -> preparing -> running <-> paused -> stopping -> stopped
                    |                      any live state -> failed
                    -> rejected

`store` compiles this table into the Lua script that guards every write.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    """Where a sandbox is in its life."""

    REQUESTED = "requested"
    PLACING = "placing"
    PREPARING = "preparing"
    RUNNING = "running"
    PAUSED = "paused"
    STOPPING = "stopping"
    STOPPED = "stopped"
    REJECTED = "rejected"
    FAILED = "failed"


class Origin(StrEnum):
    """Who brought an end about."""

    USER = "user"
    PLATFORM = "platform"
    AGENT = "agent"
    NODE_LOST = "node-lost"


S = State
TRANSITIONS: dict[State, frozenset[State]] = {
    S.REQUESTED: frozenset({S.PLACING, S.REJECTED, S.FAILED}),
    S.PLACING: frozenset({S.PLACING, S.PREPARING, S.REJECTED, S.FAILED}),
    S.PREPARING: frozenset({S.PLACING, S.RUNNING, S.STOPPING, S.STOPPED, S.FAILED}),
    S.RUNNING: frozenset({S.PAUSED, S.STOPPING, S.STOPPED, S.FAILED}),
    S.PAUSED: frozenset({S.RUNNING, S.STOPPING, S.STOPPED, S.FAILED}),
    S.STOPPING: frozenset({S.STOPPED, S.FAILED}),
    S.STOPPED: frozenset(),
    S.REJECTED: frozenset(),
    S.FAILED: frozenset(),
}
"""For each state the states that may follow it. PREPARING -> PLACING is a refusal by the node."""

TERMINAL: frozenset[State] = frozenset(s for s, following in TRANSITIONS.items() if not following)
LIVE: frozenset[State] = frozenset(TRANSITIONS) - TERMINAL


def may_follow(before: State, after: State) -> bool:
    """Return whether `after` may directly follow `before`."""
    return after in TRANSITIONS[before]
