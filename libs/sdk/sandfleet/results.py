"""How a command, or a function call, ended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sandfleet_common.errors import Interrupted, SandfleetError
from sandfleet_common.messages import CallStatus, CallStep, Chunk, ExecState, FunctionResult

LAST_LINES = 12
"""Of what a call printed on stderr, in the error that says how it failed."""


@dataclass(frozen=True, slots=True)
class Result:
    r"""How a command ended, and what it printed.

    >>> result = Result(exit_code=0, stdout=b"hello\n")
    >>> result.ok, result.text
    (True, 'hello\n')
    """

    exit_code: int | None
    """None when a signal ended it."""
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    timed_out: bool = False
    """Its time limit ended it, and all that it had started."""
    dropped_bytes: int = 0
    """Output beyond the output limit."""
    duration: float = 0.0
    """Seconds from start to end, measured beside the sandbox."""
    exec_id: str = ""

    @property
    def ok(self) -> bool:
        """Whether it exited with 0 in time."""
        return self.exit_code == 0 and not self.timed_out

    @property
    def text(self) -> str:
        """What it printed on stdout; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode(errors="replace")

    @property
    def error_text(self) -> str:
        """What it printed on stderr; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr.decode(errors="replace")

    def check(self) -> Result:
        """Return itself if the command succeeded.

        Raises:
            CommandFailed: it did not.
        """
        if not self.ok:
            raise CommandFailed(self)
        return self


class CommandFailed(SandfleetError):
    """A command did not exit with 0; `result` has what it printed. Raised only when asked for."""

    code = "command_failed"

    def __init__(self, result: Result) -> None:
        super().__init__(_sentence(result), exit_code=result.exit_code, signal=result.signal)
        self.result = result

    def __reduce__(self) -> tuple[type[CommandFailed], tuple[Result]]:
        return (CommandFailed, (self.result,))


def _sentence(result: Result) -> str:
    if result.timed_out:
        how = "ran into its time limit"
    elif result.signal is not None:
        how = f"was ended by signal {result.signal}"
    else:
        how = f"exited with {result.exit_code}"
    last = result.error_text.strip().splitlines()[-1:]
    return f"the command {how}" + (f": {last[0][:300]}" if last else "")


def result_of(state: ExecState, chunks: list[Chunk]) -> Result:
    """Return the result that the last state of a command and its output add up to.

    Raises:
        Interrupted: its node cannot tell how it ended.
    """
    if state.state == "lost":
        raise Interrupted(
            state.reason or f"how {state.exec_id} ended is not known",
            sandbox_id=state.sandbox_id,
            exec_id=state.exec_id,
        )
    return Result(
        exit_code=state.exit_code,
        signal=state.signal,
        stdout=b"".join([c.data for c in chunks if c.stream == "stdout"]),
        stderr=b"".join([c.data for c in chunks if c.stream == "stderr"]),
        timed_out=state.timed_out,
        dropped_bytes=state.dropped_bytes,
        duration=(state.ended_at or state.started_at) - state.started_at,
        exec_id=state.exec_id,
    )


@dataclass(frozen=True, slots=True)
class CallResult:
    r"""How a function call ended, what it printed and what it gave back.

    >>> result = CallResult(status="ok", exit_code=0, stdout=b"42\n")
    >>> result.ok, result.text
    (True, '42\n')
    """

    status: CallStatus
    """ok, error, timeout, memory, killed, compile_error; lost: the platform failed it."""
    exit_code: int | None = None
    """None when a signal ended it."""
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    """Of the program; of the compiler when that is as far as it came."""
    value: Any = None
    """What the function returned."""
    exception: str | None = None
    """The last line of what the function raised, when it did."""
    files: Mapping[str, bytes] = field(default_factory=dict[str, bytes])
    """Those that were to be fetched."""
    missing: tuple[str, ...] = ()
    """Those that were to be fetched, and are no files or did not fit."""
    compiled: CallStep | None = None
    """How the compiler ended, where there is one."""
    dropped_bytes: int = 0
    """Output beyond the limit."""
    cpu_seconds: float = 0.0
    memory_peak_bytes: int = 0
    wait_ms: float = 0.0
    """Until a warm sandbox was free."""
    run_ms: float = 0.0
    sandbox_id: str = ""
    node: str = ""
    is_cold: bool = False
    """A sandbox was started for it."""
    error: SandfleetError | None = None
    """What the platform said, where a call of many could not be made."""

    @property
    def ok(self) -> bool:
        """Whether it exited with 0, within its limits."""
        return self.status == "ok"

    @property
    def timed_out(self) -> bool:
        """Whether its time limit ended it."""
        return self.status == "timeout"

    @property
    def text(self) -> str:
        """What it printed on stdout; bytes that are not UTF-8 become U+FFFD."""
        return self.stdout.decode(errors="replace")

    @property
    def error_text(self) -> str:
        """What it printed on stderr; bytes that are not UTF-8 become U+FFFD."""
        return self.stderr.decode(errors="replace")

    def check(self) -> CallResult:
        """Return itself if the call succeeded.

        Raises:
            CallFailed: the code did not; has the last lines of what it printed on stderr.
            Interrupted: its sandbox ended under it.
            SandfleetError: the platform could not make it, as one of many.
        """
        if self.error is not None:
            raise self.error
        if self.status == "lost":
            raise Interrupted(
                f"the call's sandbox {self.sandbox_id or ''} ended under it",
                sandbox_id=self.sandbox_id,
                node=self.node,
            )
        if not self.ok:
            raise CallFailed(self)
        return self


class CallFailed(SandfleetError):
    """A call's code failed; `result` has what it printed. Its text ends with the traceback."""

    code = "command_failed"

    def __init__(self, result: CallResult) -> None:
        sentence = _call_sentence(result)
        super().__init__(sentence, status=result.status, exit_code=result.exit_code)
        self.result = result

    @property
    def traceback(self) -> str:
        """What the code printed on stderr: of Python, how it came to the exception."""
        return self.result.error_text

    def __str__(self) -> str:
        lines = self.result.error_text.rstrip().splitlines()[-LAST_LINES:]
        return "\n".join([self.message, *lines])

    def __reduce__(self) -> tuple[type[CallFailed], tuple[CallResult]]:
        return (CallFailed, (self.result,))


_RAISED = re.compile(r"[\w.]+(: |\n|$)")
"""An exception, and not what the platform has to say of what was returned."""


def _call_sentence(result: CallResult) -> str:
    how = {
        "timeout": "ran into its time limit",
        "memory": "ran out of memory",
        "compile_error": "did not compile",
    }.get(result.status)
    if result.exception is not None and how is None:
        said = result.exception[:300]
        return f"the call {'raised ' if _RAISED.match(said) else 'failed: '}{said}"
    if how is None and result.signal is not None:
        how = f"was ended by signal {result.signal}"
    return f"the call {how or f'exited with {result.exit_code}'}"


def call_result_of(reply: FunctionResult) -> CallResult:
    """Return the result that a node's answer stands for."""
    step = reply.step
    if reply.status == "compile_error" and reply.compiled is not None:
        step = reply.compiled
    return CallResult(
        status=reply.status,
        exit_code=step.exit_code,
        signal=step.signal,
        stdout=step.stdout,
        stderr=step.stderr,
        value=reply.value,
        exception=reply.exception,
        files=reply.files,
        missing=tuple(reply.missing),
        compiled=reply.compiled,
        dropped_bytes=step.dropped_bytes,
        cpu_seconds=step.cpu_seconds,
        memory_peak_bytes=step.memory_peak_bytes,
        wait_ms=reply.wait_ms,
        run_ms=reply.run_ms,
        sandbox_id=reply.sandbox_id,
        node=reply.node,
        is_cold=reply.is_cold,
    )
