"""Commands in a sandbox: start, watch, feed, signal."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from sandfleet_common.ids import new_exec_id

from .base import Message, Request
from .sandboxes import MIB, EnvVars, Text

OUTPUT_LIMIT_BYTES = 16 * MIB
INLINE_BYTES = 256 * 1024
"""Most bytes of input or output that travel inside a request or its reply."""

ExecId = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


class PtySize(Message):
    """A terminal's size in characters."""

    rows: int = Field(default=24, gt=0, le=4096)
    cols: int = Field(default=80, gt=0, le=4096)


class ExecStart(Request):
    """Start a command. The same exec id again starts nothing and answers with its state."""

    sandbox_id: str
    exec_id: ExecId = Field(default_factory=new_exec_id)
    argv: list[Text] = Field(min_length=1, max_length=65_536)
    """Program and arguments; the program is looked up in PATH inside."""
    env: EnvVars = Field(default_factory=dict)
    cwd: Annotated[Text, Field(max_length=4096)] | None = None
    user: Annotated[Text, Field(max_length=64)] | None = None
    timeout_seconds: float | None = Field(default=None, gt=0, le=30 * 86400)
    """The whole process tree is killed then; partial output is kept."""
    output_limit_bytes: int = Field(default=OUTPUT_LIMIT_BYTES, gt=0, le=1024 * MIB)
    """Output beyond it is read, counted and dropped."""
    stdin: bytes | None = Field(default=None, max_length=INLINE_BYTES)
    """All of its input, when it is short; then the input is closed."""
    stdin_open: bool = False
    """Keep the input open for a stream."""
    pty: PtySize | None = None
    background: bool = False
    """A background command does not keep its sandbox from being idle."""
    wait_seconds: float = Field(default=0, ge=0, le=60)
    """Hold the reply until the command has ended, at most so long."""

    @model_validator(mode="after")
    def _one_kind_of_input(self) -> ExecStart:
        if self.stdin is not None and self.stdin_open:
            raise ValueError("give stdin, or stdin_open for a stream, not both")
        return self


class ExecWait(Request):
    """Wait for a command to end, at most `wait_seconds`, and read its output from `position`."""

    sandbox_id: str
    exec_id: ExecId
    position: int = Field(default=0, ge=0)
    wait_seconds: float = Field(default=0, ge=0, le=60)


class Chunk(Message):
    """Some output; stdout and stderr in the order they were read."""

    stream: Literal["stdout", "stderr"]
    data: bytes


class ExecState(Message):
    """Where a command is, with output from the position asked for, up to 256 KiB of it."""

    sandbox_id: str
    exec_id: str
    state: Literal["running", "exited", "lost"]
    """lost: its node cannot tell how it ended."""
    pid: int | None = None
    """Inside the sandbox."""
    argv: list[str] = Field(default_factory=list[str])
    pty: bool = False
    background: bool = False
    started_at: float
    ended_at: float | None = None
    exit_code: int | None = None
    """None while running, and when a signal ended it."""
    signal: int | None = None
    timed_out: bool = False
    output_bytes: int = 0
    """Output kept so far, stdout and stderr together."""
    dropped_bytes: int = 0
    """Output beyond the limit."""
    stdin_bytes: int = 0
    """Input taken so far."""
    stdin_closed: bool = False
    cpu_seconds: float | None = None
    rss_peak_bytes: int | None = None
    reason: str | None = None
    position: int = 0
    """Where `output` starts."""
    output: list[Chunk] = Field(default_factory=list[Chunk])


class ExecSignal(Request):
    """Send a signal to a command's process group, or kill all that it started."""

    sandbox_id: str
    exec_id: ExecId
    signal: int = Field(default=15, ge=1, le=64)
    tree: bool = False


class ExecResize(Request):
    """Resize a command's terminal."""

    sandbox_id: str
    exec_id: ExecId
    size: PtySize


class ExecList(Request):
    """Ask for a sandbox's commands. Not activity."""

    sandbox_id: str


class ExecPage(Message):
    """A sandbox's commands, oldest first, without output."""

    commands: list[ExecState]


class ExecAttach(Request):
    """Open a stream: output from `position` on flows to `deliver`, input flows back.

    `streams` describes the frames. The node forgets a stream whose client says
    nothing for a minute; the command goes on, and may be attached to again.
    """

    sandbox_id: str
    exec_id: ExecId
    stream: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """Fresh and unguessable; names the subject that carries the client's frames."""
    deliver: str = Field(max_length=200)
    """The subject, an inbox of the client's, that carries the node's frames."""
    position: int = Field(default=0, ge=0)
    window_bytes: int = Field(default=MIB, ge=4096, le=16 * MIB)


class ProcessList(Request):
    """Ask for all processes in a sandbox. Not activity."""

    sandbox_id: str


class ProcessInfo(Message):
    """One process, as seen inside."""

    pid: int
    parent_pid: int
    uid: int
    exec_id: str | None
    state: str
    rss_bytes: int
    cpu_seconds: float
    argv: list[str]


class ProcessPage(Message):
    """All processes in a sandbox."""

    processes: list[ProcessInfo]
