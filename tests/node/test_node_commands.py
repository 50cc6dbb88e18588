"""Commands on a real node: arguments, input, output, limits, streams."""

from __future__ import annotations

import asyncio
import signal

import pytest
from node.nodes import NodeHouse, RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest, Conflict, NotFound, SandboxGone, SandfleetError
from sandfleet_common.ids import new_exec_id, new_ulid
from sandfleet_common.streams import Flag, Kind, StreamFrame

pytestmark = [pytest.mark.root, pytest.mark.integration]


async def test_environment_user_and_directory_come_from_all_three_levels(
    node: RunningNode,
) -> None:
    sandbox = await node.create(env={"FROM_SPEC": "1", "BOTH": "spec"}, user="user", workdir="/tmp")
    state = await node.run(sandbox, "sh", "-c", "env; pwd; id -un", env={"BOTH": "command"})
    lines = output(state).decode().splitlines()
    assert {"FROM_ENV=yes", "FROM_SPEC=1", "BOTH=command"} <= set(lines)
    assert lines[-2:] == ["/tmp", "user"]


async def test_a_program_that_does_not_exist_is_named(node: RunningNode) -> None:
    sandbox = await node.create()
    with pytest.raises(NotFound, match="no such program: nonsense"):
        await node.run(sandbox, "nonsense")
    page = await node.ask(s.EXEC_LIST, m.ExecList(sandbox_id=sandbox))
    assert page.commands == []


async def test_the_same_exec_id_runs_once(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    script = "echo x >> /tmp/runs; sleep 0.3; cat /tmp/runs"
    states = await asyncio.gather(
        *(node.run(sandbox, "sh", "-c", script, exec_id=exec_id) for _ in range(3))
    )
    assert [output(state) for state in states] == [b"x\n"] * 3


async def test_input_reaches_the_command(node: RunningNode) -> None:
    sandbox = await node.create()
    data = bytes(range(256)) * 1024
    state = await node.run(sandbox, "cat", stdin=data)
    assert output(state) == data
    assert (state.stdin_bytes, state.stdin_closed) == (len(data), True)


async def test_a_command_without_input_reads_the_end_at_once(node: RunningNode) -> None:
    sandbox = await node.create()
    state = await node.run(sandbox, "cat")
    assert (state.exit_code, output(state)) == (0, b"")


async def test_a_command_out_of_time_is_killed_and_keeps_its_output(node: RunningNode) -> None:
    sandbox = await node.create()
    state = await node.run(
        sandbox, "sh", "-c", "echo before; sleep 60 & sleep 60", timeout_seconds=0.3
    )
    assert (state.timed_out, output(state)) == (True, b"before\n")
    processes = await node.ask(s.PROCESS_LIST, m.ProcessList(sandbox_id=sandbox))
    assert [p.pid for p in processes.processes if p.argv[:1] == ["sleep"]] == []


async def test_output_beyond_the_limit_is_counted_and_dropped(node: RunningNode) -> None:
    sandbox = await node.create()
    state = await node.run(sandbox, "sh", "-c", "yes | head -c 300000", output_limit_bytes=100_000)
    assert state.exit_code == 0
    assert (state.output_bytes, state.dropped_bytes) == (100_000, 200_000)
    assert output(state) == b"y\n" * 50_000


async def test_a_signal_ends_a_command_and_a_tree_ends_with_it(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    script = "sleep 61 & sleep 62"
    await node.run(sandbox, "sh", "-c", script, exec_id=exec_id, wait_seconds=0)
    await node.ask(
        s.EXEC_SIGNAL, m.ExecSignal(sandbox_id=sandbox, exec_id=exec_id, signal=9, tree=True)
    )
    state = await node.wait(sandbox, exec_id)
    assert (state.exit_code, state.signal, state.reason) == (None, signal.SIGKILL, None)


async def test_an_unknown_command_is_not_found(node: RunningNode) -> None:
    sandbox = await node.create()
    with pytest.raises(NotFound, match="no command ex-none"):
        await node.wait(sandbox, "ex-none")


async def test_arguments_that_do_not_fit_are_refused_with_a_way_out(node: RunningNode) -> None:
    sandbox = await node.create()
    with pytest.raises(BadRequest, match="pass a file or stdin instead"):
        await node.run(sandbox, "echo", "x" * 70_000)


async def test_waiting_ends_when_the_sandbox_does(node: RunningNode) -> None:
    sandbox = await node.create()
    waiting = asyncio.gather(node.run(sandbox, "sleep", "60"), return_exceptions=True)
    await asyncio.sleep(0.3)
    await node.stop(sandbox)
    error = (await waiting)[0]
    assert isinstance(error, SandboxGone)
    assert "stopped by its user" in error.message


async def test_old_commands_give_way_to_new_ones(house: NodeHouse) -> None:
    async with house.running(commands_kept=3) as node:
        sandbox = await node.create()
        first = await node.run(sandbox, "echo", "first")
        for _ in range(3):
            await node.run(sandbox, "true")
        with pytest.raises(NotFound, match="no longer on record"):
            await node.wait(sandbox, first.exec_id)
        with pytest.raises(Conflict, match="fresh exec id"):
            await node.run(sandbox, "echo", "again", exec_id=first.exec_id)
        page = await node.ask(s.EXEC_LIST, m.ExecList(sandbox_id=sandbox))
        assert [command.argv for command in page.commands] == [["true"]] * 3


async def test_processes_are_listed_with_their_command(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    await node.run(sandbox, "sleep", "63", exec_id=exec_id, wait_seconds=0)
    page = await node.ask(s.PROCESS_LIST, m.ProcessList(sandbox_id=sandbox))
    assert [(p.exec_id, p.argv) for p in page.processes if p.pid != 1] == [
        (exec_id, ["sleep", "63"])
    ]


class Client:
    """A client of one stream."""

    def __init__(self, node: RunningNode, sandbox: str, exec_id: str) -> None:
        self._node = node
        self._sandbox = sandbox
        self._exec_id = exec_id
        self.frames: list[StreamFrame] = []
        self.token = new_ulid()
        self.is_over = asyncio.Event()

    async def attach(self, position: int = 0, window_bytes: int = m.MIB) -> m.ExecState:
        """Open the stream."""
        inbox = self._node.bus.new_inbox()
        await self._node.bus.subscribe_raw(inbox, self._hear)
        body = m.ExecAttach(
            sandbox_id=self._sandbox,
            exec_id=self._exec_id,
            stream=self.token,
            deliver=inbox,
            position=position,
            window_bytes=window_bytes,
        )
        return await self._node.ask(s.EXEC_ATTACH, body)

    async def _hear(self, subject: str, payload: bytes) -> None:
        frame = StreamFrame.decode(payload)
        self.frames.append(frame)
        if frame.kind in (Kind.END, Kind.GONE):
            self.is_over.set()

    async def send(self, kind: Kind, position: int, payload: bytes = b"", flags: int = 0) -> None:
        """Send one frame."""
        subject = s.io_subject(self._node.name, self.token)
        await self._node.bus.publish_raw(
            subject, StreamFrame(kind, position, payload, Flag(flags)).encode()
        )

    def data(self) -> bytes:
        """Return the output that came, and check that it came once and in order."""
        whole = b""
        start = next((f.position for f in self.frames if f.kind is Kind.DATA), 0)
        for frame in self.frames:
            if frame.kind is Kind.DATA:
                assert frame.position == start + len(whole)
                whole += frame.payload
        return whole

    async def until(self, size: int) -> None:
        """Wait until so much output has come."""
        for _ in range(500):
            if len(self.data()) >= size:
                return
            await asyncio.sleep(0.02)
        pytest.fail(f"only {len(self.data())} of {size} bytes came")


async def test_a_stream_carries_input_and_output_both_ways(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    await node.run(sandbox, "cat", exec_id=exec_id, stdin_open=True, wait_seconds=0)
    client = Client(node, sandbox, exec_id)
    await client.attach()
    await client.send(Kind.STDIN, 0, b"hello ")
    await client.send(Kind.STDIN, 0, b"hello ")
    await client.send(Kind.STDIN, 3, b"lo world", Flag.CLOSED)
    async with asyncio.timeout(10):
        await client.is_over.wait()
    assert client.data() == b"hello world"
    state = m.ExecState.decode(client.frames[-1].payload)
    assert (state.state, state.exit_code, state.stdin_bytes) == ("exited", 0, 11)
    taken = [f.position for f in client.frames if f.kind is Kind.INPUT]
    assert taken[-1] == 11


async def test_input_with_a_gap_is_not_taken_and_the_client_is_told(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    await node.run(sandbox, "cat", exec_id=exec_id, stdin_open=True, wait_seconds=0)
    client = Client(node, sandbox, exec_id)
    await client.attach()
    await client.send(Kind.STDIN, 5, b"too far")
    for _ in range(200):
        if any(f.kind is Kind.INPUT for f in client.frames):
            break
        await asyncio.sleep(0.02)
    assert [f.position for f in client.frames if f.kind is Kind.INPUT] == [0]


async def test_a_client_gets_no_more_than_it_has_room_for(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    await node.run(sandbox, "seq", "1", "40000", exec_id=exec_id)
    client = Client(node, sandbox, exec_id)
    state = await client.attach(window_bytes=10_000)
    await client.until(10_000)
    await asyncio.sleep(0.2)
    assert len(client.data()) == 10_000
    await client.send(Kind.TAKEN, 10_000)
    await client.until(20_000)
    await asyncio.sleep(0.2)
    assert len(client.data()) == 20_000
    while not client.is_over.is_set():
        await client.send(Kind.TAKEN, len(client.data()))
        await asyncio.sleep(0.01)
    assert client.data() == b"".join(b"%d\n" % n for n in range(1, 40_001))
    assert state.output_bytes == len(client.data())


async def test_a_client_that_attaches_again_gets_what_it_missed(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    script = "for i in 1 2 3 4 5 6 7 8 9; do echo $i; sleep 0.05; done"
    await node.run(sandbox, "sh", "-c", script, exec_id=exec_id, wait_seconds=0)
    first = Client(node, sandbox, exec_id)
    await first.attach()
    await first.until(6)
    await first.send(Kind.DETACH, 0)
    second = Client(node, sandbox, exec_id)
    await second.attach(position=4)
    async with asyncio.timeout(10):
        await second.is_over.wait()
    assert second.data() == b"3\n4\n5\n6\n7\n8\n9\n"


async def test_a_terminal_echoes_resizes_and_ends(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    await node.run(sandbox, "sh", exec_id=exec_id, pty=m.PtySize(rows=30, cols=90), wait_seconds=0)
    client = Client(node, sandbox, exec_id)
    await client.attach()
    body = m.ExecResize(sandbox_id=sandbox, exec_id=exec_id, size=m.PtySize(rows=41, cols=77))
    await node.ask(s.EXEC_RESIZE, body)
    await client.send(Kind.STDIN, 0, b"echo $((6*7)); exit 5\n")
    async with asyncio.timeout(10):
        await client.is_over.wait()
    assert b"\r\n42\r\n" in client.data()
    assert m.ExecState.decode(client.frames[-1].payload).exit_code == 5


async def test_streams_of_an_ended_sandbox_say_why_they_end(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    await node.run(sandbox, "sleep", "64", exec_id=exec_id, wait_seconds=0)
    client = Client(node, sandbox, exec_id)
    await client.attach()
    await node.stop(sandbox)
    async with asyncio.timeout(10):
        await client.is_over.wait()
    assert client.frames[-1].kind is Kind.GONE
    error = m.Failure.decode(client.frames[-1].payload).to_error()
    assert isinstance(error, SandfleetError)
    assert "stopped by its user" in error.message


async def test_a_stream_to_anything_but_an_inbox_is_refused(node: RunningNode) -> None:
    sandbox = await node.create()
    state = await node.run(sandbox, "true")
    body = m.ExecAttach(
        sandbox_id=sandbox, exec_id=state.exec_id, stream="x", deliver="sf.v1.node.heartbeat"
    )
    with pytest.raises(BadRequest, match="must be an inbox"):
        await node.ask(s.EXEC_ATTACH, body)
