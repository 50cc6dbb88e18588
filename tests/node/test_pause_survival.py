"""What a sandbox holds survives many pauses, a killed node service, dates and races."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from node.nodes import NodeHouse, RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import NotFound, SandboxGone, SandfleetError
from sandfleet_common.ids import new_exec_id, new_sandbox_id
from sandfleet_common.messages import MIB
from sandfleet_common.states import State
from sandfleet_common.store import Store
from sandfleet_common.streams import Kind, StreamFrame
from sandfleet_common.subjects import io_subject

pytestmark = [pytest.mark.root, pytest.mark.integration]

SHELL = """cd /tmp; exec 3<>kept; i=0
while read word; do i=$((i+1)); echo $i >&3; echo "$word $i $PWD $(test -t 0 && echo tty)"; done"""
"""Holds an open file, a directory, a terminal and a counter, and says so for every line."""


async def pause(node: RunningNode, sandbox: str, wait_seconds: float = 0) -> m.SandboxInfo:
    return await node.ask(s.PAUSE, m.SandboxPause(sandbox_id=sandbox, wait_seconds=wait_seconds))


async def resume(node: RunningNode, sandbox: str) -> m.SandboxInfo:
    return await node.ask(s.RESUME, m.SandboxResume(sandbox_id=sandbox))


class Terminal:
    """A command on a terminal, and a client of its stream."""

    def __init__(self, node: RunningNode, sandbox: str) -> None:
        self._node = node
        self._sandbox = sandbox
        self._said = b""
        self._sent = 0
        self._more = asyncio.Event()
        self.exec_id = new_exec_id()

    async def open(self, script: str) -> None:
        """Start the command and attach to it."""
        body = m.ExecStart(
            sandbox_id=self._sandbox,
            exec_id=self.exec_id,
            argv=["sh", "-c", script],
            pty=m.PtySize(rows=24, cols=80),
            stdin_open=True,
        )
        await self._node.ask(s.EXEC_START, body)
        inbox = self._node.bus.new_inbox()
        await self._node.bus.subscribe_raw(inbox, self._on_frame)
        attach = m.ExecAttach(
            sandbox_id=self._sandbox, exec_id=self.exec_id, stream="term", deliver=inbox
        )
        await self._node.ask(s.EXEC_ATTACH, attach)

    async def _on_frame(self, subject: str, payload: bytes) -> None:
        frame = StreamFrame.decode(payload)
        if frame.kind is Kind.DATA:
            self._said += frame.payload
            taken = StreamFrame(Kind.TAKEN, len(self._said), b"")
            await self._publish(taken)
            self._more.set()

    async def _publish(self, frame: StreamFrame) -> None:
        await self._node.bus.publish_raw(io_subject(self._node.name, "term"), frame.encode())

    async def type(self, line: str, answer: str) -> None:
        """Send a line, and wait for what the command says to it."""
        data = f"{line}\n".encode()
        await self._publish(StreamFrame(Kind.STDIN, self._sent, data))
        self._sent += len(data)
        async with asyncio.timeout(20):
            while answer.encode() not in self._said:
                self._more.clear()
                await self._more.wait()


async def test_twenty_pauses_keep_a_file_a_directory_a_terminal_and_a_counter(
    house: NodeHouse,
) -> None:
    async with house.running(swap_bytes=256 * MIB) as node:
        sandbox = await node.create()
        terminal = Terminal(node, sandbox)
        await terminal.open(SHELL)
        for number in range(1, 21):
            await terminal.type(f"word{number}", f"word{number} {number} /tmp tty")
            paused = await pause(node, sandbox, wait_seconds=10 * (number % 2))
            assert paused.state is State.PAUSED
            if number % 3 == 0:
                await resume(node, sandbox)
        kept = await node.run(sandbox, "cat", "/tmp/kept")
        assert output(kept).split() == [b"%d" % number for number in range(1, 21)]


async def test_a_time_limit_does_not_count_a_pause(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    await node.run(
        sandbox, "sh", "-c", "read x; exit 3", exec_id=exec_id, stdin_open=True,
        timeout_seconds=1.5, wait_seconds=0,
    )  # fmt: skip
    await pause(node, sandbox)
    await asyncio.sleep(1.6)
    await node.ask(s.EXEC_SIGNAL, m.ExecSignal(sandbox_id=sandbox, exec_id=exec_id, signal=15))
    state = await node.wait(sandbox, exec_id)
    assert (state.timed_out, state.signal) == (False, 15)


# ---------------------------------------------------------------- killed in between


def _edit(house: NodeHouse, sandbox: str, **fields: Any) -> None:
    path = house.state_dir / "node" / house.name / "sandboxes" / sandbox / "spec.json"
    spec = json.loads(path.read_text())
    info = json.loads(spec["info"]) | fields
    path.write_text(json.dumps(spec | {"info": json.dumps(info)}))


def _group(house: NodeHouse, sandbox: str) -> Path:
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    root = next(line.split()[1] for line in mounts if line.split()[2] == "cgroup2")
    return Path(root, "sandfleet", house.name, sandbox)


def _is_frozen(house: NodeHouse, sandbox: str) -> bool:
    return "frozen 1" in (_group(house, sandbox) / "cgroup.events").read_text()


async def test_a_service_killed_after_freezing_and_before_recording_leaves_a_sandbox_that_runs(
    house: NodeHouse,
) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        await process.kill()
        (_group(house, sandbox) / "cgroup.freeze").write_text("1")
        await process.start()
        assert not _is_frozen(house, sandbox)
        assert (await node.run(sandbox, "true")).exit_code == 0


async def test_a_service_killed_after_recording_a_resumption_leaves_a_sandbox_that_runs(
    house: NodeHouse,
) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create(ttl_seconds=500)
        paused = await pause(node, sandbox)
        await process.kill()
        _edit(house, sandbox, state="running", version=paused.version + 1, paused_at=None)
        await process.start()
        assert not _is_frozen(house, sandbox)
        assert (await node.run(sandbox, "true")).exit_code == 0


async def test_a_sandbox_on_record_as_paused_stands_still_whatever_was_left(
    house: NodeHouse, store: Store
) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        paused = await pause(node, sandbox)
        await process.kill()
        (_group(house, sandbox) / "cgroup.freeze").write_text("0")
        await process.start()
        assert _is_frozen(house, sandbox)
        assert await store.get(sandbox) == paused
        assert (await resume(node, sandbox)).state is State.RUNNING
        assert (await node.run(sandbox, "true")).exit_code == 0


async def test_a_command_goes_on_after_a_pause_that_outlived_its_service(
    house: NodeHouse,
) -> None:
    async with house.process(swap_bytes=str(256 * MIB)) as (process, node):
        sandbox = await node.create()
        exec_id = new_exec_id()
        script = "i=0; while [ $i -lt 40 ]; do i=$((i+1)); echo $i; sleep 0.02; done; exit 7"
        await node.run(sandbox, "sh", "-c", script, exec_id=exec_id, wait_seconds=0)
        await pause(node, sandbox)
        for _ in range(2):
            await process.kill()
            await process.start()
            page = await node.ask(s.EXEC_LIST, m.ExecList(sandbox_id=sandbox))
            assert [c.state for c in page.commands] == ["running"]
            assert _is_frozen(house, sandbox)
        state = await node.wait(sandbox, exec_id)
        assert (state.state, state.exit_code) == ("exited", 7)
        assert output(state) == b"".join(b"%d\n" % n for n in range(1, 41))


async def test_kills_at_any_moment_of_pausing_and_resuming_lose_nothing(house: NodeHouse) -> None:
    async with house.process(swap_bytes=str(256 * MIB)) as (process, node):
        sandbox = await node.create()
        exec_id = new_exec_id()
        await node.run(
            sandbox, "sh", "-c", "x=$(seq 1 200000); while true; do echo; sleep 0.05; done",
            exec_id=exec_id, wait_seconds=0,
        )  # fmt: skip
        for step in range(8):
            action = pause if step % 2 else resume
            asked = asyncio.ensure_future(action(node, sandbox))
            await asyncio.sleep(0.0015 * step)
            await process.kill()
            asked.cancel()
            with suppress(asyncio.CancelledError, SandfleetError):
                await asked
            await process.start()
            listed = await node.ask(s.EXEC_LIST, m.ExecList(sandbox_id=sandbox))
            assert [c.state for c in listed.commands] == ["running"]
        assert (await node.run(sandbox, "true")).exit_code == 0
        assert not _is_frozen(house, sandbox)


async def test_a_stopped_node_leaves_no_swap_file_in_use(house: NodeHouse) -> None:
    async with house.process(swap_bytes=str(256 * MIB)) as (process, node):
        sandbox = await node.create()
        await node.run(
            sandbox, "sh", "-c", "x=$(seq 1 300000); read y", stdin_open=True, wait_seconds=0
        )
        await pause(node, sandbox, wait_seconds=20)
        await process.kill()
        swap = house.state_dir / "node" / house.name / "swap"
        ours = str(swap.resolve()) in _swaps()
        house.clean()
        assert not swap.exists()
        assert str(swap) not in _swaps()
        if not ours:
            pytest.skip("the machine had swap of its own already, so the node made none")


# ------------------------------------------------------------------- dates


async def test_an_idle_sandbox_pauses_instead_of_ending_if_it_wants_to(node: RunningNode) -> None:
    sandbox = await node.create(idle_seconds=0.3, idle_action="pause", paused_ttl_seconds=900)
    await _until(lambda: node.node.sandboxes.get(sandbox).state is State.PAUSED)
    assert (await node.run(sandbox, "true")).exit_code == 0
    await _until(lambda: node.node.sandboxes.get(sandbox).state is State.PAUSED)


async def test_a_sandbox_that_was_paused_for_too_long_ends(node: RunningNode) -> None:
    sandbox = await node.create(paused_ttl_seconds=0.3)
    await pause(node, sandbox)
    ended = await node.until_gone(sandbox)
    assert (ended.state, ended.reason) == (State.STOPPED, "it was paused for too long")


async def test_a_time_to_live_stands_still_while_paused(node: RunningNode) -> None:
    sandbox = await node.create(ttl_seconds=2, paused_ttl_seconds=None)
    info = await pause(node, sandbox)
    assert info.expires_at is None
    await asyncio.sleep(2.1)
    back = await resume(node, sandbox)
    assert back.state is State.RUNNING
    ended = await node.until_gone(sandbox)
    assert ended.reason == "its time to live is over"


# ------------------------------------------------------------------- races


async def test_whatever_happens_at_once_leaves_one_state(node: RunningNode) -> None:
    sandbox = await node.create()
    requests: list[Callable[[], Awaitable[object]]] = [
        lambda: pause(node, sandbox),
        lambda: node.run(sandbox, "echo", "x"),
        lambda: resume(node, sandbox),
        lambda: pause(node, sandbox),
        lambda: resume(node, sandbox),
        lambda: node.ask(s.FILE_LIST, m.FileList(sandbox_id=sandbox, path="/")),
    ]
    for turn in range(6):
        order = requests[turn:] + requests[:turn]
        await asyncio.gather(*(each() for each in order))
        state = node.node.sandboxes.get(sandbox).state
        assert (state is State.PAUSED) == node.node.pausing._freezer.is_frozen(sandbox)
    assert output(await node.run(sandbox, "echo", "sound")) == b"sound\n"
    assert node.node.sandboxes.get(sandbox).uses == 0


async def test_a_command_that_starts_while_it_is_paused_runs(node: RunningNode) -> None:
    sandbox = await node.create()
    for _ in range(10):
        _, state = await asyncio.gather(
            pause(node, sandbox), node.run(sandbox, "sh", "-c", "echo ran")
        )
        assert (state.exit_code, output(state)) == (0, b"ran\n")


async def test_a_stop_while_it_is_pausing_wins(node: RunningNode) -> None:
    for order in (True, False):
        sandbox = await node.create()
        work = [pause(node, sandbox), node.stop(sandbox)]
        results = await asyncio.gather(*(work if order else work[::-1]), return_exceptions=True)
        assert all(isinstance(r, (m.SandboxInfo, SandboxGone)) for r in results), results
        ended = await node.until_gone(sandbox)
        assert ended.state is State.STOPPED


async def test_a_time_to_live_that_ends_while_pausing_ends_it(node: RunningNode) -> None:
    sandbox = await node.create(ttl_seconds=0.2, paused_ttl_seconds=0.2)
    with suppress(SandboxGone, NotFound):
        while True:
            await pause(node, sandbox)
            await asyncio.sleep(0.05)
    ended = await node.until_gone(sandbox)
    assert ended.reason in ("it was paused for too long", "its time to live is over")


# -------------------------------------------------------------------- many


async def test_many_are_paused_resumed_and_stopped_by_one_request(node: RunningNode) -> None:
    ids = [await node.create() for _ in range(6)]
    asked = [*ids, new_sandbox_id(node.name)]
    wanted: tuple[tuple[m.Action, State], ...] = (
        ("pause", State.PAUSED),
        ("resume", State.RUNNING),
    )
    for action, state in wanted:
        acted = await node.ask(s.NODE_ACT, m.NodeAct(action=action, sandbox_ids=asked))
        infos = [o.info for o in acted.outcomes[:-1]]
        assert [i.state for i in infos if i is not None] == [state] * 6
        failure = acted.outcomes[-1].failure
        assert failure is not None
        assert failure.code == "not_found"
    body = m.NodeAct(action="stop", sandbox_ids=ids, reason="the job was cancelled")
    acted = await node.ask(s.NODE_ACT, body)
    assert {o.info.reason for o in acted.outcomes if o.info} == {"the job was cancelled"}
    assert len(node.node.sandboxes) == 0


async def test_need_of_memory_pauses_idle_best_effort_sandboxes_only(house: NodeHouse) -> None:
    async with house.running(swap_bytes=256 * MIB) as node:
        script = "x=$(seq 1 300000); echo ok; read y"
        ids: dict[str, str] = {}
        for name, fields, background in (
            ("latency", {}, True),
            ("busy", {"qos": "best-effort"}, False),
            ("idle", {"qos": "best-effort"}, True),
        ):
            ids[name] = sandbox = await node.create(**fields)
            state = await node.run(
                sandbox, "sh", "-c", script, stdin_open=True, background=background, wait_seconds=0
            )
            await _until_said(node, sandbox, state.exec_id)
        freed = await node.node.pausing.pause_idle(64 * MIB)
        assert freed > MIB
        states = {name: node.node.sandboxes.get(i).state for name, i in ids.items()}
        assert states == {
            "latency": State.RUNNING, "busy": State.RUNNING, "idle": State.PAUSED,
        }  # fmt: skip


async def test_idle_memory_goes_and_the_agent_answers_on(house: NodeHouse) -> None:
    async with house.running(
        swap_bytes=256 * MIB, reclaim_idle_seconds=0.5, reclaim_cpu_cores=1
    ) as node:
        sandbox = await node.create(resources=m.Resources(memory_bytes=512 * MIB))
        script = "x=$(seq 1 4000000); echo ok; read y; echo ${#x}"
        state = await node.run(sandbox, "sh", "-c", script, stdin_open=True, wait_seconds=0)
        await _until_said(node, sandbox, state.exec_id)
        group = node.node.pausing.group(node.node.sandboxes.get(sandbox))
        await _until(lambda: group.swapped() > 8 * MIB)
        assert (await node.run(sandbox, "true")).exit_code == 0
        assert node.node.sandboxes.get(sandbox).state is State.RUNNING


async def test_need_of_memory_takes_what_nobody_touches(house: NodeHouse) -> None:
    async with house.running(swap_bytes=256 * MIB, reclaim_idle_seconds=0) as node:
        sandbox = await node.create(resources=m.Resources(memory_bytes=512 * MIB))
        script = "x=$(seq 1 4000000); echo ok; read y"
        state = await node.run(sandbox, "sh", "-c", script, stdin_open=True, wait_seconds=0)
        await _until_said(node, sandbox, state.exec_id)
        await asyncio.sleep(2.1)
        freed = await node.node.reclaimer.reclaim_idle(1 << 40)
        assert freed > 8 * MIB


async def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        if time.monotonic() > deadline:
            pytest.fail("it did not come about")
        await asyncio.sleep(0.02)


async def _until_said(node: RunningNode, sandbox: str, exec_id: str) -> None:
    for _ in range(1000):
        state = await node.ask(s.EXEC_WAIT, m.ExecWait(sandbox_id=sandbox, exec_id=exec_id))
        if b"ok\n" in output(state):
            return
        await asyncio.sleep(0.02)
    pytest.fail("the command did not say that it is ready")


def _swaps() -> str:
    return Path("/proc/swaps").read_text()
