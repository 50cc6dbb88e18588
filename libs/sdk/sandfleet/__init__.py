"""Sandfleet: sandboxes for agents in training and evaluation.

    from sandfleet import Client

    with Client() as client, client.create() as sandbox:
        print(sandbox.run("echo hello").text)

The names with `Async` in front are the same for `async with` and `await`.
Importing this package needs pydantic only; NATS, HTTP and the command line are
extras, imported when they are used.
"""

from sandfleet_common.errors import (
    BadRequest,
    Broken,
    Busy,
    Conflict,
    Denied,
    FileProblem,
    Interrupted,
    Lost,
    NoCapacity,
    NodeLost,
    NotFound,
    OutputLimit,
    QuotaExceeded,
    Refused,
    SandboxFailed,
    SandboxGone,
    SandfleetError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from sandfleet_common.messages import (
    Alert,
    CallLimits,
    CallStep,
    Chunk,
    ExecState,
    FileChange,
    FileEntry,
    FileEvent,
    FileType,
    IdleAction,
    JobInfo,
    JobState,
    Network,
    NodeBeat,
    NodeUsage,
    ProcessInfo,
    Qos,
    Resources,
    SandboxesActed,
    SandboxInfo,
    SandboxPhase,
    SandboxSpec,
    SandboxUsage,
    Severity,
    SlotFailure,
)
from sandfleet_common.states import Origin, State

from .blocking import Client, Command, Files, Function, Job, Sandbox
from .calling import Call
from .client import AsyncClient
from .command import AsyncCommand
from .files import AsyncFiles
from .functions import AsyncFunction
from .job import AsyncJob
from .results import CallFailed, CallResult, CommandFailed, Result
from .sandbox import AsyncSandbox
from .usage import FleetUsage

__all__ = [
    "Alert",
    "AsyncClient",
    "AsyncCommand",
    "AsyncFiles",
    "AsyncFunction",
    "AsyncJob",
    "AsyncSandbox",
    "BadRequest",
    "Broken",
    "Busy",
    "Call",
    "CallFailed",
    "CallLimits",
    "CallResult",
    "CallStep",
    "Chunk",
    "Client",
    "Command",
    "CommandFailed",
    "Conflict",
    "Denied",
    "ExecState",
    "FileChange",
    "FileEntry",
    "FileEvent",
    "FileProblem",
    "FileType",
    "Files",
    "FleetUsage",
    "Function",
    "IdleAction",
    "Interrupted",
    "Job",
    "JobInfo",
    "JobState",
    "Lost",
    "Network",
    "NoCapacity",
    "NodeBeat",
    "NodeLost",
    "NodeUsage",
    "NotFound",
    "Origin",
    "OutputLimit",
    "ProcessInfo",
    "Qos",
    "QuotaExceeded",
    "Refused",
    "Resources",
    "Result",
    "Sandbox",
    "SandboxFailed",
    "SandboxGone",
    "SandboxInfo",
    "SandboxPhase",
    "SandboxSpec",
    "SandboxUsage",
    "SandboxesActed",
    "SandfleetError",
    "Severity",
    "SlotFailure",
    "State",
    "TimedOut",
    "Unavailable",
    "Unreachable",
]
