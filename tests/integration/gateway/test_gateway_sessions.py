"""WebSocket sessions: commands, credit, and coming back."""

from __future__ import annotations

import asyncio
import io
from pathlib import Path

import pytest
from running_gateway import (
    NODE,
    Running,
    ScriptedScheduler,
    Talk,
    running_gateway,
    until,
)
from scripted_commands import ScriptedNode, pattern
from servers import Servers

from sandfleet_common import messages as m
from sandfleet_common.logs import Logger
from sandfleet_common.states import State
from sandfleet_common.streams import Flag, Kind, StreamFrame

pytestmark = pytest.mark.integration

WINDOW = 65_536


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
