"""Answers over HTTP: messages as JSON, errors with their status."""

from __future__ import annotations

import json
import math

from starlette.responses import Response

from sandfleet_common.errors import BadRequest, SandfleetError, Unavailable
from sandfleet_common.messages import Message
from sandfleet_common.routes import STATUS

JSON = "application/json"
RETRY_SECONDS = 1
_RETRIED_STATUS = (429, 503)
_RETRIED = ("busy", "no_capacity", "unreachable")


class TooLarge(BadRequest):
    """The body of a request is larger than the gateway takes."""


class Unauthorized(BadRequest):
    """The API key is missing or unknown."""

    code = "denied"


def message_answer(message: Message, status: int = 200) -> Response:
    """Return a message with all of its fields, also those that hold their defaults."""
    return Response(message.__pydantic_serializer__.to_json(message), status, media_type=JSON)


def status_of(error: SandfleetError) -> int:
    """Return the HTTP status of an error."""
    if isinstance(error, TooLarge):
        return 413
    if isinstance(error, Unauthorized):
        return 401
    return STATUS.get(error.code, 500)


def failure_body(error: SandfleetError) -> bytes:
    """Return an error as the JSON of a `Failure`, whatever its fields hold."""
    failure = {"code": error.code, "message": error.message, "fields": error.fields}
    return json.dumps(failure, default=str).encode()


def retry_seconds(error: SandfleetError) -> str:
    """Return the value of Retry-After: whole seconds, never sooner than the error says."""
    wait = error.fields.get("retry_after_seconds")
    if isinstance(wait, int | float) and math.isfinite(wait):
        return str(max(1, math.ceil(wait)))
    return str(RETRY_SECONDS)


def failure_answer(error: SandfleetError) -> Response:
    """Return an error as an answer; says when to come again where that helps."""
    headers: dict[str, str] = {}
    says_when = "retry_after_seconds" in error.fields and status_of(error) in _RETRIED_STATUS
    if says_when or (isinstance(error, Unavailable) and error.code in _RETRIED):
        headers["Retry-After"] = retry_seconds(error)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = 'Bearer realm="sandfleet"'
    return Response(failure_body(error), status_of(error), headers, media_type=JSON)
