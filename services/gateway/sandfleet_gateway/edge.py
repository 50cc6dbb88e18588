"""The edge: what every request passes before anything else looks at it.

It gives the request an id, asks for the API key, counts, logs, and turns away
what is too much. A key is never logged: of a request only the path is, and
headers and query are not.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import dataclass, field
from typing import cast

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from sandfleet_common.errors import BadRequest, Busy, Denied, SandfleetError
from sandfleet_common.ids import new_request_id
from sandfleet_common.logs import Logger
from sandfleet_common.messages import MIB

from .answers import Unauthorized, failure_answer
from .config import GatewaySettings
from .keys import OPEN, KeyFile, is_local, password_key, presented_key
from .metrics import GatewayMetrics

PUBLIC = frozenset({"/", "/healthz", "/readyz", "/openapi.json", "/v1/ping"})
PASSWORD_PATH = "/run_code"
"""Where the key may also be a password in the URL."""
CALL_PATHS = frozenset({PASSWORD_PATH, "/v1/calls"})
"""What the keys named in `call_keys` open."""
CLIENT_LEFT = 499
"""Logged where a client left before its answer."""
DISCARD_BYTES = 8 * MIB
DISCARD_SECONDS = 2.0
"""What is read of a body that is not wanted, before its connection is closed."""

_REQUEST_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")


@dataclass(slots=True)
class Visit:
    """What is known of one request or session while it lasts."""

    request_id: str
    caller: str = ""
    """Name of the API key."""
    route: str = "none"
    """Pattern of the route, for metrics."""
    status: int = CLIENT_LEFT
    began: float = field(default_factory=time.monotonic)


def check_request_id(given: str) -> str:
    """Return a request id if it may stand in a header and in the log.

    Raises:
        BadRequest: it may not.
    """
    if _REQUEST_ID.fullmatch(given) is None:
        raise BadRequest("request_id: use 1 to 64 of A-Z a-z 0-9 _ . : -", field="request_id")
    return given


def visit_of(scope: Scope) -> Visit:
    """Return what the edge noted of a request."""
    return cast(Visit, scope["sandfleet.visit"])


class _Body:
    """A request's body, of which perhaps not all is wanted."""

    def __init__(self, headers: Headers, receive: Receive) -> None:
        self._receive = receive
        self._is_read = headers.get("content-length", "0") == "0" and (
            "transfer-encoding" not in headers
        )

    async def receive(self) -> Message:
        """Receive as the application does."""
        message = await self._receive()
        if message["type"] != "http.request" or not message.get("more_body", False):
            self._is_read = True
        return message

    async def discard(self) -> bool:
        """Read what the application did not; return False when there is too much of it.

        A client that is still sending would otherwise be cut off before it reads the answer.
        """
        left = DISCARD_BYTES
        try:
            async with asyncio.timeout(DISCARD_SECONDS):
                while not self._is_read and left > 0:
                    left -= len((await self.receive()).get("body", b"")) or 1
        except TimeoutError:
            return False
        return self._is_read


class Edge:
    """ASGI application around the others."""

    def __init__(
        self,
        app: ASGIApp,
        settings: GatewaySettings,
        keys: KeyFile,
        metrics: GatewayMetrics,
        log: Logger,
    ) -> None:
        self._app = app
        self._settings = settings
        self._keys = keys
        self._metrics = metrics
        self._log = log
        self._under_way = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let one request or session pass."""
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        visit = Visit(given if _REQUEST_ID.fullmatch(given) else new_request_id())
        scope["sandfleet.visit"] = visit
        if scope["type"] == "http":
            await self._http(scope, receive, send, visit)
        elif scope["type"] == "websocket":
            await self._websocket(scope, receive, send, visit)

    async def _http(self, scope: Scope, receive: Receive, send: Send, visit: Visit) -> None:
        body = _Body(Headers(scope=scope), receive)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                visit.status = message["status"]
                headers = MutableHeaders(scope=message)
                headers["X-Request-Id"] = visit.request_id
                if not await body.discard():
                    headers["Connection"] = "close"
            await send(message)

        self._under_way += 1
        self._metrics.under_way.inc()
        try:
            refused = self._refusal(scope, visit)
            await (refused or self._app)(scope, body.receive, send_marked)
        finally:
            self._under_way -= 1
            self._metrics.under_way.dec()
            self._note(scope, visit)

    async def _websocket(self, scope: Scope, receive: Receive, send: Send, visit: Visit) -> None:
        refused = self._refusal(scope, visit)
        if refused is not None:
            visit.status = refused.status_code
            await refused(scope, receive, send)
            self._note(scope, visit)
            return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope, visit: Visit) -> Response | None:
        path = cast(str, scope["path"])
        if scope["type"] == "http" and path in PUBLIC:
            return None
        try:
            visit.caller = self._caller(scope)
            if self._under_way > self._settings.requests_max:
                raise Busy("too many requests are under way here", retry_after_seconds=1)
        except SandfleetError as problem:
            return failure_answer(problem)
        return None

    def _caller(self, scope: Scope) -> str:
        headers = Headers(scope=scope)
        key = presented_key(headers, scope.get("subprotocols", ()))
        if key is None and scope["path"] == PASSWORD_PATH:
            key = password_key(headers)
        if key is not None:
            name = self._keys.name_of(key)
            if name in self._settings.call_keys and scope["path"] not in CALL_PATHS:
                raise Denied("this API key is for function calls only")
            if name is not None:
                return name
        elif self._settings.open_to_loopback:
            client = scope.get("client")
            if is_local(client[0] if client else None, headers):
                return OPEN
        self._metrics.unauthorized.inc()
        raise Unauthorized(
            "this API key is not known"
            if key is not None
            else "an API key is needed: send `Authorization: Bearer <key>` or `X-API-Key: <key>`"
        )

    def _note(self, scope: Scope, visit: Visit) -> None:
        seconds = time.monotonic() - visit.began
        # A method is whatever the client wrote; on routes it is one of a few.
        method = scope.get("method", "WEBSOCKET") if visit.route != "none" else "other"
        self._metrics.requests.labels(method, visit.route, str(visit.status)).inc()
        self._metrics.request.labels(visit.route).observe(seconds)
        client = scope.get("client")
        self._log.info(
            "http.request",
            method=scope.get("method", "WEBSOCKET"),
            path=scope["path"],
            status=visit.status,
            ms=round(seconds * 1000, 2),
            request_id=visit.request_id,
            caller=visit.caller,
            client=client[0] if client else None,
        )
