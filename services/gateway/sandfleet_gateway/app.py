"""The ASGI application: everything the gateway answers, put together."""

from __future__ import annotations

import json
from importlib.metadata import version

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute
from starlette.types import ASGIApp

from sandfleet_common.errors import BadRequest, Broken, NotFound, SandfleetError
from sandfleet_common.lifecycle import Health

from .answers import JSON, failure_answer, failure_body
from .api import api_routes
from .content import Content
from .edge import CLIENT_LEFT, Edge, visit_of
from .events import JobEvents
from .keys import KeyFile
from .openapi import document
from .running import CodeRuns
from .sessions import Platform, Sessions


def build_app(platform: Platform, keys: KeyFile, health: Health) -> ASGIApp:
    """Return the application."""
    settings, metrics = platform.settings, platform.metrics
    events = JobEvents(
        platform.upstream, metrics, platform.draining, settings.events_keepalive_seconds
    )
    inner = Starlette(
        routes=[
            *api_routes(platform.upstream, settings.body_limit_bytes),
            *Content(platform.upstream, settings, metrics).routes(),
            *events.routes(),
            *CodeRuns(platform.upstream, settings).routes(),
            *Sessions(platform).routes(),
            *_own_routes(health),
        ],
        exception_handlers={
            SandfleetError: _on_error,
            HTTPException: _on_http_error,
            ClientDisconnect: _on_client_left,
            Exception: _on_bug,
        },
    )
    inner.router.redirect_slashes = False
    return Edge(inner, settings, keys, metrics, platform.log)


def _own_routes(health: Health) -> list[HttpRoute]:
    description = json.dumps(document()).encode()
    index = json.dumps(
        {
            "name": "Sandfleet gateway",
            "about": "Sandboxes over HTTP and WebSocket. Every request needs an API key.",
            "version": version("sandfleet"),
            "api": "/openapi.json",
            "health": ["/healthz", "/readyz"],
        }
    ).encode()

    async def show_index(_: Request) -> Response:
        return Response(index, media_type=JSON)

    async def show_description(_: Request) -> Response:
        return Response(description, media_type=JSON)

    async def show_health(request: Request) -> Response:
        problems = health.problems()
        is_fine = health.is_ready if request.url.path == "/readyz" else True
        body = json.dumps(
            {"ready": health.is_ready, "problems": problems, "warnings": health.warned()}
        )
        status = 200 if is_fine and not problems else 503
        return Response(body, status, media_type=JSON)

    return [
        HttpRoute("/", show_index),
        HttpRoute("/openapi.json", show_description),
        HttpRoute("/healthz", show_health),
        HttpRoute("/readyz", show_health),
    ]


async def _on_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, SandfleetError)
    return failure_answer(error)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.url.path[:200]
    if error.status_code == 404:
        return failure_answer(NotFound(f"there is no {path!r} here; /openapi.json says what is"))
    problem = BadRequest(f"{request.method[:20]} {path!r}: {error.detail}")
    return Response(
        failure_body(problem), error.status_code, dict(error.headers or {}), media_type=JSON
    )


async def _on_client_left(_: Request, __: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)


async def _on_bug(request: Request, _: Exception) -> Response:
    visit = visit_of(request.scope)
    return failure_answer(
        Broken("the gateway failed inside; its log says more", request_id=visit.request_id)
    )
