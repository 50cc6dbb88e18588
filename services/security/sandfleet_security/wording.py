"""Facts in words. Pure."""

from __future__ import annotations

import errno
import os

from sandfleet_common.messages import Fact


def describe(fact: Fact) -> str:
    """Return one fact as a clause of a sentence."""
    who = f"{fact.program or '?'} (pid {fact.pid}, uid {fact.uid})"
    if fact.kind == "exec":
        return f"{who} started {fact.path or '?'}"
    if fact.kind == "held-back":
        return f"{fact.count} facts of the kind {', '.join(fact.notes)} were held back"
    return f"{who} called {fact.kind}({_first_arguments(fact)}), {_outcome(fact)}"


def _first_arguments(fact: Fact) -> str:
    return ", ".join(_number(value) for value in fact.arguments[:3])


def _number(value: int) -> str:
    if value < 10_000:
        return str(value)
    if (value & 0xFFFFFFFF) > 0xFFFFFFFF - 4096 and value >> 32 in (0, 0xFFFFFFFF):
        return str((value & 0xFFFFFFFF) - (1 << 32))
    return hex(value)


def _outcome(fact: Fact) -> str:
    if fact.result >= 0:
        return "which succeeded"
    name = errno.errorcode.get(-fact.result, f"error {-fact.result}")
    return f"which was refused: {os.strerror(-fact.result)} ({name})"
