"""Facts from sensors, alerts from the monitor."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from .base import Message, Request


class Severity(StrEnum):
    """How bad it is."""

    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"
    CRITICAL = "critical"


class Fact(Message):
    """Something a process in a sandbox did, as the kernel saw it. No judgement."""

    sandbox_id: str
    at: float
    kind: str
    """`exec`, the name of a system call, or `held-back`: what the rate limit kept from being
    told one by one; `notes` names the kind and `count` says how many."""
    pid: int
    """On the host."""
    uid: int
    """On the host."""
    program: str
    """The kernel's name for the task, at most 15 bytes."""
    arguments: list[int] = Field(default_factory=list[int])
    path: str | None = None
    """Of an exec."""
    result: int = 0
    """What the call returned; a negative errno when it was refused."""
    count: int = 1
    """How many alike it stands for."""
    notes: list[str] = Field(default_factory=list[str])
    """What the sensor found besides: `i386` or `x32` (another table of calls), `at-init` (aims at
    pid 1, the agent), `shares-parent` (the caller shares its parent's memory), `unlinked` (the
    program's file has no name)."""


class FactBatch(Message):
    """Facts of one machine."""

    node: str
    sequence: int
    facts: list[Fact]
    lost: int = 0
    """Facts the kernel side had to drop since the batch before."""


class Alert(Message):
    """A judgement by a rule."""

    alert_id: str
    sandbox_id: str
    rule: str
    severity: Severity
    message: str
    score: float
    """The sandbox's score with this alert counted."""
    at: float
    attck: str | None = None
    """MITRE ATT&CK technique."""
    facts: list[Fact] = Field(default_factory=list[Fact])
    """What it rests on, up to eight."""


class AlertList(Request):
    """Ask for alerts, newest first."""

    sandbox_id: str | None = None
    severity: Severity | None = None
    """This or worse."""
    limit: int = Field(default=100, gt=0, le=1000)


class AlertPage(Message):
    """Some alerts."""

    alerts: list[Alert]
