"""A sandbox that is paused and resumed keeps everything, whoever pauses and whatever resumes it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
from node.nodes import NodeHouse, RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import SandboxGone
from sandfleet_common.ids import new_exec_id
from sandfleet_common.messages import MIB
from sandfleet_common.states import State
from sandfleet_common.store import Store

pytestmark = [pytest.mark.root, pytest.mark.integration]


async def pause(node: RunningNode, sandbox: str, wait_seconds: float = 0) -> m.SandboxInfo:
    return await node.ask(s.PAUSE, m.SandboxPause(sandbox_id=sandbox, wait_seconds=wait_seconds))


async def resume(node: RunningNode, sandbox: str) -> m.SandboxInfo:
    return await node.ask(s.RESUME, m.SandboxResume(sandbox_id=sandbox))


def is_frozen(node: RunningNode, sandbox: str) -> bool:
    """Ask the kernel."""
    return "frozen 1" in Path(node.node.cgroups.v2_dir(sandbox), "cgroup.events").read_text()


async def test_pausing_freezes_and_is_on_record(node: RunningNode, store: Store) -> None:
    sandbox = await node.create(ttl_seconds=500, paused_ttl_seconds=9000)
    before = time.time()
    info = await pause(node, sandbox)
    assert info.state is State.PAUSED
    assert is_frozen(node, sandbox)
    assert info.paused_at is not None
    assert info.paused_at >= before
    assert info.ttl_left_seconds is not None
    assert 0 < info.ttl_left_seconds <= 500
    assert info.expires_at == pytest.approx(info.paused_at + 9000)
    assert await store.get(sandbox) == info
    again = await pause(node, sandbox)
    assert again == info
    back = await resume(node, sandbox)
    assert back.state is State.RUNNING
    assert (back.paused_at, back.ttl_left_seconds) == (None, None)
    assert back.expires_at is not None
    assert back.expires_at >= before + info.ttl_left_seconds
    assert not is_frozen(node, sandbox)
    assert (await resume(node, sandbox)).version == back.version
    assert output(await node.run(sandbox, "echo", "hi")) == b"hi\n"


Operation = Callable[[RunningNode, str, str], Awaitable[object]]

OPERATIONS: dict[str, Operation] = {
    "extend": lambda n, i, _: n.ask(s.EXTEND, m.SandboxExtend(sandbox_id=i, ttl_seconds=100)),
    "exec": lambda n, i, _: n.run(i, "true"),
    "signal": lambda n, i, e: n.ask(
        s.EXEC_SIGNAL, m.ExecSignal(sandbox_id=i, exec_id=e, signal=18)
    ),
    "ps": lambda n, i, _: n.ask(s.PROCESS_LIST, m.ProcessList(sandbox_id=i)),
    "stat": lambda n, i, _: n.ask(s.FILE_STAT, m.FileStat(sandbox_id=i, path="/tmp")),
    "list": lambda n, i, _: n.ask(s.FILE_LIST, m.FileList(sandbox_id=i, path="/")),
    "write": lambda n, i, _: n.ask(
        s.FILE_WRITE,
        m.FileWrite(sandbox_id=i, path="/tmp/x", upload="u1", position=0, data=b"x", end=True),
    ),
    "mkdir": lambda n, i, _: n.ask(s.FILE_MKDIR, m.FileMakeDir(sandbox_id=i, path="/tmp/d")),
    "wait": lambda n, i, e: n.ask(
        s.EXEC_WAIT, m.ExecWait(sandbox_id=i, exec_id=e, wait_seconds=0.01)
    ),
    "attach": lambda n, i, e: n.ask(
        s.EXEC_ATTACH,
        m.ExecAttach(sandbox_id=i, exec_id=e, stream="st1", deliver="_INBOX.admin.x", position=0),
    ),
    "resume": lambda n, i, _: resume(n, i),
}


@pytest.mark.parametrize("name", OPERATIONS)
async def test_an_operation_resumes_a_paused_sandbox(node: RunningNode, name: str) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    await node.run(sandbox, "sleep", "100", exec_id=exec_id, wait_seconds=0)
    await pause(node, sandbox)
    await OPERATIONS[name](node, sandbox, exec_id)
    assert node.node.sandboxes.get(sandbox).state is State.RUNNING
    while is_frozen(node, sandbox):  # the kernel says so until every process has gone on
        await asyncio.sleep(0.01)


async def test_reading_what_is_known_resumes_nothing(node: RunningNode) -> None:
    sandbox = await node.create()
    exec_id = new_exec_id()
    await node.run(sandbox, "echo", "said", exec_id=exec_id)
    await pause(node, sandbox)
    page = await node.ask(s.EXEC_LIST, m.ExecList(sandbox_id=sandbox))
    assert [c.exec_id for c in page.commands] == [exec_id]
    assert output(await node.wait(sandbox, exec_id)) == b"said\n"
    await node.ask(s.USAGE, m.SandboxUsageGet(sandbox_id=sandbox))
    assert is_frozen(node, sandbox)


async def test_stopping_a_paused_sandbox_ends_it(node: RunningNode) -> None:
    sandbox = await node.create()
    await node.run(sandbox, "sleep", "100", wait_seconds=0)
    await pause(node, sandbox)
    ended = await node.stop(sandbox)
    assert (ended.state, ended.reason) == (State.STOPPED, "stopped by its user")
    assert ended.paused_at is None
    with pytest.raises(SandboxGone):
        await resume(node, sandbox)


async def test_memory_comes_back_to_the_machine(house: NodeHouse) -> None:
    async with house.running(swap_bytes=256 * MIB) as node:
        sandbox = await node.create(resources=m.Resources(memory_bytes=256 * MIB))
        script = "x=$(dd if=/dev/zero bs=1M count=48 2>/dev/null | tr '\\0' x); echo ok; read y"
        exec_id = new_exec_id()
        await node.run(
            sandbox, "sh", "-c", script, exec_id=exec_id, stdin_open=True, wait_seconds=0
        )
        await _said(node, sandbox, exec_id, b"ok\n")
        live = node.node.sandboxes.get(sandbox)
        group = node.node.pausing.group(live)
        before = group.usage()
        assert before > 48 * MIB
        await pause(node, sandbox, wait_seconds=30)
        assert node.node.swap.problem is None
        assert group.usage() < before // 10
        assert live.turn.given_bytes > 40 * MIB
        await resume(node, sandbox)
        body = m.ExecSignal(sandbox_id=sandbox, exec_id=exec_id, signal=15)
        await node.ask(s.EXEC_SIGNAL, body)
        assert (await node.wait(sandbox, exec_id)).signal == 15


async def _said(node: RunningNode, sandbox: str, exec_id: str, text: bytes) -> None:
    for _ in range(500):
        state = await node.ask(s.EXEC_WAIT, m.ExecWait(sandbox_id=sandbox, exec_id=exec_id))
        if text in output(state):
            return
        await asyncio.sleep(0.02)
    pytest.fail(f"the command did not say {text!r}")
