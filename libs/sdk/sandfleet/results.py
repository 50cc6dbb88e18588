"""How a command ended."""

from __future__ import annotations

from dataclasses import dataclass

from sandfleet_common.errors import Interrupted, SandfleetError
from sandfleet_common.messages import Chunk, ExecState


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
