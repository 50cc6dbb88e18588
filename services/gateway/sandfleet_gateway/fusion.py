"""SandboxFusion's dialect of a function call. Pure: its messages in ours, ours in its.

RL frameworks (verl among them) speak it. Field names, statuses and what is null are
those of SandboxFusion's server; what it does and this platform does not is said in
the answer as `SandboxError`, which is how its clients learn of a fault that is not
the code's.
"""

from __future__ import annotations

import base64
import binascii
import json
import posixpath
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, ValidationError

from sandfleet_common import messages as m
from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import GIB, MIB

RUN_STATUS = Literal["Finished", "Error", "TimeLimitExceeded"]
STATUS = Literal["Success", "Failed", "SandboxError"]

SpokenLanguage = Literal[
    "python", "cpp", "c", "nodejs", "go", "go_test", "java", "php", "csharp", "bash",
    "typescript", "sql", "rust", "cuda", "lua", "R", "perl", "D_ut", "ruby", "scala", "julia",
    "pytest", "junit", "kotlin_script", "jest", "verilog", "python_gpu", "lean", "swift",
    "racket",
]  # fmt: skip
"""What SandboxFusion knows, and C."""

_OURS: dict[str, m.Language] = {
    "python": "python",
    "pytest": "python",
    "bash": "bash",
    "c": "c",
    "cpp": "cpp",
    "nodejs": "javascript",
}
_COMPILED = frozenset({"c", "cpp"})

UNLIMITED_BYTES = 4 * GIB
"""Address space where the request names no limit (-1)."""
LEAST_BYTES, MOST_BYTES = 16 * MIB, 64 * GIB
LEAST_SECONDS, MOST_SECONDS = 0.001, 600.0
KILLED = -9
_IGNORED = "IGNORE_THIS_FILE"
"""Files with this in their names are not written; SandboxFusion's data sets have them."""
PYTEST_FILE = "code_to_test.py"
_PYTEST = """\
import sys
try:
    import pytest
except ImportError:
    sys.exit("pytest is not installed in this environment")
sys.exit(pytest.main({arguments}))
"""


class RunCode(m.Message):
    """The body of POST /run_code; fields it does not know are passed over."""

    code: str
    language: SpokenLanguage
    compile_timeout: float = 10
    """Seconds."""
    run_timeout: float = 10
    """Seconds."""
    memory_limit_MB: int = -1
    """-1: 4 GiB of address space."""
    stdin: str | None = None
    files: dict[str, str | None] = Field(default_factory=dict[str, str | None])
    """Base64, by path below the directory the code runs in."""
    fetch_files: list[str] = Field(default_factory=list[str])
    """Paths of files to give back."""
    args: list[str] = Field(default_factory=list[str])
    """For pytest."""


class CommandResult(m.Message):
    """How the compiler or the program ended."""

    status: RUN_STATUS
    execution_time: float | None = None
    """Seconds."""
    return_code: int | None = None
    """Negative: the signal that ended it. None: it ran out of time."""
    stdout: str | None = None
    stderr: str | None = None


class CodeRun(m.Message):
    """The answer of POST /run_code."""

    status: STATUS
    """SandboxError: the platform's fault, or a request that it cannot meet."""
    message: str = ""
    compile_result: CommandResult | None = None
    run_result: CommandResult | None = None
    executor_pod_name: str | None = None
    """The node."""
    files: dict[str, str] = Field(default_factory=dict[str, str])
    """Base64."""


@dataclass(frozen=True, slots=True)
class Asked:
    """A request in our words, and what its files were called in its own."""

    call: m.FunctionCall
    names: dict[str, str]


def parse(body: bytes) -> RunCode:
    """Parse a request.

    Raises:
        ValidationError: it is not one; `refusal` says so as SandboxFusion does.
    """
    return RunCode.model_validate_json(body)


def refusal(problem: ValidationError) -> bytes:
    """Return the body of a 422 answer, without what was given."""
    report = problem.errors(include_url=False, include_input=False, include_context=False)
    detail = [{"type": e["type"], "loc": ["body", *e["loc"]], "msg": e["msg"]} for e in report[:20]]
    return json.dumps({"detail": detail}).encode()


def asked_of(run: RunCode, *, environment: str, queue_s: float, request_id: str) -> Asked:
    """Return the call that a request stands for.

    Raises:
        BadRequest: this platform cannot meet it; says why.
    """
    language = _OURS.get(run.language)
    if language is None:
        known = ", ".join(sorted(_OURS))
        raise BadRequest(f"this platform does not run {run.language}; it runs {known}")
    files = _files(run)
    code = run.code
    if run.language == "pytest":
        files[PYTEST_FILE] = code.encode()
        code = _PYTEST.format(arguments=json.dumps([PYTEST_FILE, *run.args]))
    names = {below: name for name in run.fetch_files if (below := _below(name)) is not None}
    memory = run.memory_limit_MB * MIB if run.memory_limit_MB > 0 else UNLIMITED_BYTES
    memory = min(max(memory, LEAST_BYTES), MOST_BYTES)
    call = m.FunctionCall.of(
        request_id=request_id,
        environment=environment,
        language=language,
        code=code,
        files=files,
        fetch=list(names),
        stdin=(run.stdin or "").encode(),
        limits=_limits(run.run_timeout, memory),
        compile_limits=_limits(run.compile_timeout, UNLIMITED_BYTES)
        if language in _COMPILED
        else None,
        queue_seconds=queue_s,
    )
    return Asked(call, names)


def run_of(asked: Asked, result: m.FunctionResult) -> CodeRun:
    """Return the answer that a call's end stands for."""
    if result.status == "lost":
        return fault("the sandbox ended while the code ran in it", node=result.node)
    compiled, ran = result.compiled, True
    compile_result = None
    if compiled is not None:
        ran = compiled.exit_code == 0
        compile_result = _command(compiled, is_late=not ran and _was_late(asked.call, compiled))
    run_result = None
    if ran:
        run_result = _command(result.step, is_late=result.status == "timeout")
        if result.status != "ok" and run_result.return_code == 0:  # a limit, not the code, said no
            run_result = run_result.model_copy(update={"return_code": KILLED})
    files = {
        asked.names.get(name, name): base64.b64encode(content).decode()
        for name, content in result.files.items()
    }
    return CodeRun(
        status="Success" if result.status == "ok" else "Failed",
        compile_result=compile_result,
        run_result=run_result,
        executor_pod_name=result.node or None,
        files=files,
    )


def fault(message: str, node: str = "") -> CodeRun:
    """Return the answer to what the platform could not do."""
    return CodeRun(status="SandboxError", message=message, executor_pod_name=node or None)


def _command(step: m.CallStep, *, is_late: bool) -> CommandResult:
    code = None
    if not is_late:
        code = KILLED if step.exit_code is None else step.exit_code
        code = code if step.signal is None else -step.signal
    return CommandResult(
        status="TimeLimitExceeded" if is_late else "Finished",
        execution_time=step.wall_seconds,
        return_code=code,
        stdout=step.stdout.decode(errors="replace"),
        stderr=step.stderr.decode(errors="replace"),
    )


def _was_late(call: m.FunctionCall, compiled: m.CallStep) -> bool:
    """Return whether it was its time limit that ended the compiler."""
    limits = call.compile_limits or call.limits
    return compiled.exit_code is None and compiled.wall_seconds >= limits.wall_seconds


def _limits(seconds: float, memory_bytes: int) -> m.CallLimits:
    wall = min(max(seconds, LEAST_SECONDS), MOST_SECONDS)
    return m.CallLimits.of(wall_seconds=wall, memory_bytes=memory_bytes)


def _files(run: RunCode) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for name, content in run.files.items():
        if content is None or _IGNORED in name:
            continue
        below = _below(name)
        if below is None:
            raise BadRequest(f"files: {name[:200]!r} is not below the code's directory")
        try:
            files[below] = base64.b64decode(content)
        except (binascii.Error, ValueError):
            raise BadRequest(f"files: {name[:200]!r} is not base64") from None
    return files


def _below(name: str) -> str | None:
    """Return a path below the code's directory in its shortest form; None: it is not below."""
    path = posixpath.normpath(name)
    if path.startswith("/") or path.split("/")[0] in ("", ".", ".."):
        return None
    return path
