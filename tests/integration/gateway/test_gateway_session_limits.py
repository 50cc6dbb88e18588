"""WebSocket sessions: mistakes of clients, and limits."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import MutableMapping
from pathlib import Path
from typing import Any

import pytest
from running_gateway import (
    KEY,
    Running,
    Talk,
    running_gateway,
    until,
)
from scripted_commands import ScriptedNode, pattern
from servers import Connect, Servers
from starlette.websockets import WebSocket
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from sandfleet.nats_transport import NatsTransport
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.routes import WS_CHANNEL
from sandfleet_common.streams import STDIN_WINDOW_BYTES, Flag, Kind, StreamFrame
from sandfleet_gateway.asking import Upstream
from sandfleet_gateway.config import GatewaySettings
from sandfleet_gateway.draining import Draining
from sandfleet_gateway.edge import Visit
from sandfleet_gateway.metrics import GatewayMetrics
from sandfleet_gateway.outlet import ANSWERS_MAX
from sandfleet_gateway.sessions import Platform, Sessions

pytestmark = pytest.mark.integration

WINDOW = 65_536


async def test_errors_come_on_the_channel_that_they_are_about(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["no-such-program"])
        assert (await talk.error(1)).code == "not_found"
        await talk.command("start", 2, argv=[], wiat_seconds=1)
        assert "did you mean 'wait_seconds'" in (await talk.error(2)).message
        await talk.command("attach", 3, exec_id="e-unknown")
        assert (await talk.error(3)).code == "not_found"
        await talk.command("signal", 4)
        assert (await talk.error(4)).code == "not_found"
        await talk.command("fly", 5)
        assert "type: must be one of start" in (await talk.error(5)).message
        await talk.command("start", 6, argv=["sleep"], exec_id="e6")
        await talk.state(6)
        await talk.command("start", 6, argv=["sleep"])
        assert (await talk.error(6)).code == "conflict"
        await talk.command("signal", 6, signal=65)
        assert (await talk.error(6)).code == "bad_request"
        await talk.command("signal", 6, signal=9)  # it is still there
        await talk.output(6)


async def test_a_malformed_frame_ends_its_channel_only(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        for channel in (1, 2):
            await talk.command("start", channel, argv=["cat"], stdin_open=True)
            await talk.state(channel)
        await socket.send(WS_CHANNEL.pack(1) + b"\x11\x00nonsense")
        assert (await talk.error(1)).code == "bad_request"
        _, frame = await talk.next()
        assert isinstance(frame, StreamFrame)
        assert frame.kind is Kind.GONE
        await talk.frame(2, Kind.STDIN, 0, b"still here", Flag.CLOSED)
        assert await talk.output(2) == b"still here"


async def test_input_with_a_hole_or_beyond_the_window_ends_the_channel(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    node.reading.clear()  # it takes no input, so nothing is acknowledged
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["cat"], stdin_open=True)
        await talk.state(1)
        await talk.frame(1, Kind.STDIN, 9, b"a hole before it")
        assert "0 comes next" in (await talk.error(1)).message
        await talk.next()
        await talk.command("start", 2, argv=["cat"], stdin_open=True)
        await talk.state(2)
        for at in range(0, STDIN_WINDOW_BYTES + 1, 65_536):
            await talk.frame(2, Kind.STDIN, at, bytes(65_536))
        assert "under way" in (await talk.error(2)).message
    node.reading.set()


@pytest.mark.parametrize(
    "message", ["{", "[]", "{}", '{"channel": -1}', '{"channel": true}', b"abc", "\0", "[" * 5000]
)
async def test_what_names_no_channel_closes_the_session(
    gateway: Running, sandbox: str, message: str | bytes
) -> None:
    async with gateway.session(sandbox) as socket:
        await socket.send(message)
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 4400
        assert closed.value.rcvd.reason


async def test_frames_for_a_channel_that_ended_are_no_mistake(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["echo", "x"])
        await talk.state(1)
        await talk.output(1)
        await talk.frame(1, Kind.TAKEN, 2)
        await talk.frame(1, Kind.STDIN, 0, b"late")
        await talk.command("start", 1, argv=["echo", "again"])  # its number may be used again
        await talk.state(1)
        assert await talk.output(1) == b"again!"
        await talk.frame(9, Kind.TAKEN, 0)
        assert (await talk.error(9)).code == "not_found"


async def test_channels_and_sessions_are_limited(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with (
        gateway.session(sandbox) as socket,
        gateway.session(sandbox),
        gateway.session(sandbox),
    ):
        talk = Talk(socket)
        for channel in range(4):
            await talk.command("start", channel, argv=["sleep"])
            await talk.state(channel)
        await talk.command("start", 4, argv=["sleep"])
        assert (await talk.error(4)).code == "quota_exceeded"
        with pytest.raises(InvalidStatus) as refused:
            async with gateway.session(sandbox):
                pass
        assert refused.value.response.status_code == 429
        assert b"sessions are open" in bytes(refused.value.response.body or b"")
        other = {"X-API-Key": "sfk-another-key-of-the-tests"}
        async with gateway.session(sandbox, additional_headers=other):
            pass


async def test_a_message_that_is_too_large_closes_the_session(
    gateway: Running, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        await socket.send(b"\0" * (2 * 1024 * 1024))
        with pytest.raises(ConnectionClosed) as closed:
            await socket.recv()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1009


async def test_a_browser_shows_its_key_as_a_subprotocol(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    offer = [Subprotocol("sandfleet.v1"), Subprotocol(f"sandfleet.key.{KEY}")]
    async with gateway.session(sandbox, key=None, subprotocols=offer) as socket:
        assert socket.subprotocol == "sandfleet.v1"
        talk = Talk(socket)
        await talk.command("start", 1, argv=["echo", "hello"])
        await talk.state(1)
    for key in (None, "wrong"):
        with pytest.raises(InvalidStatus) as refused:
            async with gateway.session(sandbox, key=key):
                pass
        assert refused.value.response.status_code == 401


async def test_a_session_for_no_sandbox_is_refused(gateway: Running) -> None:
    with pytest.raises(InvalidStatus) as refused:
        async with gateway.session("not-a-sandbox"):
            pass
    assert refused.value.response.status_code == 400


async def test_a_client_that_asks_and_never_reads_is_not_read_any_more(
    connect: Connect, log: Logger, sandbox: str
) -> None:
    bus = await connect("gateway")
    read = 0

    async def receive() -> dict[str, Any]:
        nonlocal read
        read += 1
        return (
            {"type": "websocket.connect"}
            if read == 1
            else {"type": "websocket.receive", "text": '{"type": "signal", "channel": 5}'}
        )

    async def send(message: MutableMapping[str, Any]) -> None:
        if message["type"] != "websocket.accept":
            await asyncio.Event().wait()  # a client that takes nothing

    scope = {
        "type": "websocket",
        "path_params": {"sandbox_id": sandbox},
        "query_string": b"",
        "sandfleet.visit": Visit("rq-1"),
    }
    async with Tasks(log) as tasks:
        upstream = Upstream(bus, NatsTransport(bus, tasks), 5)
        platform = Platform(upstream, GatewaySettings(), GatewayMetrics(), Draining(), log)
        session = Sessions(platform).serve(WebSocket(scope, receive, send))
        serving = tasks.start(session, "session")
        await until(lambda: read > ANSWERS_MAX)
        await asyncio.wait({serving}, timeout=0.2)
        assert read <= ANSWERS_MAX + 3


async def test_output_not_taken_is_not_sent_again_when_the_stream_is_opened_anew(
    servers: Servers, gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "1000000"], exec_id="e1")
        await talk.state(1)
        await talk.command("detach", 1)
        await talk.command("attach", 2, exec_id="e1", window_bytes=WINDOW)
        while (await talk.next())[0] != 2:
            pass
        first = await talk.output(2, until=WINDOW, takes=False)
        attached = len(node.attached)
        servers.nats.stop()
        servers.nats.start()
        await until(lambda: len(node.attached) > attached)
        assert node.attached[-1].position == 0, "the node may send a window beyond what was taken"
        await talk.frame(2, Kind.TAKEN, WINDOW)
        assert first + await talk.output(2, WINDOW) == pattern(0, 1_000_000)


async def test_a_drained_gateway_closes_sessions_as_a_restart(
    servers: Servers, tmp_path: Path, log: Logger, node: ScriptedNode, sandbox: str
) -> None:
    async with running_gateway(servers, tmp_path, log) as gateway:
        async with gateway.session(sandbox) as socket:
            talk = Talk(socket)
            await talk.command("start", 1, argv=["sleep"], exec_id="e1")
            await talk.state(1)
            await gateway.gateway.drain()
            with pytest.raises(ConnectionClosed) as closed:
                await socket.recv()
            assert closed.value.rcvd is not None
            assert closed.value.rcvd.code == 1012
        assert not node.streams
        assert not node.commands["e1"].is_over


async def test_bytes_of_short_input_travel_in_the_start(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        short = base64.b64encode(b"\xff\0").decode()
        await talk.command("start", 1, argv=["cat"], stdin=short, exec_id="e1", wait_seconds=30)
        await talk.state(1)
        assert node.commands["e1"].start.stdin == b"\xff\0"
        assert node.commands["e1"].start.wait_seconds == 0, "its output comes by the stream"


async def test_nothing_of_ours_fails_in_the_log(
    gateway: Running, node: ScriptedNode, sandbox: str, lines: io.StringIO
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "100000"])
        socket.transport.abort()
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["echo", "x"])
        await talk.state(1)
        await talk.output(1)
    await until(lambda: lines.getvalue().count("ws.session") == 2)
    assert await gateway.metric("channel_held_bytes") == 0
    assert await gateway.metric("channels") == 0
    assert await gateway.metric("sockets") == 0
    errors = [json.loads(line) for line in lines.getvalue().splitlines() if '"error"' in line]
    assert errors == []
