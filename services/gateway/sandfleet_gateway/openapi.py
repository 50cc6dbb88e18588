"""The HTTP API described as OpenAPI 3.1, from the table of routes and the messages.

`python -m sandfleet_gateway openapi > docs/openapi.yaml` writes it down; a test
fails when that file is not what the code says.
"""

from __future__ import annotations

from importlib.metadata import version
from typing import Any, cast

from pydantic.json_schema import JsonSchemaMode, models_json_schema

from sandfleet_common.descriptions import PlainSchemas, dump
from sandfleet_common.messages import Failure, JobEvent, Message
from sandfleet_common.routes import ROUTES, STATUS, Route
from sandfleet_common.subjects import JOB_SUBMIT, ROOT

from .api import IDEMPOTENCY, JobAccepted, named_by_caller
from .content import BINARY, CONTENT_PATH, ReadQuery, WriteQuery, Written
from .events import EVENTS_PATH
from .fusion import CodeRun, RunCode
from .running import PING_PATH, RUN_PATH
from .sessions import SESSION_PATH

Schema = dict[str, Any]
Key = tuple[type[Message], JsonSchemaMode]

_ABOUT = """\
Sandboxes for code that nobody vouches for. Every request needs an API key, as
`Authorization: Bearer <key>` or `X-API-Key: <key>`. An error is a `Failure` whose
`code` is one of a closed set. Bytes in JSON are base64, either alphabet. Times are
seconds since the epoch. A request whose answer was lost may be sent again under the
same `Idempotency-Key`, `exec_id` or `job_id`; it happens once.
"""
_SESSION = """\
A WebSocket that carries any number of commands, each under a channel number (0 to
4294967295) of the client's choice. A browser, which cannot set headers, offers the
subprotocols `sandfleet.v1` and `sandfleet.key.<key>`; the first is chosen.

Text messages are JSON: `{"type": "start" | "attach" | "signal" | "resize" | "detach",
"channel": n, "body": {...}}` with the body of POST .../commands, `{exec_id, position,
window_bytes}`, the bodies of .../signal and .../resize, and nothing. The answer to
`start`, `attach` and `signal` is `{"type": "state", "channel": n, "body": ExecState}`, to
anything that fails `{"type": "error", "channel": n, "body": Failure}`.

Binary messages are the channel (u32) and one frame, little-endian: kind u8, flags u8,
0 u16, size u32, position u64, payload. From the gateway: 1 DATA (flag 1: stderr), 2 END
(payload: ExecState), 3 INPUT (input taken so far; flag 2: send no more), 4 GONE (payload:
Failure). From the client: 16 TAKEN (output below position has been taken, at most the window
is sent beyond it), 17 STDIN (flag 2: the end), 18 DETACH. Positions count bytes from the
command's start. After a dropped connection, attach again from the position reached:
nothing is lost and nothing comes twice.

Close codes: 1012 the gateway restarts, attach again; 4400 a message that does not even say
its channel. A refused session is answered over HTTP: 400, 401, 429.
"""
_EVENTS = """\
Server-sent events, each a JobEvent: first what is on record, then what happens; a slot is
told once. The stream ends when the job has. An event named `failure` carries a Failure.
"""
_RUN_CODE = """\
A function call as SandboxFusion spells it: languages python, pytest, bash, c, cpp, nodejs.
Code that fails is an answer (`status` Failed), and so is what the platform cannot do
(SandboxError); 504 when no sandbox was free in time, ask again; 422 a body that does not fit.
The API key may also be the password in the URL: `http://any:<key>@host/run_code`.
"""


def document() -> Schema:
    """Return the description."""
    schemas, components = _schemas()
    paths: dict[str, Schema] = {}
    for route in ROUTES:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(
            route, schemas, components
        )
    for path, operations in _by_hand(schemas, components).items():
        paths.setdefault(path, {}).update(operations)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Sandfleet", "version": version("sandfleet"), "description": _ABOUT},
        "security": [{"bearer": []}, {"header": []}],
        "paths": paths,
        "components": {
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
                "password": {"type": "http", "scheme": "basic"},
            },
            "responses": {"Failure": _failure(schemas)},
            "schemas": components,
        },
    }


def text() -> str:
    """Return the description as YAML."""
    return dump(document())


def _schemas() -> tuple[dict[Key, Schema], dict[str, Schema]]:
    bodies: list[type[Message]] = [
        ReadQuery,
        WriteQuery,
        RunCode,
        *(r.subject.body for r in ROUTES),
    ]
    replies: list[type[Message]] = [Failure, JobEvent, JobAccepted, Written, CodeRun]
    replies += [route.subject.reply for route in ROUTES]
    wanted: dict[Key, None] = dict.fromkeys((kind, "validation") for kind in bodies)
    wanted.update(dict.fromkeys((kind, "serialization") for kind in replies))
    found, top = models_json_schema(
        list(wanted),
        ref_template="#/components/schemas/{model}",
        schema_generator=PlainSchemas,
    )
    return cast(dict[Key, Schema], found), cast(dict[str, Schema], top["$defs"])


def _operation(route: Route, schemas: dict[Key, Schema], components: dict[str, Schema]) -> Schema:
    words = route.subject.pattern.rpartition(f"{ROOT}.")[2].split(".")
    verb = ".".join(word for word in words if not word.startswith("{"))
    body = _resolve(schemas[route.subject.body, "validation"], components)
    reply = JobAccepted if route.subject is JOB_SUBMIT else route.subject.reply
    operation: Schema = {
        "operationId": verb.replace(".op.", ".").replace(".", "-"),
        "summary": route.subject.summary,
        "description": body.get("description", ""),
        "parameters": [_path_parameter(name) for name in route.path_fields()],
    }
    fields = {k: v for k, v in body["properties"].items() if k not in route.path_fields()}
    needed = [name for name in body.get("required", []) if name in fields]
    if route.method in ("GET", "DELETE"):
        operation["parameters"] += [
            _query_parameter(name, schema, name in needed) for name, schema in fields.items()
        ]
    else:
        schema: Schema = {"type": "object", "properties": fields, "additionalProperties": False}
        if needed:
            schema["required"] = needed
        operation["requestBody"] = {
            "required": bool(needed),
            "content": {"application/json": {"schema": schema}},
        }
        if named_by_caller(route.subject):
            operation["parameters"].append(_IDEMPOTENCY)
    operation["responses"] = _responses(
        route.status, _json("Done", schemas[reply, "serialization"])
    )
    return operation


_IDEMPOTENCY: Schema = {
    "name": IDEMPOTENCY,
    "in": "header",
    "description": "Sent again under the same key, it happens once.",
    "schema": {"type": "string"},
}


def _by_hand(schemas: dict[Key, Schema], components: dict[str, Schema]) -> dict[str, Schema]:
    raw = {"content": {BINARY: {"schema": {"type": "string", "format": "binary"}}}}
    sandbox = [_path_parameter("sandbox_id")]
    described: Schema = {"security": [], "responses": {"200": {"description": "As asked"}}}
    return {
        CONTENT_PATH: {
            "get": {
                "operationId": "file-content-read",
                "summary": "A file as raw bytes; `Range: bytes=a-b` for a part of it",
                "parameters": sandbox + _parameters(ReadQuery, schemas, components),
                "responses": _responses(200, {"description": "Its bytes", **raw}),
            },
            "put": {
                "operationId": "file-content-write",
                "summary": "The body becomes a file, at once and whole, or not at all",
                "parameters": sandbox + _parameters(WriteQuery, schemas, components),
                "requestBody": raw,
                "responses": _responses(200, _json("Done", schemas[Written, "serialization"])),
            },
        },
        SESSION_PATH: {
            "get": {
                "operationId": "session",
                "summary": "WebSocket: commands with live input and output",
                "description": _SESSION,
                "parameters": sandbox,
                "responses": _responses(101, {"description": "A session"}),
            }
        },
        EVENTS_PATH: {
            "get": {
                "operationId": "job-events",
                "summary": "A job's progress as server-sent events",
                "description": _EVENTS,
                "parameters": [_path_parameter("job_id")],
                "responses": _responses(
                    200,
                    {
                        "description": "JobEvents",
                        "content": {
                            "text/event-stream": {"schema": schemas[JobEvent, "serialization"]}
                        },
                    },
                ),
            }
        },
        RUN_PATH: {
            "post": {
                "operationId": "run-code",
                "summary": "Run code, for clients of SandboxFusion",
                "description": _RUN_CODE,
                "security": [{"bearer": []}, {"header": []}, {"password": []}],
                "requestBody": _json("A request", schemas[RunCode, "validation"])
                | {"required": True},
                "responses": _responses(200, _json("Done", schemas[CodeRun, "serialization"])),
            }
        },
        PING_PATH: {
            "get": {"operationId": "ping", "summary": "pong, as SandboxFusion", **described}
        },
        "/healthz": {"get": {"operationId": "healthz", "summary": "Is it alive", **described}},
        "/readyz": {"get": {"operationId": "readyz", "summary": "Does it serve", **described}},
        "/openapi.json": {"get": {"operationId": "openapi", "summary": "This", **described}},
    }


def _parameters(
    kind: type[Message], schemas: dict[Key, Schema], components: dict[str, Schema]
) -> list[Schema]:
    body = _resolve(schemas[kind, "validation"], components)
    needed = body.get("required", [])
    return [
        _query_parameter(name, schema, name in needed)
        for name, schema in body["properties"].items()
    ]


def _resolve(schema: Schema, components: dict[str, Schema]) -> Schema:
    return components[schema["$ref"].rpartition("/")[2]]


def _path_parameter(name: str) -> Schema:
    return {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}


def _query_parameter(name: str, schema: Schema, needed: bool) -> Schema:
    parameter: Schema = {"name": name, "in": "query", "required": needed, "schema": schema}
    if schema.get("type") == "object":
        parameter["description"] = "One JSON object, or name=value any number of times"
    return parameter


def _json(description: str, schema: Schema) -> Schema:
    return {"description": description, "content": {"application/json": {"schema": schema}}}


def _failure(schemas: dict[Key, Schema]) -> Schema:
    by_status: dict[int, list[str]] = {}
    for code, status in STATUS.items():
        by_status.setdefault(status, []).append(code)
    codes = "; ".join(f"{k} {', '.join(v)}" for k, v in sorted(by_status.items()))
    return _json(
        f"It was not done. Status and codes: {codes}; 401 denied: API key missing or unknown; "
        "413 bad_request: body too large.",
        schemas[Failure, "serialization"],
    )


def _responses(status: int, answer: Schema) -> Schema:
    return {str(status): answer, "default": {"$ref": "#/components/responses/Failure"}}
