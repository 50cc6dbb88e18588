"""Sandboxes: what a user asks for, and what is known about one."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from sandfleet_common.states import Origin, State

from .base import Failure, Message, Request

MIB = 1024 * 1024
GIB = 1024 * MIB


def _no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("must not contain a NUL byte")
    return value


def _env_names(value: dict[str, str]) -> dict[str, str]:
    for name, text in value.items():
        if not name or "=" in name or "\0" in name + text:
            raise ValueError(f"{name[:40]!r} cannot be the name of an environment variable")
    return value


Text = Annotated[str, AfterValidator(_no_nul)]
"""Text that can reach a system call."""

EnvVars = Annotated[dict[str, str], AfterValidator(_env_names), Field(max_length=1024)]
Labels = Annotated[dict[str, str], Field(max_length=64)]


class Qos(StrEnum):
    """How a sandbox competes for the CPU."""

    LATENCY = "latency-sensitive"
    BEST_EFFORT = "best-effort"


class Network(StrEnum):
    """What a sandbox may reach."""

    NONE = "none"
    """Loopback only."""


class Resources(Message):
    """Caps of one sandbox; none may be zero."""

    cpu: float = Field(default=1.0, gt=0, le=1024)
    """Cores, may be fractional."""
    memory_bytes: int = Field(default=512 * MIB, ge=16 * MIB, le=4096 * GIB)
    """Anonymous memory and page cache together."""
    pids: int = Field(default=512, ge=8, le=1_000_000)
    """Processes and threads."""
    disk_bytes: int = Field(default=4 * GIB, ge=MIB)
    """The writable layer."""


class SandboxSpec(Message):
    """What a user asks for."""

    environment: Annotated[Text, Field(min_length=1, max_length=128)] = "debian"
    """An environment's name, or name:version."""
    runtime: Literal["native"] = "native"
    resources: Resources = Resources()
    qos: Qos = Qos.LATENCY
    network: Network = Network.NONE
    env: EnvVars = Field(default_factory=dict)
    """Environment variables of every command."""
    workdir: Annotated[Text, Field(max_length=4096)] | None = None
    """Working directory of every command; the user's home when not given."""
    user: Annotated[Text, Field(max_length=64)] | None = None
    """The user commands run as; the environment's, usually root, when not given."""
    ttl_seconds: float | None = Field(default=3600, gt=0, le=30 * 86400)
    """Absolute lifetime from ready; None: no end."""
    idle_seconds: float | None = Field(default=None, gt=0, le=30 * 86400)
    """Ends after so long without a running foreground command and without any exec,
    file or stream activity; reading its state is not activity."""
    labels: Labels = Field(default_factory=dict)


class SandboxInfo(Message):
    """All that is known of one sandbox."""

    sandbox_id: str
    node: str
    state: State
    version: int = 0
    """Grows by one with every transition."""
    spec: SandboxSpec
    job_id: str | None = None
    slot: int | None = None
    """Position among the job's sandboxes, from 0."""
    created_at: float
    """Seconds since the epoch, as all times here."""
    ready_at: float | None = None
    expires_at: float | None = None
    ended_at: float | None = None
    queued_ms: float | None = None
    """From the request's arrival at the scheduler to its arrival at the node."""
    start_ms: float | None = None
    """From arrival at the node to ready."""
    reason: str | None = None
    """Why it ended, in one sentence."""
    origin: Origin | None = None


class SandboxCreate(Request):
    """Ask for one sandbox."""

    spec: SandboxSpec = SandboxSpec()
    key: str | None = Field(default=None, max_length=128)
    """Idempotency: the same key again gives the same sandbox."""
    deadline_seconds: float = Field(default=60, gt=0, le=3600)
    """Placing and starting must be over by then."""


class SandboxGet(Request):
    """Ask what is known of one sandbox. Not activity."""

    sandbox_id: str


class SandboxList(Request):
    """Ask for sandboxes, newest first."""

    state: State | None = None
    """None: the live ones."""
    ended: bool = False
    """Include those that have ended and are still on record."""
    job_id: str | None = None
    node: str | None = None
    labels: Labels = Field(default_factory=dict)
    limit: int = Field(default=1000, gt=0, le=10_000)
    after: str | None = None
    """Continue behind this sandbox id, as `next` of the page before says."""


class SandboxPage(Message):
    """Some sandboxes."""

    sandboxes: list[SandboxInfo]
    next: str | None = None


class SandboxStop(Request):
    """End a sandbox. Ending one that has ended already is no error."""

    sandbox_id: str
    reason: str = Field(default="stopped by its user", max_length=500)


class SandboxExtend(Request):
    """Move a sandbox's end; `ttl_seconds` counts from now."""

    sandbox_id: str
    ttl_seconds: float = Field(gt=0, le=30 * 86400)


class SandboxEvent(Message):
    """One transition."""

    info: SandboxInfo
    previous: State | None = None


class Outcome(Message):
    """How the creation of one sandbox ended."""

    sandbox_id: str
    status: Literal["ready", "refused", "failed"]
    """refused: nothing was created here, another node may; failed: terminal."""
    info: SandboxInfo | None = None
    failure: Failure | None = None
