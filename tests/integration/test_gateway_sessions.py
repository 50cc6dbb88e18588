"""WebSocket sessions of the gateway, in front of real NATS and a scripted node."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from running_gateway import (
    KEY,
    Running,
    ScriptedScheduler,
    Talk,
    running_gateway,
    until,
)
from scripted_commands import ScriptedNode, pattern
from servers import Connect, Servers
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.typing import Subprotocol

from sandfleet_common import messages as m
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.logs import Logger
from sandfleet_common.routes import WS_CHANNEL
from sandfleet_common.states import State
from sandfleet_common.streams import STDIN_WINDOW_BYTES, Flag, Kind, StreamFrame

pytestmark = pytest.mark.integration

NODE = "n1"
WINDOW = 65_536


@pytest_asyncio.fixture
async def scheduler(connect: Connect) -> AsyncGenerator[ScriptedScheduler]:
    async with ScriptedScheduler.serve(await connect("scheduler")) as scheduler:
        yield scheduler


@pytest_asyncio.fixture
async def node(connect: Connect) -> AsyncGenerator[ScriptedNode]:
    async with ScriptedNode.serve(await connect("node"), NODE) as node:
        yield node


@pytest.fixture
def lines() -> io.StringIO:
    """Return what the gateway logs."""
    return io.StringIO()


@pytest_asyncio.fixture
async def gateway(
    servers: Servers, tmp_path: Path, lines: io.StringIO, scheduler: ScriptedScheduler
) -> AsyncGenerator[Running]:
    options: dict[str, Any] = {"quiet_seconds": 0.5, "channels_per_socket": 4, "sockets_per_key": 3}
    async with running_gateway(
        servers, tmp_path, Logger("gateway", out=lines), **options
    ) as gateway:
        yield gateway


@pytest.fixture
def sandbox() -> str:
    return new_sandbox_id(NODE)


# ------------------------------------------------------------------- commands


async def test_a_command_is_started_and_its_output_comes(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 7, argv=["echo", "hello"], exec_id="e1")
        state = await talk.state(7)
        assert (state.exec_id, state.sandbox_id, state.argv) == ("e1", sandbox, ["echo", "hello"])
        frames: list[StreamFrame] = []
        while not frames or frames[-1].kind is not Kind.END:
            channel, frame = await talk.next()
            assert channel == 7
            assert isinstance(frame, StreamFrame)
            frames.append(frame)
        assert [(f.payload, f.flags, f.position) for f in frames[:-1]] == [
            (b"hello", Flag(0), 0),
            (b"!", Flag.STDERR, 5),
        ]
        assert m.ExecState.decode(frames[-1].payload).exit_code == 0


async def test_input_goes_to_the_command_and_is_acknowledged(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["cat"], stdin_open=True)
        # Not waiting for the answer is fine: the input is kept until the command is there.
        await talk.frame(1, Kind.STDIN, 0, b"one ")
        await talk.frame(1, Kind.STDIN, 4, b"two", Flag.CLOSED)
        await talk.state(1)
        assert await talk.output(1) == b"one two"


async def test_signals_and_sizes_reach_the_command(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["sleep"], exec_id="e1", pty={"rows": 5, "cols": 9})
        await talk.state(1)
        await talk.command("resize", 1, size={"rows": 30, "cols": 100})
        await talk.command("signal", 1, signal=2)
        assert await talk.output(1) == b""
        assert node.commands["e1"].sizes == [(30, 100)]
        assert node.commands["e1"].signal == 2


async def test_commands_share_a_session_and_take_turns(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "3000000"])
        await talk.command("start", 2, argv=["echo", "quick"])
        got = {1: bytearray(), 2: bytearray()}
        order: list[int] = []
        while len(order) < 2:
            channel, frame = await talk.next()
            if not isinstance(frame, StreamFrame):
                continue
            if frame.kind is Kind.END:
                order.append(channel)
            got[channel] += frame.payload if frame.kind is Kind.DATA else b""
            await talk.frame(channel, Kind.TAKEN, len(got[channel]))
        assert order == [2, 1], "the quick one did not wait for the loud one"
        assert (bytes(got[1]), bytes(got[2])) == (pattern(0, 3_000_000), b"quick!")


# --------------------------------------------------------------------- credit


async def test_a_slow_client_slows_the_command_and_nothing_piles_up(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    node.commands.clear()
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "1000000"], exec_id="e1")
        await talk.state(1)
        await talk.command("detach", 1)
        await talk.command("attach", 2, exec_id="e1", position=0, window_bytes=WINDOW)
        while (await talk.next())[0] != 2:
            pass
        first = await talk.output(2, until=WINDOW, takes=False)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(1.2):
                await talk.next()  # nothing comes while nothing was taken
        stream = [st for st in node.streams.values() if st.window_bytes == WINDOW][-1]
        assert stream.position == WINDOW
        await talk.frame(2, Kind.TAKEN, WINDOW)
        rest = await talk.output(2, WINDOW)
        assert first + rest == pattern(0, 1_000_000)
        assert stream.most_under_way <= WINDOW


async def test_credit_for_what_was_never_sent_opens_nothing(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox, max_queue=4) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "40000000"], exec_id="e1")
        await talk.state(1)
        # The client claims to have all of it and reads nothing: no window opens for it.
        for _ in range(50):
            await talk.frame(1, Kind.TAKEN, 40_000_000)
            await asyncio.sleep(0.01)
        stream = next(iter(node.streams.values()))
        # Kernel buffers hold some megabytes, the gateway no more than a window.
        assert stream.position < 30_000_000
        assert 0 < await gateway.metric("channel_held_bytes") <= stream.window_bytes
        assert stream.most_under_way <= stream.window_bytes
        socket.transport.abort()


async def test_a_node_that_ignores_credit_is_cut_off(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    node.ignores_credit = True
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "4000000"])
        await talk.state(1)
        while True:
            _, frame = await talk.next()
            if isinstance(frame, StreamFrame) and frame.kind is Kind.GONE:
                break
        assert m.Failure.decode(frame.payload).code == "internal"


# ------------------------------------------------------------------ coming back


async def test_a_client_that_comes_back_gets_what_it_missed_once(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    whole = bytearray()
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "2000000"], exec_id="e1")
        await talk.state(1)
        whole += await talk.output(1, until=300_000)
        socket.transport.abort()
    for stop in (900_000, 1_500_001, None):
        async with gateway.session(sandbox) as socket:
            talk = Talk(socket)
            await talk.command("attach", 3, exec_id="e1", position=len(whole))
            await talk.state(3)
            whole += await talk.output(3, len(whole), until=stop)
            if stop is not None:
                socket.transport.abort()
    assert bytes(whole) == pattern(0, 2_000_000)
    starts = [b for b in node.asked if isinstance(b, m.ExecStart)]
    assert len(starts) == 1


async def test_any_replica_serves_any_sandbox(
    servers: Servers, tmp_path: Path, gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "200000"], exec_id="e1")
        await talk.state(1)
        first = await talk.output(1, until=65_536)
    log = Logger("other", out=io.StringIO())
    async with (
        running_gateway(servers, tmp_path, log) as other,
        other.session(sandbox) as socket,
    ):
        talk = Talk(socket)
        await talk.command("attach", 1, exec_id="e1", position=len(first))
        await talk.state(1)
        assert first + await talk.output(1, len(first)) == pattern(0, 200_000)


async def test_lost_frames_are_fetched_again_unseen(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "2000000"], exec_id="e1")
        await talk.state(1)
        whole = await talk.output(1, until=500_000)
        node.lose = 2
        whole += await talk.output(1, len(whole))
        assert whole == pattern(0, 2_000_000)
        assert len(node.attached) > 1


async def test_the_last_frames_lost_are_fetched_again_too(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    node.lose = 1
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["echo", "hello"])
        await talk.state(1)
        assert await talk.output(1) == b"hello!"


async def test_lost_input_is_sent_again(gateway: Running, node: ScriptedNode, sandbox: str) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["cat"], stdin_open=True)
        await talk.state(1)
        node.lose_inputs = 2
        await talk.frame(1, Kind.STDIN, 0, b"lost ")
        await talk.frame(1, Kind.STDIN, 5, b"and found", Flag.CLOSED)
        assert await talk.output(1) == b"lost and found"


async def test_a_node_service_that_starts_anew_is_found_again(
    gateway: Running, node: ScriptedNode, sandbox: str, scheduler: ScriptedScheduler
) -> None:
    scheduler.record(NODE, sandbox_id=sandbox)
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["cat"], stdin_open=True, exec_id="e1")
        await talk.state(1)
        await node.print("e1", b"before ")
        assert await talk.output(1, until=7) == b"before "
        await node.sleep()
        node.commands["e1"].print("stdout", b"meanwhile ")
        await talk.frame(1, Kind.STDIN, 0, b"after")
        await node.wake()
        assert await talk.output(1, 7, until=22) == b"meanwhile after"


async def test_a_restarted_bus_costs_no_byte(
    servers: Servers, gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["flood", "5000000"], exec_id="e1")
        await talk.state(1)
        whole = await talk.output(1, until=1_000_000)
        servers.nats.kill()
        servers.nats.start()
        whole += await talk.output(1, len(whole))
        assert whole == pattern(0, 5_000_000)


async def test_a_dropped_session_detaches_and_the_command_goes_on(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["cat"], stdin_open=True, exec_id="e1")
        await talk.state(1)
        assert len(node.streams) == 1
        socket.transport.abort()
    await until(lambda: not node.streams)
    assert not node.commands["e1"].is_over


async def test_a_sandbox_that_ends_ends_its_channels(
    gateway: Running, node: ScriptedNode, sandbox: str, scheduler: ScriptedScheduler
) -> None:
    async with gateway.session(sandbox) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["sleep"])
        await talk.state(1)
        await node.sleep()
        scheduler.record(NODE, sandbox_id=sandbox, state=State.STOPPED, reason="its time was up")
        failure = await talk.error(1)
        assert (failure.code, "its time was up" in failure.message) == ("sandbox_gone", True)
        _, frame = await talk.next()
        assert isinstance(frame, StreamFrame)
        assert frame.kind is Kind.GONE


# --------------------------------------------------------------------- mistakes


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


# ----------------------------------------------------------------------- limits


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


async def test_an_answer_that_nobody_reads_holds_up_the_asker_only(
    gateway: Running, node: ScriptedNode, sandbox: str
) -> None:
    async with gateway.session(sandbox, max_queue=1) as silent, gateway.session(sandbox) as socket:

        async def ask_for_ever() -> None:
            while True:
                await silent.send(json.dumps({"type": "signal", "channel": 5, "body": {}}))

        with pytest.raises(TimeoutError):  # it is held up at last
            async with asyncio.timeout(2):
                await ask_for_ever()
        talk = Talk(socket)
        await talk.command("start", 1, argv=["echo", "hello"])
        await talk.state(1)
        assert await talk.output(1) == b"hello!"
        silent.transport.abort()


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
