"""Every decision of a node, as functions of what it knows. Time is an argument."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

from sandfleet_common.errors import Busy, NoCapacity, Unavailable
from sandfleet_common.messages import MIB, NodeCapacity, Resources
from sandfleet_common.states import Origin, State, may_follow

from .starts import StartRate, retry_after


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node offers, overcommit included."""

    sandboxes: int
    cpu: float
    memory_bytes: int
    disk_bytes: int
    starting: int

    def as_capacity(self) -> NodeCapacity:
        """Return what a heartbeat says of it."""
        return NodeCapacity(
            sandboxes=self.sandboxes,
            cpu=self.cpu,
            memory_bytes=self.memory_bytes,
            disk_bytes=self.disk_bytes,
        )


@dataclass(slots=True)
class Load:
    """What a node's live sandboxes asked for, and how the machine is."""

    sandboxes: int = 0
    cpu: float = 0.0
    memory_bytes: int = 0
    disk_bytes: int = 0
    starting: int = 0
    is_draining: bool = False
    broken: str | None = None
    """Why nothing can start at all; None when things can."""
    pressed: str | None = None
    """Why the machine cannot take more, as measured; None when it can."""
    starts: StartRate = field(default_factory=StartRate)

    def add(self, asked: Resources) -> None:
        """Count a sandbox in."""
        self.sandboxes += 1
        self.cpu += asked.cpu
        self.memory_bytes += asked.memory_bytes
        self.disk_bytes += asked.disk_bytes

    def remove(self, asked: Resources) -> None:
        """Count a sandbox out."""
        self.sandboxes -= 1
        self.cpu = self.cpu - asked.cpu if self.sandboxes else 0.0
        self.memory_bytes -= asked.memory_bytes
        self.disk_bytes -= asked.disk_bytes

    def as_capacity(self) -> NodeCapacity:
        """Return what a heartbeat says of it."""
        return NodeCapacity(
            sandboxes=self.sandboxes,
            cpu=max(0.0, round(self.cpu, 6)),
            memory_bytes=self.memory_bytes,
            disk_bytes=self.disk_bytes,
        )


def closed(load: Load, limits: Limits, now: float) -> str | None:
    """Return why the node takes no sandbox at all now, or None."""
    problem = _closed(load, limits) or _queue_full(load, limits, now)
    return None if problem is None else problem.message


def refusal(load: Load, limits: Limits, asked: Resources, now: float) -> Unavailable | None:
    """Return why the node does not take a sandbox that asks for so much, or None if it does.

    NoCapacity while something must be given back first; Busy when waiting will do.
    `now` is of the clock that `load.starts` was told.
    """
    return _closed(load, limits) or _unmet(load, limits, asked) or _queue_full(load, limits, now)


def _closed(load: Load, limits: Limits) -> NoCapacity | None:
    if load.is_draining:
        return NoCapacity("the node is draining")
    if load.broken is not None:
        return NoCapacity(load.broken)
    if load.sandboxes >= limits.sandboxes:
        return NoCapacity(f"the node has {load.sandboxes} sandboxes, its limit (sandboxes_max)")
    if load.pressed is not None:
        return NoCapacity(load.pressed)
    return None


def _queue_full(load: Load, limits: Limits, now: float) -> Busy | None:
    if load.starting < limits.starting:
        return None
    rate = load.starts.per_second(now)
    return Busy(
        f"the node is starting {load.starting} sandboxes, its limit (starting_limit); "
        f"{rate:g} a second become ready",
        retry_after_seconds=retry_after(load.starting, limits.starting, rate),
    )


def _unmet(load: Load, limits: Limits, asked: Resources) -> NoCapacity | None:
    for what, setting, used, wanted, offered in (
        ("cores", "overcommit_cpu", load.cpu, asked.cpu, limits.cpu),
        (
            "MiB of memory",
            "overcommit_memory",
            load.memory_bytes / MIB,
            asked.memory_bytes / MIB,
            limits.memory_bytes / MIB,
        ),
        (
            "MiB of disk",
            "overcommit_disk",
            load.disk_bytes / MIB,
            asked.disk_bytes / MIB,
            limits.disk_bytes / MIB,
        ),
    ):
        if used + wanted > offered + 1e-6:
            left = max(0.0, offered - used)
            return NoCapacity(
                f"the node has {left:g} of {offered:g} {what} left, "
                f"{wanted:g} were asked for ({setting})"
            )
    return None


@dataclass(frozen=True, slots=True)
class Life:
    """What decides how long a sandbox lives."""

    expires_at: float | None
    idle_seconds: float | None
    active_at: float
    """When it last did something for its user."""
    is_busy: bool
    """A foreground command runs."""
    idle_pauses: bool = False
    """Idleness pauses it instead of ending it."""
    is_paused: bool = False


def verdict(life: Life, now: float) -> tuple[str | None, float | None]:
    """Return why a sandbox ends or pauses now, else when to look again; (None, None): never."""
    if life.expires_at is not None and now >= life.expires_at:
        over = "it was paused for too long" if life.is_paused else "its time to live is over"
        return over, None
    again = life.expires_at
    if life.idle_seconds is not None and not life.is_paused:
        idle_at = (now if life.is_busy else life.active_at) + life.idle_seconds
        if now >= idle_at:
            return f"it was idle for {life.idle_seconds:g} s", None
        again = idle_at if again is None else min(again, idle_at)
    return None, again


def is_to_pause(life: Life, now: float) -> bool:
    """Return whether a sandbox for which `verdict` has a reason is to be paused, not ended."""
    return life.idle_pauses and (life.expires_at is None or now < life.expires_at)


def next_state(before: State, after: State) -> State:
    """Return `after` if it may follow `before`.

    Raises:
        ValueError: the table of states does not allow it.
    """
    if not may_follow(before, after):
        raise ValueError(f"a sandbox cannot go from {before} to {after}")
    return after


def death(status: int | None, oom_kills: int, memory_bytes: int) -> tuple[str, Origin]:
    """Say why a sandbox died that nobody stopped.

    Args:
        status: raw wait status of its first process, if known.
        oom_kills: how many processes the kernel has killed in it for want of memory.
        memory_bytes: its memory limit.
    """
    killed = status is not None and os.WIFSIGNALED(status)
    if oom_kills and (status is None or killed):
        text = f"it ran out of memory: its limit is {memory_bytes // MIB} MiB"
        return text, Origin.AGENT
    if status is None:
        return "its agent closed the channel", Origin.PLATFORM
    if killed:
        name = signal_name(os.WTERMSIG(status))
        return f"its first process was killed by {name}", Origin.PLATFORM
    code = os.waitstatus_to_exitcode(status)
    return f"its first process ended with status {code}", Origin.PLATFORM


def signal_name(number: int) -> str:
    """Return SIGKILL for 9."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
