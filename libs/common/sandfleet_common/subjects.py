"""Every subject there is: pattern, body and reply in one typed table.

Nothing else in Sandfleet spells a subject. Who may publish and subscribe what is
in `ACCESS` below, from which the NATS server's configuration is generated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from . import messages as m
from .ids import check_token, environment_token, node_of

ROOT = "sf.v1"

BodyT = TypeVar("BodyT", bound=m.Message)
ReplyT = TypeVar("ReplyT", bound=m.Message)


@dataclass(frozen=True, slots=True)
class Subject(Generic[BodyT, ReplyT]):
    """One subject: where it is, what it carries, what answers it.

    `pattern` has named holes, `sf.v1.node.{node}.create`; `reply` is `Ok` where a
    publication is not answered.
    """

    pattern: str
    body: type[BodyT]
    reply: type[ReplyT]
    summary: str

    def at(self, **holes: str) -> str:
        """Return the subject with every hole filled.

        Raises:
            BadRequest: a value is not one safe token.
        """
        return self.pattern.format(**{k: check_token(k, v) for k, v in holes.items()})

    def wildcard(self, **holes: str) -> str:
        """Return the subject to subscribe to: holes not given become `*`."""
        filled = dict.fromkeys(self.holes(), "*")
        filled.update({k: check_token(k, v) for k, v in holes.items()})
        return self.pattern.format(**filled)

    def holes(self) -> list[str]:
        """Return the names of the holes, in order."""
        return [part[1:-1] for part in self.pattern.split(".") if part.startswith("{")]

    def parse(self, subject: str) -> dict[str, str]:
        """Return what stands in the holes of `subject`, which this pattern matched."""
        return {
            part[1:-1]: value
            for part, value in zip(self.pattern.split("."), subject.split("."), strict=True)
            if part.startswith("{")
        }


# Jobs and sandboxes: asked of any scheduler.
JOB_SUBMIT = Subject(
    f"{ROOT}.job.submit", m.JobSubmit, m.Ok, "A job; JetStream work queue, deduplicated by job id"
)
JOB_EVENTS = Subject(f"{ROOT}.job.{{job}}.events", m.JobEvent, m.Ok, "Progress of a job, batched")
JOB_GET = Subject(f"{ROOT}.scheduler.job.get", m.JobGet, m.JobInfo, "Where a job is")
JOB_SLOTS = Subject(
    f"{ROOT}.scheduler.job.slots", m.JobSlots, m.JobSlotsPage, "A job's sandboxes, by slot"
)
JOB_CANCEL = Subject(
    f"{ROOT}.scheduler.job.cancel", m.JobCancel, m.JobInfo, "End a job and its sandboxes"
)
SANDBOX_CREATE = Subject(
    f"{ROOT}.sandbox.create", m.SandboxCreate, m.SandboxInfo, "Create one sandbox"
)
SANDBOX_GET = Subject(f"{ROOT}.sandbox.get", m.SandboxGet, m.SandboxInfo, "What is known of one")
SANDBOX_LIST = Subject(f"{ROOT}.sandbox.list", m.SandboxList, m.SandboxPage, "Sandboxes on record")
SANDBOXES_ACT = Subject(
    f"{ROOT}.sandbox.act",
    m.SandboxesAct,
    m.SandboxesActed,
    "Pause, resume or stop many sandboxes, by job or label",
)
SANDBOX_MIGRATE = Subject(
    f"{ROOT}.sandbox.migrate", m.SandboxMigrate, m.SandboxInfo, "Move a sandbox to another node"
)
NODE_LIST = Subject(f"{ROOT}.scheduler.node.list", m.NodeList, m.NodePage, "Nodes alive")

# Asked of the node that owns the sandbox.
NODE_CREATE = Subject(
    f"{ROOT}.node.{{node}}.create", m.NodeCreate, m.NodeCreated, "A batch of sandboxes to create"
)
NODE_DRAIN = Subject(
    f"{ROOT}.node.{{node}}.drain", m.NodeDrain, m.Ok, "Take no new sandboxes, or take them again"
)
NODE_ACT = Subject(
    f"{ROOT}.node.{{node}}.act", m.NodeAct, m.NodeActed, "Pause, resume or stop many of its own"
)
NODE_USAGE = Subject(
    f"{ROOT}.node.{{node}}.top", m.NodeUsageGet, m.NodeUsage, "Which of its sandboxes use most"
)
FUNCTION_CALL = Subject(
    f"{ROOT}.function.call.{{environment}}",
    m.FunctionCall,
    m.FunctionResult,
    "Run code in a warm sandbox of any node that has the environment",
)
NODE_DEPART = Subject(
    f"{ROOT}.node.{{node}}.depart", m.SandboxDepart, m.Departure, "Freeze and pack one that moves"
)
NODE_DEPARTED = Subject(
    f"{ROOT}.node.{{node}}.departed", m.SandboxDeparted, m.Ok, "Say where it lives now, or stays"
)

# Asked of any node: they share the store.
_STORE = f"{ROOT}.store"
ENVIRONMENT_LIST = Subject(
    f"{_STORE}.environment-list", m.EnvironmentList, m.EnvironmentPage, "Environments by name"
)
ENVIRONMENT_GET = Subject(
    f"{_STORE}.environment-get", m.EnvironmentGet, m.EnvironmentInfo, "One, with its layers"
)
ENVIRONMENT_PUBLISH = Subject(
    f"{_STORE}.environment-publish",
    m.EnvironmentPublish,
    m.EnvironmentInfo,
    "Name a stack of layers",
)
ENVIRONMENT_REMOVE = Subject(
    f"{_STORE}.environment-remove", m.EnvironmentRemove, m.Ok, "Forget versions of one"
)
LAYER_FIND = Subject(f"{_STORE}.layer-find", m.LayerFind, m.LayerFound, "A layer by its key")
SNAPSHOT_LIST = Subject(f"{_STORE}.snapshot-list", m.SnapshotList, m.SnapshotPage, "Snapshots")
SNAPSHOT_GET = Subject(f"{_STORE}.snapshot-get", m.SnapshotGet, m.SnapshotInfo, "How far one is")
SNAPSHOT_UPDATE = Subject(
    f"{_STORE}.snapshot-update", m.SnapshotUpdate, m.SnapshotInfo, "Name or label a snapshot"
)
SNAPSHOT_REMOVE = Subject(
    f"{_STORE}.snapshot-remove", m.SnapshotRemove, m.SnapshotsRemoved, "Forget snapshots"
)
STORE_COLLECT = Subject(
    f"{_STORE}.collect", m.StoreCollect, m.StoreCollected, "Remove layers that nobody needs"
)
_OP = f"{ROOT}.node.{{node}}.op"
STOP = Subject(f"{_OP}.stop", m.SandboxStop, m.SandboxInfo, "End a sandbox")
EXTEND = Subject(f"{_OP}.extend", m.SandboxExtend, m.SandboxInfo, "Move a sandbox's end")
PAUSE = Subject(f"{_OP}.pause", m.SandboxPause, m.SandboxInfo, "Freeze it, give memory back")
RESUME = Subject(f"{_OP}.resume", m.SandboxResume, m.SandboxInfo, "Let a paused one go on")
SET_PHASE = Subject(f"{_OP}.phase", m.SandboxSetPhase, m.Ok, "Say what a sandbox is doing")
USAGE = Subject(f"{_OP}.usage", m.SandboxUsageGet, m.SandboxUsage, "What a sandbox has used")
SNAPSHOT = Subject(f"{_OP}.snapshot", m.SandboxSnapshot, m.SnapshotInfo, "Pack what it wrote")
FORK = Subject(f"{_OP}.fork", m.SandboxFork, m.SandboxForked, "Create sandboxes that go on from it")
EXEC_START = Subject(f"{_OP}.exec-start", m.ExecStart, m.ExecState, "Start a command")
EXEC_WAIT = Subject(f"{_OP}.exec-wait", m.ExecWait, m.ExecState, "Wait for a command, read output")
EXEC_SIGNAL = Subject(f"{_OP}.exec-signal", m.ExecSignal, m.ExecState, "Signal a command")
EXEC_RESIZE = Subject(f"{_OP}.exec-resize", m.ExecResize, m.Ok, "Resize a command's terminal")
EXEC_LIST = Subject(f"{_OP}.exec-list", m.ExecList, m.ExecPage, "A sandbox's commands")
EXEC_ATTACH = Subject(f"{_OP}.exec-attach", m.ExecAttach, m.ExecState, "Open a stream")
PROCESS_LIST = Subject(f"{_OP}.process-list", m.ProcessList, m.ProcessPage, "All processes inside")
FILE_STAT = Subject(f"{_OP}.file-stat", m.FileStat, m.FileEntry, "Describe a file")
FILE_LIST = Subject(f"{_OP}.file-list", m.FileList, m.FilePage, "List a directory")
FILE_READ = Subject(f"{_OP}.file-read", m.FileRead, m.FileData, "Read part of a file")
FILE_WRITE = Subject(f"{_OP}.file-write", m.FileWrite, m.Ok, "Write part of a file")
FILE_MKDIR = Subject(f"{_OP}.file-mkdir", m.FileMakeDir, m.FileEntry, "Make a directory")
FILE_REMOVE = Subject(f"{_OP}.file-remove", m.FileRemove, m.Ok, "Remove a file or directory")
FILE_RENAME = Subject(f"{_OP}.file-rename", m.FileRename, m.FileEntry, "Rename a file")
FILE_WATCH = Subject(f"{_OP}.file-watch", m.FileWatch, m.Ok, "Report changes below a path")
FILE_UNWATCH = Subject(f"{_OP}.file-unwatch", m.FileUnwatch, m.Ok, "End a watch")

# Told to whoever listens.
NODE_BEAT = Subject(f"{ROOT}.node.heartbeat", m.NodeBeat, m.Ok, "A node's heartbeat, each second")
SANDBOX_EVENT = Subject(
    f"{ROOT}.events.sandbox.{{sandbox}}", m.SandboxEvent, m.Ok, "One transition of a sandbox"
)
SECURITY_FACTS = Subject(
    f"{ROOT}.security.event.{{node}}", m.FactBatch, m.Ok, "What a machine's sensor saw"
)
SECURITY_ALERT = Subject(
    f"{ROOT}.security.alert.{{sandbox}}", m.Alert, m.Ok, "A judgement; kept by JetStream"
)
ALERT_LIST = Subject(f"{ROOT}.security.alerts", m.AlertList, m.AlertPage, "Alerts on record")

TABLE: tuple[Subject[Any, Any], ...] = tuple(
    cast(Subject[Any, Any], value)
    for value in list(globals().values())
    if isinstance(value, Subject)
)
"""All subjects, in the order above."""

STORE_OPS = tuple(s for s in TABLE if s.pattern.startswith(_STORE))
"""What is asked of any node about environments and snapshots."""

SANDBOX_OPS = tuple(s for s in TABLE if s.pattern.startswith(_OP))
"""What a client may ask of the node that owns its sandbox."""


def holes_of(
    subject: Subject[Any, Any], body: m.Message, home: Callable[[str], str] = node_of
) -> dict[str, str]:
    """Return what a request itself says about the holes of its subject.

    `home` says on which node a sandbox lives, by its id.

    Raises:
        BadRequest: it names a sandbox, node or job that cannot exist.
    """
    asked: Any = body
    holes: dict[str, str] = {}
    for hole in subject.holes():
        if hole == "node" and hasattr(asked, "sandbox_id"):
            holes[hole] = home(asked.sandbox_id)
        elif hole == "environment":
            holes[hole] = environment_token(asked.environment)
        else:
            holes[hole] = getattr(asked, hole)
    return holes


def io_subject(node: str, stream: str) -> str:
    """Return the subject that carries a client's frames of one stream (see `streams`)."""
    return f"{ROOT}.node.{check_token('node', node)}.io.{check_token('stream', stream)}"


# JetStream. A stream's subjects are its own; limits keep a small host safe.
@dataclass(frozen=True, slots=True)
class Stream:
    """One JetStream stream."""

    name: str
    subjects: tuple[str, ...]
    work_queue: bool
    max_bytes: int
    max_age_seconds: float
    duplicate_seconds: float
    owner: str
    """The user that creates it."""


STREAMS = (
    Stream("SF_JOBS", (JOB_SUBMIT.pattern,), True, 64 * m.MIB, 86_400, 3600, "scheduler"),
    Stream(
        "SF_ALERTS", (SECURITY_ALERT.wildcard(),), False, 256 * m.MIB, 7 * 86_400, 120, "monitor"
    ),
)
JOB_CONSUMER = "scheduler"
SCHEDULER_QUEUE = "scheduler"
STORE_QUEUE = "node"
FUNCTION_QUEUE = "node"
"""The nodes that have an environment share its calls."""
MONITOR_QUEUE = "monitor"


@dataclass(frozen=True, slots=True)
class Access:
    """What one NATS user may do; inboxes of its own are always allowed."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False
    """May publish once to the reply subject of each request it receives."""


def _all(subjects: tuple[Subject[Any, Any], ...]) -> tuple[str, ...]:
    return tuple(s.wildcard() for s in subjects)


_ASK_SCHEDULER = (
    JOB_GET,
    JOB_SLOTS,
    JOB_CANCEL,
    SANDBOX_CREATE,
    SANDBOX_GET,
    SANDBOX_LIST,
    SANDBOXES_ACT,
    SANDBOX_MIGRATE,
)
_CLIENT_PUBLISH = (
    JOB_SUBMIT.pattern,
    NODE_LIST.pattern,
    ALERT_LIST.pattern,
    *(s.pattern for s in _ASK_SCHEDULER),
    NODE_USAGE.wildcard(),
    FUNCTION_CALL.wildcard(),
    *_all(STORE_OPS),
    *_all(SANDBOX_OPS),
    f"{ROOT}.node.*.io.*",
)
_CLIENT_SUBSCRIBE = (JOB_EVENTS.wildcard(), SANDBOX_EVENT.wildcard(), SECURITY_ALERT.wildcard())


def _own_stream(name: str) -> tuple[str, ...]:
    return ("$JS.API.INFO", f"$JS.API.STREAM.*.{name}")


_JETSTREAM_JOBS = (
    *_own_stream("SF_JOBS"),
    "$JS.API.CONSUMER.*.SF_JOBS.>",
    "$JS.API.CONSUMER.*.*.SF_JOBS.>",
    "$JS.ACK.SF_JOBS.>",
)
_CLIENT_INBOXES = ("_INBOX.trainer.>", "_INBOX.gateway.>", "_INBOX.admin.>")
"""A server that was restarted has forgotten whom a service may answer; these it still knows."""

ACCESS: dict[str, Access] = {
    "trainer": Access(publish=_CLIENT_PUBLISH, subscribe=_CLIENT_SUBSCRIBE),
    "gateway": Access(publish=_CLIENT_PUBLISH, subscribe=_CLIENT_SUBSCRIBE),
    "scheduler": Access(
        publish=(
            JOB_EVENTS.wildcard(),
            SANDBOX_EVENT.wildcard(),
            NODE_CREATE.wildcard(),
            NODE_ACT.wildcard(),
            NODE_DEPART.wildcard(),
            NODE_DEPARTED.wildcard(),
            STOP.wildcard(),
            *_JETSTREAM_JOBS,
            *_CLIENT_INBOXES,
        ),
        subscribe=(
            NODE_BEAT.pattern,
            NODE_LIST.pattern,
            SANDBOX_EVENT.wildcard(),
            *(s.pattern for s in _ASK_SCHEDULER),
        ),
        answers=True,
    ),
    "node": Access(
        publish=(
            NODE_BEAT.pattern,
            SANDBOX_EVENT.wildcard(),
            "_INBOX.>",
        ),
        subscribe=(
            NODE_CREATE.wildcard(),
            NODE_DRAIN.wildcard(),
            NODE_ACT.wildcard(),
            NODE_USAGE.wildcard(),
            NODE_DEPART.wildcard(),
            NODE_DEPARTED.wildcard(),
            FUNCTION_CALL.wildcard(),
            *_all(STORE_OPS),
            *_all(SANDBOX_OPS),
            f"{ROOT}.node.*.io.*",
        ),
        answers=True,
    ),
    "sensor": Access(publish=(SECURITY_FACTS.wildcard(),), subscribe=()),
    "monitor": Access(
        publish=(
            SECURITY_ALERT.wildcard(),
            STOP.wildcard(),
            *_own_stream("SF_ALERTS"),
            *_CLIENT_INBOXES,
        ),
        subscribe=(SECURITY_FACTS.wildcard(), ALERT_LIST.pattern, SANDBOX_EVENT.wildcard()),
        answers=True,
    ),
    "admin": Access(publish=(">",), subscribe=(">",)),
}
"""NATS users. Every user's inbox is `_INBOX.<user>.<random>`, and only its own may be read."""
