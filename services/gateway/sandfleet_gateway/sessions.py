"""WebSocket sessions: many commands of one sandbox on one connection.

A message that cannot be understood is answered on its channel, which it ends, or,
where it does not even say its channel, ends the session with close code 4400. A
session that ends detaches from its commands; they go on.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from dataclasses import dataclass

from starlette.datastructures import Headers
from starlette.routing import WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from sandfleet_common.errors import (
    BadRequest,
    Busy,
    Conflict,
    NotFound,
    QuotaExceeded,
    SandfleetError,
)
from sandfleet_common.ids import node_of
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.routes import close_code

from .answers import failure_answer
from .asking import Upstream
from .channel import Channel, Surroundings
from .config import GatewaySettings
from .draining import Draining
from .edge import Visit, visit_of
from .envelope import Command, Malformed, error_text, parse_binary, parse_command
from .metrics import GatewayMetrics
from .outlet import Item, Outlet

SESSION_PATH = "/v1/sandboxes/{sandbox_id}/session"
SUBPROTOCOL = "sandfleet.v1"
SERVICE_RESTART = 1012
WRITE_SECONDS = 60.0
"""A client that takes nothing at all for so long is cut off."""
RECENT_MAX = 1024
"""Numbers remembered of channels that ended: late frames for them are no mistake."""
REASON_BYTES = 120
"""Room for a sentence in a close frame."""


@dataclass(frozen=True, slots=True)
class Platform:
    """What all sessions of this replica share."""

    upstream: Upstream
    settings: GatewaySettings
    metrics: GatewayMetrics
    draining: Draining
    log: Logger


class Sessions:
    """All sessions of this replica."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._by_caller: Counter[str] = Counter()
        self._open: set[Session] = set()
        platform.upstream.bus.on_reconnect(self._on_reconnect)

    def routes(self) -> list[WebSocketRoute]:
        """Return the route."""
        return [WebSocketRoute(SESSION_PATH, self.serve)]

    async def serve(self, socket: WebSocket) -> None:
        """Serve one session from its first byte to its last."""
        visit = visit_of(socket.scope)
        visit.route = SESSION_PATH
        try:
            self._admit(socket, visit)
        except SandfleetError as problem:
            await socket.send_denial_response(failure_answer(problem))
            return
        session = Session(socket, visit, self._platform)
        self._by_caller[visit.caller] += 1
        self._open.add(session)
        self._platform.metrics.sockets.inc()
        try:
            await session.run()
        finally:
            self._platform.metrics.sockets.dec()
            self._open.discard(session)
            self._by_caller[visit.caller] -= 1
            self._by_caller += Counter()  # forget those who have none

    def _admit(self, socket: WebSocket, visit: Visit) -> None:
        node_of(socket.path_params["sandbox_id"])
        if socket.scope["query_string"]:
            raise BadRequest("a session has no query parameters")
        settings = self._platform.settings
        if self._platform.draining.is_begun:
            raise Busy("this gateway is shutting down", retry_after_seconds=1)
        if self._by_caller[visit.caller] >= settings.sockets_per_key:
            raise QuotaExceeded(f"{settings.sockets_per_key} sessions are open with this API key")
        if len(self._open) >= settings.sockets_max:
            raise Busy("too many sessions are open here", retry_after_seconds=1)

    def _on_reconnect(self) -> None:
        for session in self._open:
            session.break_off("bus")


class Session:
    """One connection."""

    def __init__(self, socket: WebSocket, visit: Visit, platform: Platform) -> None:
        self._socket = socket
        self._visit = visit
        self._platform = platform
        self._outlet = Outlet()
        self._channels: dict[int, Channel] = {}
        self._recent: deque[int] = deque(maxlen=RECENT_MAX)
        self._opened = 0
        self._log = platform.log.bind(request_id=visit.request_id)
        self._around = Surroundings(
            sandbox_id=socket.path_params["sandbox_id"],
            request_id=visit.request_id,
            upstream=platform.upstream,
            outlet=self._outlet,
            settings=platform.settings,
            metrics=platform.metrics,
            log=self._log,
        )

    def break_off(self, cause: str) -> None:
        """Let every channel open its stream anew."""
        for channel in self._channels.values():
            channel.break_off(cause)

    async def run(self) -> None:
        """Serve until one side ends it."""
        offered = self._socket.scope.get("subprotocols", [])
        headers = Headers({"X-Request-Id": self._visit.request_id}).raw
        await self._socket.accept(SUBPROTOCOL if SUBPROTOCOL in offered else None, headers)
        code, reason = 1006, ""
        try:
            code, reason = await self._serve()
            await self._close(code, reason)
        finally:
            self._outlet.forget_all()
            self._platform.metrics.sockets_ended.labels(str(code)).inc()
            self._log.info(
                "ws.session",
                sandbox=self._around.sandbox_id,
                caller=self._visit.caller,
                code=code,
                reason=reason,
                channels=self._opened,
            )

    async def _serve(self) -> tuple[int, str]:
        async with Tasks(self._log) as tasks:
            reading = tasks.start(self._read(tasks), "ws.read")
            writing = tasks.start(self._outlet.run(self._write), "ws.write")
            draining = tasks.start(self._platform.draining.wait(), "ws.draining")
            done, _ = await asyncio.wait(
                {reading, writing, draining}, return_when=asyncio.FIRST_COMPLETED
            )
            if reading in done:
                return reading.result()
            if writing in done:
                return 1006, "the client takes nothing"
            return SERVICE_RESTART, "this gateway is shutting down; attach again"

    async def _close(self, code: int, reason: str) -> None:
        if code in (1005, 1006) or self._socket.client_state.name == "DISCONNECTED":
            return
        text = reason.encode()[:REASON_BYTES].decode("utf-8", "ignore")
        try:
            await self._socket.close(code, text)
        except (WebSocketDisconnect, RuntimeError, OSError):
            return  # it is gone already

    # ----------------------------------------------------------------- writing

    async def _write(self, data: str | bytes) -> None:
        async with asyncio.timeout(WRITE_SECONDS):
            if isinstance(data, str):
                await self._socket.send_text(data)
            else:
                await self._socket.send_bytes(data)

    # ----------------------------------------------------------------- reading

    async def _read(self, tasks: Tasks) -> tuple[int, str]:
        """Read until the client goes or cannot be understood; return code and reason."""
        while True:
            await self._outlet.has_room()
            message = await self._socket.receive()
            if message["type"] == "websocket.disconnect":
                return int(message.get("code") or 1005), str(message.get("reason") or "")
            try:
                if message.get("text") is not None:
                    self._command(parse_command(message["text"]), tasks)
                else:
                    await self._frame(message.get("bytes") or b"")
            except Malformed as problem:
                self._platform.metrics.malformed.inc()
                if problem.channel is None:
                    return close_code("bad_request"), problem.message
                self._answer(problem.channel, problem.error())
                self._fail(problem.channel, problem.error())

    def _command(self, command: Command, tasks: Tasks) -> None:
        channel = self._channels.get(command.channel)
        try:
            if channel is not None:
                if command.type in ("start", "attach"):
                    raise Conflict(f"channel {command.channel} is in use")
                channel.tell(command)
            elif command.type in ("start", "attach"):
                self._begin(command, tasks)
            elif command.channel not in self._recent:
                raise NotFound(f"there is no channel {command.channel}")
        except SandfleetError as problem:
            self._answer(command.channel, problem)

    def _begin(self, command: Command, tasks: Tasks) -> None:
        limit = self._platform.settings.channels_per_socket
        if len(self._channels) >= limit:
            raise QuotaExceeded(f"a session carries at most {limit} channels at once")
        channel = Channel(command, self._around)
        self._channels[command.channel] = channel
        self._opened += 1
        task = tasks.start(channel.run(), f"ws.channel {command.channel}")
        task.add_done_callback(lambda _: self._ended(channel))

    def _ended(self, channel: Channel) -> None:
        if self._channels.get(channel.number) is channel:
            del self._channels[channel.number]
        self._recent.append(channel.number)

    async def _frame(self, data: bytes) -> None:
        number, frame = parse_binary(data)
        channel = self._channels.get(number)
        try:
            if channel is not None:
                await channel.take(frame)
            elif number not in self._recent:
                raise NotFound(f"there is no channel {number}")
        except SandfleetError as problem:
            self._answer(number, problem)
            self._fail(number, problem)

    def _answer(self, number: int, problem: SandfleetError) -> None:
        self._outlet.put(number, Item(error_text(number, problem)))

    def _fail(self, number: int, problem: SandfleetError) -> None:
        channel = self._channels.get(number)
        if channel is not None:
            channel.fail(problem)
