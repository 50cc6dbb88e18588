"""Everything that can go wrong, as one closed set of codes.

    SandfleetError
    ├── Refused        the caller's fault: sending it again will not help
    │   ├── BadRequest         bad_request
    │   ├── NotFound           not_found
    │   ├── Conflict           conflict
    │   ├── Denied             denied
    │   ├── QuotaExceeded      quota_exceeded
    │   ├── OutputLimit        output_limit
    │   └── FileProblem        file_error (fields: errno, path)
    ├── Unavailable    try again, perhaps later
    │   ├── NoCapacity         no_capacity
    │   ├── TimedOut           timeout
    │   ├── Busy               busy
    │   └── Unreachable        unreachable
    ├── Lost           what you held is gone
    │   ├── SandboxFailed      sandbox_failed
    │   ├── SandboxGone        sandbox_gone
    │   ├── NodeLost           node_lost
    │   ├── Moved              moved (fields: node)
    │   └── Interrupted        interrupted
    └── Broken         our bug                internal

On the wire an error is a `Failure` (code, message, fields), never a class name.
The gateway maps codes to HTTP status and WebSocket close codes.
"""

from __future__ import annotations

from typing import Any, ClassVar


class SandfleetError(Exception):
    """Base of all errors; `code` is stable, `message` is one sentence a user can act on."""

    code: ClassVar[str] = "internal"

    def __init__(self, message: str, **fields: Any) -> None:
        super().__init__(message)
        self.message = message
        self.fields: dict[str, Any] = fields

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.message, self.fields))


class Refused(SandfleetError):
    """The request itself cannot be met; sending it again will not help."""


class BadRequest(Refused):
    """A value in the request is missing, malformed or out of range."""

    code = "bad_request"


class NotFound(Refused):
    """The sandbox, job, command, environment or file that was named does not exist."""

    code = "not_found"


class Conflict(Refused):
    """The thing exists already, or is in a state that forbids the operation."""

    code = "conflict"


class Denied(Refused):
    """The caller may not do this."""

    code = "denied"


class QuotaExceeded(Refused):
    """The project has used up what it was granted."""

    code = "quota_exceeded"


class OutputLimit(Refused):
    """A command printed, or a file held, more than the caller allowed."""

    code = "output_limit"


class FileProblem(Refused):
    """A file operation failed inside the sandbox; fields: `errno` (name), `path`."""

    code = "file_error"


class Unavailable(SandfleetError):
    """Nothing is wrong with the request; try again."""


class NoCapacity(Unavailable):
    """No node took the sandbox before its deadline; the message says what stood in the way."""

    code = "no_capacity"


class TimedOut(Unavailable):
    """The answer did not come in time; the operation may still have happened."""

    code = "timeout"


class Busy(Unavailable):
    """A queue is full; fields: `retry_after_seconds`."""

    code = "busy"


class Unreachable(Unavailable):
    """Nobody listens on the subject or host that was asked."""

    code = "unreachable"


class Lost(SandfleetError):
    """A sandbox, node or command that existed is gone."""


class SandboxFailed(Lost):
    """The sandbox could not start or ended on its own; the message says why."""

    code = "sandbox_failed"


class SandboxGone(Lost):
    """The sandbox has ended; fields: `state`, `reason`, `origin`."""

    code = "sandbox_gone"


class NodeLost(Lost):
    """The node that owned the sandbox stopped answering."""

    code = "node_lost"


class Moved(Lost):
    """The sandbox lives on another node now; fields: `node`."""

    code = "moved"


class Interrupted(Lost):
    """A command was started but its result is not known."""

    code = "interrupted"


class Broken(SandfleetError):
    """A bug in Sandfleet; the log has the details under the request id."""

    code = "internal"


def _leaves(root: type[SandfleetError]) -> list[type[SandfleetError]]:
    children = root.__subclasses__()
    return [root] if not children else [leaf for child in children for leaf in _leaves(child)]


BY_CODE: dict[str, type[SandfleetError]] = {leaf.code: leaf for leaf in _leaves(SandfleetError)}
"""Each code with its one class."""

CODES: tuple[str, ...] = tuple(BY_CODE)


def from_code(code: str, message: str, fields: dict[str, Any] | None = None) -> SandfleetError:
    """Return the error a `Failure` stands for; an unknown code becomes `Broken`."""
    kind = BY_CODE.get(code)
    if kind is None:
        return Broken(f"{message} (unknown error code {code!r})", **(fields or {}))
    return kind(message, **(fields or {}))


def _rebuild(kind: type[SandfleetError], message: str, fields: dict[str, Any]) -> SandfleetError:
    return kind(message, **fields)
