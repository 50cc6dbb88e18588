"""The routes of the table, each an HTTP face of one subject."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest
from sandfleet_common.ids import check_token
from sandfleet_common.routes import ROUTES, Route
from sandfleet_common.subjects import Subject

from .answers import TooLarge, message_answer
from .asking import Upstream
from .bodies import Values, build, build_from_query, parse_object, parse_query
from .edge import check_request_id, visit_of

IDEMPOTENCY = "Idempotency-Key"
_NAMED_BY_CALLER = {
    s.SANDBOX_CREATE.pattern: "key",
    s.JOB_SUBMIT.pattern: "job_id",
    s.EXEC_START.pattern: "exec_id",
    s.FUNCTION_CALL.pattern: "request_id",
}
"""Where the header Idempotency-Key goes: the field that makes a repetition harmless."""

Endpoint = Callable[[Request], Awaitable[Response]]


_FREE = frozenset({"environment", "key"})
"""Fields in paths that are no token of any subject: their messages say what they may be."""


class JobAccepted(m.Message):
    """A job is in the queue."""

    job_id: str
    is_new: bool
    """False: it had been submitted before, and nothing was changed."""


def named_by_caller(subject: Subject[Any, Any]) -> str | None:
    """Return the field of a subject's body that the header Idempotency-Key stands for."""
    return _NAMED_BY_CALLER.get(subject.pattern)


def api_routes(upstream: Upstream, body_limit_bytes: int) -> list[HttpRoute]:
    """Return the table's routes."""
    return [
        HttpRoute(route.path, _endpoint(route, upstream, body_limit_bytes), methods=[route.method])
        for route in ROUTES
    ]


def _endpoint(route: Route, upstream: Upstream, limit: int) -> Endpoint:
    async def endpoint(request: Request) -> Response:
        visit = visit_of(request.scope)
        visit.route = route.path
        body = await request_message(route, request, limit)
        visit.request_id = check_request_id(body.request_id)
        if route.subject is s.JOB_SUBMIT:
            return await _submit(upstream, cast(m.JobSubmit, body), route.status)
        return message_answer(await upstream.ask(route.subject, body), route.status)

    return endpoint


async def _submit(upstream: Upstream, job: m.JobSubmit, status: int) -> Response:
    is_new = await upstream.submit(job)
    return message_answer(JobAccepted(job_id=job.job_id, is_new=is_new), status)


async def request_message(route: Route, request: Request, limit: int) -> Any:
    """Return the message a request stands for.

    Raises:
        BadRequest: it stands for none; says which field is wrong.
    """
    kind = cast(type[m.Request], route.subject.body)
    fixed = {
        name: value if name in _FREE else check_token(name, value)
        for name, value in request.path_params.items()
    }
    if route.method in ("GET", "DELETE"):
        query = parse_query(request.scope["query_string"])
        if all(name != "request_id" for name, _ in query):
            fixed["request_id"] = visit_of(request.scope).request_id
        return build_from_query(kind, fixed, query)
    if request.scope["query_string"]:
        raise BadRequest(f"{route.method} {route.path} takes its fields from the body, not a query")
    given = parse_object(await read_body(request, limit))
    _name_by_header(route, request, given)
    given.setdefault("request_id", visit_of(request.scope).request_id)
    return build(kind, fixed, given)


def _name_by_header(route: Route, request: Request, given: Values) -> None:
    field = named_by_caller(route.subject)
    header = request.headers.get(IDEMPOTENCY)
    if field is None or header is None:
        return
    if given.get(field, header) != header:
        raise BadRequest(f"{field}: the body says another than the header {IDEMPOTENCY}")
    given[field] = header


async def read_body(request: Request, limit: int) -> bytes:
    """Return a request's body.

    Raises:
        TooLarge: it has more than `limit` bytes; they are not read.
    """
    said = request.headers.get("content-length", "")
    body = bytearray()
    if said.isdecimal() and int(said[:20]) > limit:
        raise TooLarge(f"the body has more than {limit} bytes", limit_bytes=limit)
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise TooLarge(f"the body has more than {limit} bytes", limit_bytes=limit)
    return bytes(body)
