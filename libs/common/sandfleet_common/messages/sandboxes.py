"""Sandboxes: what a user asks for, and what is known about one."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, model_validator

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


class IdleAction(StrEnum):
    """What happens to a sandbox that has been idle for its `idle_seconds`."""

    STOP = "stop"
    PAUSE = "pause"


class Network(StrEnum):
    """What a sandbox may reach."""

    NONE = "none"
    """Loopback only."""
    BUILD = "build"
    """Loopback, and a proxy to the package registries that the node is set up with."""


class Resources(Message):
    """Caps of one sandbox; none may be zero."""

    cpu: float = Field(default=1.0, gt=0, le=1024)
    """Cores, may be fractional."""
    memory_bytes: int = Field(default=512 * MIB, ge=16 * MIB, le=4096 * GIB)
    """Anonymous memory and page cache together."""
    pids: int = Field(default=512, ge=8, le=1_000_000)
    """Processes and threads."""
    disk_bytes: int = Field(default=4 * GIB, ge=MIB)
    """The writable layer, with what the file system spends on its files."""
    open_files: int = Field(default=65_536, ge=64, le=1_048_576)
    """Descriptors of one process; a node may allow fewer."""


class SandboxSpec(Message):
    """What a user asks for."""

    environment: Annotated[Text, Field(min_length=1, max_length=128)] = "debian"
    """An environment's name, name:version, or the id of a snapshot."""
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
    idle_action: IdleAction = IdleAction.STOP
    """Ended, or paused until the next operation."""
    paused_ttl_seconds: float | None = Field(default=86_400, gt=0, le=365 * 86400)
    """Ends after so long a pause; `ttl_seconds` does not count meanwhile. None: no end."""
    labels: Labels = Field(default_factory=dict)


RESERVED = "sandfleet."
"""What labels of the platform begin with; users may set none but those of builds."""
BUILD_LABEL = "sandfleet.build"


def users_labels(labels: dict[str, str]) -> dict[str, str]:
    """Return labels that a user gave, if the platform's own are not among them."""
    for name in labels:
        if name.startswith(RESERVED) and name != BUILD_LABEL:
            raise ValueError(f"the label {name[:40]!r} is the platform's own")
    return labels


def _users_spec(spec: SandboxSpec) -> SandboxSpec:
    users_labels(spec.labels)
    return spec


UserSpec = Annotated[SandboxSpec, AfterValidator(_users_spec)]
"""A spec as users may give it."""


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
    paused_at: float | None = None
    """Since when it is paused; its `expires_at` is then the end of the pause."""
    ttl_left_seconds: float | None = None
    """While paused: what is left of its time to live, to count again after it."""
    environment: str | None = None
    """What `spec.environment` turned out to be: name:version, or the id of a snapshot."""


class SandboxCreate(Request):
    """Ask for one sandbox."""

    spec: UserSpec = SandboxSpec()
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


class SandboxPause(Request):
    """Freeze a sandbox and give its memory back. Pausing a paused one is no error.

    The reply comes when it is frozen, or, with `wait_seconds`, when its memory has been
    given back, at most so much later.
    """

    sandbox_id: str
    wait_seconds: float = Field(default=0, ge=0, le=60)


class SandboxResume(Request):
    """Let a paused sandbox go on, as any operation on it does; its TTL counts again."""

    sandbox_id: str


class SandboxPhase(StrEnum):
    """What a sandbox is doing for its trainer, which decides its share of the CPU."""

    AUTO = "auto"
    """Active while a foreground command runs, else waiting."""
    WAITING = "waiting"
    ACTIVE = "active"
    SCORING = "scoring"
    """Its result is being judged: somebody waits for it."""


class SandboxSetPhase(Request):
    """Say which phase a sandbox is in."""

    sandbox_id: str
    phase: SandboxPhase


class SandboxUsage(Message):
    """What a sandbox has used so far."""

    sandbox_id: str
    state: State
    at: float
    labels: Labels = Field(default_factory=dict)
    job_id: str | None = None
    cpu_seconds: float = 0
    cpu_cores: float = 0
    """Cores in use since the look before this one: seconds when somebody asks again and again,
    a minute at most."""
    memory_bytes: int = 0
    """Now, page cache and shared memory included."""
    memory_peak_bytes: int = 0
    swap_bytes: int = 0
    memory_limit_bytes: int = 0
    disk_bytes: int = 0
    disk_limit_bytes: int = 0
    processes: int = 0
    """Threads count, too, and so does its first process."""
    egress_bytes: int = 0
    """Sent through anything but loopback."""
    idle_seconds: float = 0
    """Since its user last did something."""


class SandboxUsageGet(Request):
    """Ask what one sandbox has used. Not activity."""

    sandbox_id: str


UsageOrder = Literal["cpu", "cpu_seconds", "memory", "disk", "egress", "processes", "idle"]


class NodeUsageGet(Request):
    """Ask which sandboxes of a node use most."""

    node: str
    order: UsageOrder = "cpu"
    limit: int = Field(default=100, gt=0, le=4000)


class NodeUsage(Message):
    """The sandboxes of a node that use most, and the sums over all of them."""

    node: str
    at: float
    sandboxes: list[SandboxUsage]
    count: int
    paused: int = 0
    cpu_cores: float = 0
    memory_bytes: int = 0
    swap_bytes: int = 0
    disk_bytes: int = 0
    egress_bytes: int = 0


Action = Literal["pause", "resume", "stop"]


class NodeAct(Request):
    """Do one thing to many sandboxes of a node."""

    action: Action
    sandbox_ids: list[str] = Field(min_length=1, max_length=256)
    reason: str = Field(default="stopped by its user", max_length=500)


class ActOutcome(Message):
    """What came of it for one sandbox: its record, or why not."""

    sandbox_id: str
    info: SandboxInfo | None = None
    failure: Failure | None = None


class NodeActed(Message):
    """An outcome for each sandbox."""

    outcomes: list[ActOutcome]


class SandboxesAct(Request):
    """Pause, resume or stop all live sandboxes of a job, or with certain labels.

    At least one of `job_id` and `labels` must be given; both together narrow it down.
    """

    action: Action
    job_id: str | None = None
    labels: Labels = Field(default_factory=dict)
    reason: str = Field(default="stopped by its user", max_length=500)

    @model_validator(mode="after")
    def _selects(self) -> SandboxesAct:
        if self.job_id is None and not self.labels:
            raise ValueError("say which sandboxes: give a job_id or labels")
        return self


class SandboxesActed(Message):
    """How many sandboxes matched, how many were acted upon, and the first hundred failures."""

    matched: int
    done: int
    failures: list[ActOutcome] = Field(default_factory=list[ActOutcome])


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
