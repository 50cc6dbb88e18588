"""Every decision of a node, as functions of what it knows. Time is an argument."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, field

from sandfleet_common.messages import MIB, NodeCapacity, Resources
from sandfleet_common.states import Origin, State, may_follow


@dataclass(frozen=True, slots=True)
class Limits:
    """What a node offers, overcommit included, and what it wants left."""

    sandboxes: int
    cpu: float
    memory_bytes: int
    disk_bytes: int
    starting: int
    memory_floor_bytes: int
    disk_floor_bytes: int

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
    memory_available_bytes: int = field(default=1 << 62)
    disk_free_bytes: int = field(default=1 << 62)

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


def closed(load: Load, limits: Limits) -> str | None:
    """Return why the node takes no sandbox at all now, or None."""
    if load.is_draining:
        return "the node is draining"
    if load.broken is not None:
        return load.broken
    if load.sandboxes >= limits.sandboxes:
        return f"the node has {load.sandboxes} sandboxes, its limit"
    if load.starting >= limits.starting:
        return f"the node is starting {load.starting} sandboxes, its limit"
    if load.memory_available_bytes < limits.memory_floor_bytes:
        return f"the node has only {load.memory_available_bytes // MIB} MiB of memory available"
    if load.disk_free_bytes < limits.disk_floor_bytes:
        return f"the node has only {load.disk_free_bytes // MIB} MiB of disk free"
    return None


def refusal(load: Load, limits: Limits, asked: Resources) -> str | None:
    """Return why the node does not take a sandbox that asks for so much, or None if it does."""
    reason = closed(load, limits)
    if reason is not None:
        return reason
    for what, used, wanted, offered in (
        ("cores", load.cpu, asked.cpu, limits.cpu),
        (
            "MiB of memory",
            load.memory_bytes / MIB,
            asked.memory_bytes / MIB,
            limits.memory_bytes / MIB,
        ),
        ("MiB of disk", load.disk_bytes / MIB, asked.disk_bytes / MIB, limits.disk_bytes / MIB),
    ):
        if used + wanted > offered + 1e-6:
            left = max(0.0, offered - used)
            return f"the node has {left:g} of {offered:g} {what} left, {wanted:g} were asked for"
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


def verdict(life: Life, now: float) -> tuple[str | None, float | None]:
    """Return why a sandbox ends now, else when to look again; (None, None): never."""
    if life.expires_at is not None and now >= life.expires_at:
        return "its time to live is over", None
    again = life.expires_at
    if life.idle_seconds is not None:
        idle_at = (now if life.is_busy else life.active_at) + life.idle_seconds
        if now >= idle_at:
            return f"it was idle for {life.idle_seconds:g} s", None
        again = idle_at if again is None else min(again, idle_at)
    return None, again


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
