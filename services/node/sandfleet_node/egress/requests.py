"""One connection from a sandbox: its requests, one after another."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

import h11

from .orders import Limits
from .streams import Stream
from .targets import (
    HEAD_BYTES_MAX,
    BadTarget,
    Headers,
    Target,
    passed_on,
    read_target,
    request_headers,
)
from .tunnels import carry, greeting
from .upstreams import Refusal, Upstreams
from .volumes import Volumes

_ESTABLISHED = b"HTTP/1.1 200 Connection established\r\n\r\n"
_SAFE_TO_REPEAT = (b"GET", b"HEAD", b"OPTIONS")

Event = h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]


class _Stale(Exception):
    """A connection to a host that was used before has been closed by it meanwhile."""


@dataclass(slots=True)
class _Upstream:
    """The connection to a host that a client's requests used last."""

    target: Target
    stream: Stream
    http: h11.Connection
    is_used: bool = False

    def serves(self, target: Target) -> bool:
        same = (self.target.host, self.target.port) == (target.host, target.port)
        return same and self.http.our_state is h11.IDLE and self.stream.is_quiet()


class Client:
    """Serves what one connection asks for, until it or the proxy has had enough."""

    def __init__(
        self, sandbox_id: str, stream: Stream, upstreams: Upstreams, volumes: Volumes
    ) -> None:
        self._sandbox_id = sandbox_id
        self._stream = stream
        self._upstreams = upstreams
        self._limits: Limits = upstreams.limits
        self._volumes = volumes
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._upstream: _Upstream | None = None

    async def serve(self) -> None:
        """Serve until the connection ends. Whatever goes wrong ends it."""
        try:
            while (request := await self._head()) is not None:
                if not await self._answer(request):
                    break
        except (OSError, TimeoutError, h11.ProtocolError):
            return  # one of the two has gone, or has stopped making sense
        finally:
            self._drop()
            self._stream.close()

    async def _head(self) -> h11.Request | None:
        """Return the next request, or None at the connection's end."""
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                event = await self._next()
        except h11.RemoteProtocolError as problem:
            await self._refuse(
                "", Refusal(problem.error_status_hint, "malformed", "the request is no HTTP")
            )
            return None
        return event if isinstance(event, h11.Request) else None

    async def _answer(self, request: h11.Request) -> bool:
        """Serve one request; return whether there can be another."""
        host = ""
        try:
            target = read_target(request.method, request.target, request.headers)
            host = f"{target.host}:{target.port}"
            if request.method == b"CONNECT":
                await self._tunnel(target)
                return False
            await self._forward(request, target)
        except BadTarget as problem:
            await self._refuse(host, Refusal(400, "malformed", str(problem)))
            return False
        except Refusal as refusal:
            await self._refuse(host, refusal)
            return False
        if (self._http.our_state, self._http.their_state) != (h11.DONE, h11.DONE):
            return False
        self._http.start_next_cycle()
        return True

    async def _refuse(self, host: str, refusal: Refusal) -> None:
        self._volumes.refuse(self._sandbox_id, refusal.kind, host, refusal.sentence)
        if self._http.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            return  # a part of the answer has been sent
        body = f"{refusal.sentence}\n".encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await self._say(h11.Response(status_code=refusal.status, headers=headers))
        await self._say(h11.Data(data=body))
        await self._say(h11.EndOfMessage())
        await self._stream.linger()

    # ---------------------------------------------------------------- tunnels

    async def _tunnel(self, target: Target) -> None:
        upstream = self._open(await self._upstreams.open(target, is_tunnel=True))
        try:
            early, _ = self._http.trailing_data
            await self._stream.send(_ESTABLISHED)
            async with asyncio.timeout(self._limits.head_seconds):
                first = await greeting(self._stream, early, target.host)
            await upstream.send(first)
            await carry(self._stream, upstream, self._limits.idle_seconds)
        except Refusal as refusal:
            # The client was told that it has a tunnel: there is no way to say more.
            where = f"{target.host}:{target.port}"
            self._volumes.refuse(self._sandbox_id, refusal.kind, where, refusal.sentence)
        finally:
            upstream.close()

    # --------------------------------------------------------------- requests

    async def _forward(self, request: h11.Request, target: Target) -> None:
        try:
            await self._exchange(request, target)
        except _Stale:
            self._drop()
            await self._exchange(request, target)

    async def _exchange(self, request: h11.Request, target: Target) -> None:
        upstream = await self._connected(target)
        try:
            await self._send_request(upstream, request, target)
            response = await self._response(upstream, request)
        except (OSError, TimeoutError, h11.RemoteProtocolError) as problem:
            raise Refusal(
                502, "unreachable", f"{target.host} broke off: {problem or 'it fell silent'}"
            ) from None
        await self._send_response(upstream, response)
        upstream.is_used = True
        if (upstream.http.our_state, upstream.http.their_state) == (h11.DONE, h11.DONE):
            upstream.http.start_next_cycle()
        else:
            self._drop()

    async def _connected(self, target: Target) -> _Upstream:
        """Return the connection used last if it serves, else a new one."""
        if self._upstream is not None and self._upstream.serves(target):
            return self._upstream
        self._drop()
        stream = self._open(await self._upstreams.open(target, is_tunnel=False))
        http = h11.Connection(h11.CLIENT, max_incomplete_event_size=HEAD_BYTES_MAX)
        self._upstream = _Upstream(target, stream, http)
        return self._upstream

    def _open(self, sock: socket.socket) -> Stream:
        return self._volumes.upstream(self._sandbox_id, sock, self._limits.idle_seconds)

    async def _send_request(
        self, upstream: _Upstream, request: h11.Request, target: Target
    ) -> None:
        headers: Headers = request_headers(request.headers, target)
        path = target.path
        forwarder = self._upstreams.forwarder(target, is_tunnel=False)
        if forwarder is not None:
            path = b"http://" + target.authority(80) + path
            if forwarder[1] is not None:
                headers.append((b"proxy-authorization", forwarder[1]))
        sent = h11.Request(method=request.method, target=path, headers=headers)
        await upstream.stream.send(upstream.http.send(sent) or b"")
        while not isinstance(event := await self._next(), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("the request's body ended early")
            await upstream.stream.send(upstream.http.send(h11.Data(data=event.data)) or b"")
        await upstream.stream.send(upstream.http.send(h11.EndOfMessage()) or b"")

    async def _response(self, upstream: _Upstream, request: h11.Request) -> h11.Response:
        """Return the head of a host's answer; what it says before that is not passed on."""
        while True:
            try:
                event = await _next_of(upstream)
            except (OSError, h11.RemoteProtocolError):
                if upstream.is_used and request.method in _SAFE_TO_REPEAT:
                    raise _Stale from None
                raise
            if isinstance(event, h11.Response):
                return event
            if not isinstance(event, h11.InformationalResponse) or event.status_code == 101:
                raise h11.RemoteProtocolError("it gave no answer")

    async def _send_response(self, upstream: _Upstream, response: h11.Response) -> None:
        headers = passed_on(response.headers)
        if any(name == b"transfer-encoding" for name, _ in headers):
            # Framed anew for this client; a length beside it means nothing.
            framing = (b"transfer-encoding", b"content-length")
            headers = [(name, value) for name, value in headers if name not in framing]
        await self._say(
            h11.Response(status_code=response.status_code, headers=headers, reason=response.reason)
        )
        while not isinstance(event := await _next_of(upstream), h11.EndOfMessage):
            if not isinstance(event, h11.Data):
                raise h11.RemoteProtocolError("the answer's body ended early")
            await self._say(h11.Data(data=event.data))
            await asyncio.sleep(0)  # others' turn
        await self._say(h11.EndOfMessage())

    # ------------------------------------------------------------------ bytes

    async def _say(self, event: h11.Event) -> None:
        await self._stream.send(self._http.send(event) or b"")

    async def _next(self) -> Event:
        while True:
            event = self._http.next_event()
            if event is not h11.NEED_DATA:
                return event
            if self._http.they_are_waiting_for_100_continue:
                await self._say(h11.InformationalResponse(status_code=100, headers=[]))
            self._http.receive_data(await self._stream.receive())

    def _drop(self) -> None:
        if self._upstream is not None:
            self._upstream.stream.close()
            self._upstream = None


async def _next_of(upstream: _Upstream) -> Event:
    while True:
        event = upstream.http.next_event()
        if event is not h11.NEED_DATA:
            return event
        upstream.http.receive_data(await upstream.stream.receive())
