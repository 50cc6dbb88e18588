"""POST /run_code: function calls for clients of SandboxFusion."""

from __future__ import annotations

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route as HttpRoute

from sandfleet import calling
from sandfleet_common.errors import SandfleetError, Unavailable

from . import fusion
from .answers import JSON, failure_body, retry_seconds
from .api import read_body
from .asking import Upstream
from .config import GatewaySettings
from .edge import visit_of

RUN_PATH = "/run_code"
PING_PATH = "/v1/ping"
AGAIN = 504
"""The one status after which verl asks again; what waits in a queue too long is told so."""


class CodeRuns:
    """The route, and the probe that SandboxFusion's clients use."""

    def __init__(self, upstream: Upstream, settings: GatewaySettings) -> None:
        self._upstream = upstream
        self._settings = settings

    def routes(self) -> list[HttpRoute]:
        """Return the routes."""
        return [
            HttpRoute(RUN_PATH, self._run, methods=["POST"]),
            HttpRoute(PING_PATH, _ping, methods=["GET"]),
        ]

    async def _run(self, request: Request) -> Response:
        visit = visit_of(request.scope)
        visit.route = RUN_PATH
        body = await read_body(request, self._settings.body_limit_bytes)
        try:
            run = fusion.parse(body)
        except ValidationError as problem:
            return Response(fusion.refusal(problem), 422, media_type=JSON)
        try:
            answer = await self._answer(run, visit.request_id)
        except Unavailable as problem:
            headers = {"Retry-After": retry_seconds(problem)}
            return Response(failure_body(problem), AGAIN, headers, media_type=JSON)
        except SandfleetError as problem:
            answer = fusion.fault(problem.message)
        return Response(answer.model_dump_json(), media_type=JSON)

    async def _answer(self, run: fusion.RunCode, request_id: str) -> fusion.CodeRun:
        asked = fusion.asked_of(
            run,
            environment=self._settings.run_code_environment,
            queue_s=self._settings.run_code_queue_seconds,
            request_id=request_id,
        )
        return fusion.run_of(asked, await calling.ask(self._upstream.transport, asked.call))


async def _ping(request: Request) -> Response:
    visit_of(request.scope).route = PING_PATH
    return Response(b'"pong"', media_type=JSON)
