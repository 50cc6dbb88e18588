"""Why nodes cannot take a sandbox, in words. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

REASONS_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Reason:
    """Why a node cannot take a sandbox, as a verb and what follows, for one node and for more."""

    one: str
    many: str


def sentence(reasons: Iterable[Reason], nodes: int) -> str:
    """Return why none of so many nodes could take a sandbox, in one sentence."""
    counts = Counter(reasons)
    if not counts and nodes:
        return "no node could take it: the deadline came before any was asked"
    if not counts:
        return "no node could take it: no node is alive"
    parts = [
        f"{count} {reason.one if count == 1 else reason.many}"
        for reason, count in counts.most_common(REASONS_SHOWN)
    ]
    if (rest := counts.total() - sum(c for _, c in counts.most_common(REASONS_SHOWN))) > 0:
        parts.append(f"{rest} could not for other reasons")
    return "no node could take it: " + ", ".join(parts)


def refused(why: str) -> Reason:
    """Return the reason a node gave itself."""
    return Reason(f"refused ({why})", f"refused ({why})")


SILENT = Reason("is silent", "are silent")
DRAINING = Reason("is draining", "are draining")
BUSY = Reason("is busy starting others", "are busy starting others")
