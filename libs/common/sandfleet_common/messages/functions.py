"""Function calls: code that runs in a warm sandbox and leaves nothing behind."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, model_validator

from .base import Message, Request
from .sandboxes import GIB, MIB, EnvVars, Text

ROLE_LABEL = "sandfleet.role"
"""Label of sandboxes that the platform keeps for itself, which lists for people leave out."""
FUNCTION_ROLE = "function"
"""Its value for warm sandboxes of function calls."""
CALL_BYTES = 512 * 1024
"""Most bytes of code, input and files of one call, together; also of what it gives back."""

Language = Literal["python", "bash", "c", "cpp", "javascript"]


def _stays_below(value: str) -> str:
    if "\0" in value or any(part in ("", ".", "..") for part in value.split("/")):
        raise ValueError("must be a path below the call's directory, without . and ..")
    return value


FileName = Annotated[str, AfterValidator(_stays_below), Field(min_length=1, max_length=255)]
"""Relative to the call's directory, without `.` and `..`."""


class CallLimits(Message):
    """Caps of one call."""

    wall_seconds: float = Field(default=10, gt=0, le=600)
    cpu_seconds: float | None = Field(default=None, gt=0, le=600)
    """None: as much as fits into `wall_seconds`."""
    memory_bytes: int = Field(default=512 * MIB, ge=16 * MIB, le=64 * GIB)
    """Address space of each of its processes."""
    processes: int = Field(default=64, ge=1, le=4096)
    output_bytes: int = Field(default=256 * 1024, ge=0, le=CALL_BYTES)
    """Of stdout, and again of stderr; what is beyond is read, counted and dropped."""
    file_bytes: int = Field(default=64 * MIB, ge=0, le=GIB)
    """Size of each file it writes."""


class FunctionCall(Request):
    """Run code in a warm sandbox. The answer comes when it has ended.

    With `function` the code is Python that defines it; it is called with `arguments`
    (JSON values) and what it returns comes back as `value`.
    """

    environment: Annotated[Text, Field(min_length=1, max_length=128)] = "debian"
    language: Language = "python"
    code: Text = ""
    function: Annotated[Text, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)] | None = (
        None
    )
    arguments: list[Any] = Field(default_factory=list[Any])
    keywords: dict[str, Any] = Field(default_factory=dict[str, Any])
    files: dict[FileName, bytes] = Field(default_factory=dict[str, bytes], max_length=256)
    """Put into the call's directory before it begins."""
    fetch: list[FileName] = Field(default_factory=list[str], max_length=256)
    """Files of the call's directory to give back."""
    stdin: bytes = b""
    env: EnvVars = Field(default_factory=dict)
    limits: CallLimits = CallLimits()
    compile_limits: CallLimits | None = None
    """For languages that are compiled; None: `limits`."""
    queue_seconds: float = Field(default=30, ge=0, le=600)
    """Wait for a warm sandbox at most so long."""

    @model_validator(mode="after")
    def _fits(self) -> FunctionCall:
        size = len(self.code) + len(self.stdin) + sum(map(len, self.files.values()))
        if size > CALL_BYTES:
            raise ValueError(
                f"code, stdin and files have {size} bytes, {CALL_BYTES} are allowed; "
                "put larger files into a sandbox"
            )
        if self.function is not None and self.language != "python":
            raise ValueError("function is for language python")
        return self


CallStatus = Literal["ok", "error", "timeout", "memory", "killed", "compile_error", "lost"]
"""ok: exit code 0; error: another one; memory: it ran out of it; lost: its sandbox ended."""


class CallStep(Message):
    """How the compiler, or the program, ended."""

    exit_code: int | None = None
    signal: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    dropped_bytes: int = 0
    wall_seconds: float = 0
    cpu_seconds: float = 0
    memory_peak_bytes: int = 0


class FunctionResult(Message):
    """How a call ended. What the code did wrong is a status here, never an error."""

    status: CallStatus
    step: CallStep = CallStep()
    compiled: CallStep | None = None
    value: Any = None
    """What `function` returned."""
    exception: str | None = None
    """The last line of what `function` raised, when it did."""
    files: dict[str, bytes] = Field(default_factory=dict[str, bytes])
    missing: list[str] = Field(default_factory=list[str])
    """Of `fetch`: those that are no files, or did not fit."""
    wait_ms: float = 0
    """Until a warm sandbox was free."""
    run_ms: float = 0
    sandbox_id: str = ""
    node: str = ""
    is_cold: bool = False
    """A sandbox was started for it."""
