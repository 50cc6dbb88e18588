"""How a sandbox's class and phase decide its share of the CPU. Pure.

A share matters only while cores are contended; `Resources.cpu` caps a sandbox in any case.

    class               waiting        active         scoring
    latency-sensitive   a quarter      its cores      four times
    best-effort         idle           idle           a tenth

"idle" is the kernel's SCHED_IDLE for a whole group: it gets what others leave, and
stands back at once when one of them wakes, instead of finishing its time slice. A
best-effort sandbox whose result is being judged is lifted out of it: somebody waits.
"""

from __future__ import annotations

from dataclasses import dataclass

from sandfleet_common.messages import Qos, SandboxPhase

IDLE_FILE = "cpu.idle"

_PARTS: dict[tuple[Qos, SandboxPhase], float] = {
    (Qos.LATENCY, SandboxPhase.WAITING): 0.25,
    (Qos.LATENCY, SandboxPhase.ACTIVE): 1.0,
    (Qos.LATENCY, SandboxPhase.SCORING): 4.0,
    (Qos.BEST_EFFORT, SandboxPhase.SCORING): 0.1,
}
"""What a core that was asked for counts. What is not here is idle."""
_IDLE_PART = 0.01
"""The weight of a sandbox that is idle, whatever its cores: where the kernel has no idle groups."""


@dataclass(frozen=True, slots=True)
class Share:
    """A sandbox's share of contended cores."""

    weight: float
    """1 is what a sandbox of one core gets while it is active."""
    is_idle: bool


def share_of(qos: Qos, phase: SandboxPhase, cores: float, *, has_idle: bool = True) -> Share:
    """Return the share of a sandbox that asked for so many cores; AUTO counts as active.

    `has_idle` says whether the kernel has idle groups; without, a small weight has to do.
    """
    if phase is SandboxPhase.AUTO:
        phase = SandboxPhase.ACTIVE
    part = _PARTS.get((qos, phase))
    if part is None:
        return Share(_IDLE_PART, has_idle)
    return Share(cores * part, False)


def effective(wanted: SandboxPhase, *, is_busy: bool) -> SandboxPhase:
    """Return the phase a sandbox is in: AUTO follows whether a foreground command runs."""
    if wanted is not SandboxPhase.AUTO:
        return wanted
    return SandboxPhase.ACTIVE if is_busy else SandboxPhase.WAITING


def weight_value(share: Share, *, is_v2: bool) -> tuple[str, str]:
    """Return the file that sets a weight, and what is written there."""
    if is_v2:
        return "cpu.weight", str(min(10_000, max(1, round(100 * share.weight))))
    return "cpu.shares", str(min(262_144, max(2, round(1024 * share.weight))))


def changes(before: Share | None, after: Share, *, is_v2: bool) -> list[tuple[str, str]]:
    """Return file names and values that lead from one share to another, in their order.

    A group that is idle takes no weight, and one that leaves idleness has lost its weight:
    so idleness is ended first, and begun last. None: what was before is not known.
    """
    was_idle = None if before is None else before.is_idle
    if before == after or (was_idle and after.is_idle):
        return []
    if after.is_idle:
        return [(IDLE_FILE, "1")]
    weight = weight_value(after, is_v2=is_v2)
    return [weight] if was_idle is False else [(IDLE_FILE, "0"), weight]
