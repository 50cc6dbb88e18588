"""One command's stream over a WebSocket session of the gateway."""

from __future__ import annotations

import asyncio
import json
from typing import Any, cast

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from sandfleet_common import messages as m
from sandfleet_common.errors import (
    BadRequest,
    Broken,
    Denied,
    SandfleetError,
    TimedOut,
    Unreachable,
)
from sandfleet_common.routes import WS_CHANNEL
from sandfleet_common.streams import Kind, StreamFrame

from .endpoints import GatewayPlace
from .transport import LinkLost

CHANNEL = 1
"""Each link has a session of its own, so one channel is enough."""
MESSAGE_BYTES = 4 * m.MIB
CLOSE_SECONDS = 2.0


class GatewayLink:
    """A link that is a WebSocket session; open one with `GatewayLink.open`."""

    def __init__(self, socket: ClientConnection, state: m.ExecState) -> None:
        self._socket = socket
        self._early: list[StreamFrame] = []
        self.state = state

    @classmethod
    async def open(
        cls, place: GatewayPlace, sandbox_id: str, body: dict[str, Any], *, within: float
    ) -> GatewayLink:
        """Open a session and attach to a command.

        Raises:
            Unreachable: no gateway answers.
            SandfleetError: what the gateway says.
        """
        try:
            async with asyncio.timeout(within):
                socket = await _dial(place, sandbox_id)
                try:
                    return await cls._attach(socket, body)
                except BaseException:
                    await socket.close()
                    raise
        except TimeoutError:
            raise TimedOut(f"the gateway opened no session within {within:g} s") from None
        except (WebSocketException, OSError) as problem:
            raise Unreachable(f"the gateway closed the session: {problem}") from problem

    @classmethod
    async def _attach(cls, socket: ClientConnection, body: dict[str, Any]) -> GatewayLink:
        await socket.send(json.dumps({"type": "attach", "channel": CHANNEL, "body": body}))
        early: list[StreamFrame] = []
        while True:
            message = await socket.recv()
            if isinstance(message, str):
                link = cls(socket, _state(message))
                link._early = early
                return link
            early.append(_frame(message))

    async def receive(self) -> StreamFrame:
        """Return the next frame; a closed session is a lost link."""
        if self._early:
            return self._early.pop(0)
        try:
            while True:
                message = await self._socket.recv()
                if not isinstance(message, str):
                    return _frame(message)
                if (frame := _told(message)) is not None:
                    return frame
        except (WebSocketException, OSError, BadRequest) as problem:
            raise LinkLost from problem

    async def send(self, frame: StreamFrame) -> None:
        """Send a frame to the node."""
        try:
            await self._socket.send(WS_CHANNEL.pack(CHANNEL) + frame.encode())
        except (WebSocketException, OSError) as problem:
            raise LinkLost from problem

    async def close(self) -> None:
        """End the session; the command goes on."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._socket.send(json.dumps({"type": "detach", "channel": CHANNEL}))
                await self._socket.close()
        except (WebSocketException, OSError, TimeoutError):
            return


async def _dial(place: GatewayPlace, sandbox_id: str) -> ClientConnection:
    url = "ws" + place.url.removeprefix("http") + f"/v1/sandboxes/{sandbox_id}/session"
    headers = {"authorization": f"Bearer {place.api_key}"} if place.api_key else {}
    try:
        return await connect(
            url,
            additional_headers=headers,
            max_size=MESSAGE_BYTES,
            compression=None,
            ping_interval=20,
            open_timeout=None,
        )
    except InvalidStatus as problem:
        response = problem.response
        if response.status_code == 401:
            raise Denied("the gateway does not know this API key") from None
        raise _failure(bytes(response.body or b""), response.status_code) from None
    except (WebSocketException, OSError) as problem:
        raise Unreachable(f"no gateway answers at {place.url}: {problem}") from problem


def _failure(body: bytes, status: int) -> SandfleetError:
    try:
        return m.Failure.decode(body).to_error()
    except BadRequest:
        return Unreachable(f"the gateway refused a session with status {status}")


def _parse(message: str) -> tuple[str, bytes]:
    try:
        envelope = cast(dict[str, Any], json.loads(message))
        return str(envelope["type"]), json.dumps(envelope.get("body") or {}).encode()
    except (ValueError, KeyError, TypeError):
        raise Broken("the gateway said something that is not a session message") from None


def _state(message: str) -> m.ExecState:
    kind, body = _parse(message)
    if kind == "error":
        raise m.Failure.decode(body).to_error()
    return m.ExecState.decode(body)


def _told(message: str) -> StreamFrame | None:
    """Return the frame that a text message amounts to, if to any."""
    kind, body = _parse(message)
    if kind == "error":
        return StreamFrame(Kind.GONE, 0, body)
    if kind == "state" and m.ExecState.decode(body).state != "running":
        return StreamFrame(Kind.END, 0, body)
    return None


def _frame(message: bytes) -> StreamFrame:
    return StreamFrame.decode(message[WS_CHANNEL.size :])
