"""The HTTP API as a table: which route stands for which subject.

The gateway serves this table and describes it as OpenAPI; the SDK's gateway
transport calls it. A route's body is the subject's message without the fields
that stand in the path; for GET and DELETE they are query parameters. An error
is answered with `STATUS[code]` and a `Failure` as JSON.

Beside the table there are, for the hand:

    GET  /v1/sandboxes/{sandbox_id}/files/content?path=      raw bytes of a file
    PUT  /v1/sandboxes/{sandbox_id}/files/content?path=      the body becomes the file
    GET  /v1/sandboxes/{sandbox_id}/session                  WebSocket, see below
    GET  /v1/jobs/{job_id}/events                            server-sent JobEvents
    POST /run_code                                           a call as SandboxFusion spells it
    GET  /openapi.json /healthz /readyz

A WebSocket session carries any number of commands, each under a channel number
of the client's choice. Text frames are JSON: from the client
`{"type": "start" | "attach" | "signal" | "resize" | "detach", "channel": n, "body": {...}}`
with the body of ExecStart, {exec_id, position, window_bytes}, ExecSignal or ExecResize; from
the gateway `{"type": "state" | "error", "channel": n, "body": {...}}` with an ExecState or a
Failure. Binary frames are a channel number (u32, little-endian) and one frame as in `streams`,
both ways.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any, Literal

from . import subjects as s
from .subjects import Subject

Method = Literal["GET", "POST", "PUT", "DELETE"]

WS_CHANNEL = struct.Struct("<I")


@dataclass(frozen=True, slots=True)
class Route:
    """One route: the request is `subject.body`, the answer `subject.reply`."""

    method: Method
    path: str
    subject: Subject[Any, Any]
    status: int = 200

    def path_fields(self) -> list[str]:
        """Return the body fields that stand in the path."""
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


_SANDBOX = "/v1/sandboxes/{sandbox_id}"
_COMMAND = _SANDBOX + "/commands/{exec_id}"
_FILES = _SANDBOX + "/files"

ROUTES = (
    Route("POST", "/v1/sandboxes", s.SANDBOX_CREATE, 201),
    Route("GET", "/v1/sandboxes", s.SANDBOX_LIST),
    Route("GET", _SANDBOX, s.SANDBOX_GET),
    Route("DELETE", _SANDBOX, s.STOP),
    Route("POST", _SANDBOX + "/extend", s.EXTEND),
    Route("POST", _SANDBOX + "/pause", s.PAUSE),
    Route("POST", _SANDBOX + "/resume", s.RESUME),
    Route("POST", _SANDBOX + "/phase", s.SET_PHASE),
    Route("GET", _SANDBOX + "/usage", s.USAGE),
    Route("POST", _SANDBOX + "/commands", s.EXEC_START, 201),
    Route("GET", _SANDBOX + "/commands", s.EXEC_LIST),
    Route("GET", _COMMAND, s.EXEC_WAIT),
    Route("POST", _COMMAND + "/signal", s.EXEC_SIGNAL),
    Route("POST", _COMMAND + "/resize", s.EXEC_RESIZE),
    Route("GET", _SANDBOX + "/processes", s.PROCESS_LIST),
    Route("GET", _FILES, s.FILE_LIST),
    Route("GET", _FILES + "/stat", s.FILE_STAT),
    Route("POST", _FILES + "/read", s.FILE_READ),
    Route("POST", _FILES + "/write", s.FILE_WRITE),
    Route("POST", _FILES + "/mkdir", s.FILE_MKDIR),
    Route("POST", _FILES + "/rename", s.FILE_RENAME),
    Route("DELETE", _FILES, s.FILE_REMOVE),
    Route("POST", "/v1/jobs", s.JOB_SUBMIT, 202),
    Route("GET", "/v1/jobs/{job_id}", s.JOB_GET),
    Route("GET", "/v1/jobs/{job_id}/slots", s.JOB_SLOTS),
    Route("DELETE", "/v1/jobs/{job_id}", s.JOB_CANCEL),
    Route("POST", _SANDBOX + "/snapshots", s.SNAPSHOT, 201),
    Route("POST", _SANDBOX + "/fork", s.FORK, 201),
    Route("POST", _SANDBOX + "/migrate", s.SANDBOX_MIGRATE),
    Route("GET", "/v1/snapshots", s.SNAPSHOT_LIST),
    Route("GET", "/v1/snapshots/{snapshot_id}", s.SNAPSHOT_GET),
    Route("POST", "/v1/snapshots/{snapshot_id}", s.SNAPSHOT_UPDATE),
    Route("DELETE", "/v1/snapshots/{snapshot_id}", s.SNAPSHOT_REMOVE),
    Route("GET", "/v1/environments", s.ENVIRONMENT_LIST),
    Route("POST", "/v1/environments", s.ENVIRONMENT_PUBLISH, 201),
    Route("GET", "/v1/environments/{environment}", s.ENVIRONMENT_GET),
    Route("DELETE", "/v1/environments/{environment}", s.ENVIRONMENT_REMOVE),
    Route("GET", "/v1/layers/{key}", s.LAYER_FIND),
    Route("POST", "/v1/collections", s.STORE_COLLECT),
    Route("POST", "/v1/actions", s.SANDBOXES_ACT),
    Route("POST", "/v1/calls", s.FUNCTION_CALL),
    Route("GET", "/v1/nodes", s.NODE_LIST),
    Route("GET", "/v1/nodes/{node}/usage", s.NODE_USAGE),
    Route("GET", "/v1/alerts", s.ALERT_LIST),
)

BY_SUBJECT: dict[str, Route] = {route.subject.pattern: route for route in ROUTES}

STATUS: dict[str, int] = {
    "bad_request": 400,
    "denied": 403,
    "not_found": 404,
    "conflict": 409,
    "sandbox_gone": 410,
    "output_limit": 413,
    "file_error": 422,
    "quota_exceeded": 429,
    "busy": 429,
    "internal": 500,
    "sandbox_failed": 502,
    "node_lost": 502,
    "moved": 421,
    "interrupted": 502,
    "no_capacity": 503,
    "unreachable": 503,
    "timeout": 504,
}
"""HTTP status of every error code; 401 is answered to a missing or unknown API key."""


def close_code(code: str) -> int:
    """Return the WebSocket close code of an error: 4000 and the HTTP status, 4404 for not_found."""
    return 4000 + STATUS.get(code, 500)
