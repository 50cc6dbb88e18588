"""A sandbox's life on a real node: created, used, ended."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from node.nodes import NodeHouse, RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import NotFound, SandboxGone
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.states import State
from sandfleet_common.store import Store

pytestmark = [pytest.mark.root, pytest.mark.integration]


async def test_a_sandbox_runs_a_command_and_is_stopped(node: RunningNode) -> None:
    sandbox = await node.create()
    state = await node.run(sandbox, "sh", "-c", "echo out; echo err >&2; exit 3")
    assert (state.state, state.exit_code) == ("exited", 3)
    assert output(state, "stdout") == b"out\n"
    assert output(state, "stderr") == b"err\n"
    info = await node.stop(sandbox)
    assert (info.state, info.reason) == ("stopped", "stopped by its user")


async def test_the_same_ids_again_give_the_same_sandboxes(node: RunningNode) -> None:
    items = [node.item() for _ in range(3)]
    first, second = await asyncio.gather(node.order(*items), node.order(*items))
    assert [o.status for o in first] == ["ready"] * 3
    assert [o.info for o in first] == [o.info for o in second]
    assert len(node.node.sandboxes) == 3


async def test_an_ended_sandbox_is_not_created_again(node: RunningNode) -> None:
    item = node.item()
    await node.order(item)
    await node.stop(item.sandbox_id)
    again = (await node.order(item))[0]
    assert again.status == "failed"
    assert again.failure is not None
    assert again.failure.code == "sandbox_gone"


async def test_stopping_twice_says_the_same(node: RunningNode) -> None:
    sandbox = await node.create()
    first, second = await asyncio.gather(node.stop(sandbox), node.stop(sandbox))
    assert first == second == await node.stop(sandbox)


async def test_a_command_on_an_ended_sandbox_says_why_it_ended(node: RunningNode) -> None:
    sandbox = await node.create()
    await node.ask(s.STOP, m.SandboxStop(sandbox_id=sandbox, reason="the episode is over"))
    with pytest.raises(SandboxGone, match="the episode is over") as caught:
        await node.run(sandbox, "true")
    assert caught.value.fields == {
        "state": "stopped",
        "reason": "the episode is over",
        "origin": "user",
    }


async def test_a_sandbox_nobody_knows_is_not_found(node: RunningNode) -> None:
    with pytest.raises(NotFound, match="knows no sandbox"):
        await node.run(new_sandbox_id(node.name), "true")
    with pytest.raises(NotFound, match="belongs to node elsewhere"):
        await node.run(new_sandbox_id("elsewhere"), "true")


async def test_transitions_are_announced_and_recorded(node: RunningNode, store: Store) -> None:
    events: list[m.SandboxEvent] = []

    async def hear(event: m.SandboxEvent) -> None:
        events.append(event)

    await node.bus.listen(s.SANDBOX_EVENT, hear)
    await node.bus.flush()
    sandbox = await node.create()
    running = await store.get(sandbox)
    assert running is not None
    assert running.state is State.RUNNING
    info = await node.stop(sandbox)
    assert await store.get(sandbox) == info
    await node.node.beats.beat()
    await node.bus.flush()
    assert [e.info.state for e in events] == ["running", "stopped"]
    assert events[0].info.version < events[1].info.version
    assert await store.live_on(node.name) == set()


async def test_an_unknown_environment_is_refused_and_nothing_is_made(node: RunningNode) -> None:
    outcome = (await node.order(node.item(environment="nonsense")))[0]
    assert outcome.status == "refused"
    assert outcome.failure is not None
    assert outcome.failure.code == "not_found"
    assert "tiny" in outcome.failure.message
    assert len(node.node.sandboxes) == 0


async def test_a_full_node_refuses_and_the_rest_of_the_batch_is_created(house: NodeHouse) -> None:
    async with house.running(sandboxes_max=2) as node:
        outcomes = await node.order(*(node.item() for _ in range(3)))
        assert [o.status for o in outcomes] == ["ready", "ready", "refused"]
        await node.stop(outcomes[0].sandbox_id)
        assert (await node.order(node.item()))[0].status == "ready"


async def test_a_draining_node_refuses_also_after_a_restart(house: NodeHouse) -> None:
    async with house.running() as node:
        await node.ask(s.NODE_DRAIN, m.NodeDrain())
    async with house.running() as node:
        refused = (await node.order(node.item()))[0]
        assert refused.failure is not None
        assert refused.failure.message == "the node is draining"
        await node.ask(s.NODE_DRAIN, m.NodeDrain(draining=False))
        assert (await node.order(node.item()))[0].status == "ready"


async def test_what_is_not_ready_by_its_deadline_fails_and_is_removed(node: RunningNode) -> None:
    launcher = node.node.keeper.launcher
    os.kill(launcher.pid, signal.SIGSTOP)
    try:
        asked = asyncio.gather(node.order(node.item(deadline_seconds=0.5)))
        await asyncio.sleep(1)
    finally:
        os.kill(launcher.pid, signal.SIGCONT)
    outcome = (await asked)[0][0]
    assert outcome.status == "failed"
    assert outcome.failure is not None
    assert outcome.failure.code == "timeout"
    assert (await node.order(node.item()))[0].status == "ready"
    assert len(node.node.sandboxes) == 1
    assert node.node.cgroups.known() == {sandbox.id for sandbox in node.node.sandboxes}


async def test_a_sandbox_ends_when_its_time_is_over(node: RunningNode) -> None:
    sandbox = await node.create(ttl_seconds=0.3)
    info = await node.until_gone(sandbox)
    assert (info.state, info.reason) == ("stopped", "its time to live is over")


async def test_an_extended_sandbox_lives_on(node: RunningNode) -> None:
    sandbox = await node.create(ttl_seconds=1)
    info = await node.ask(s.EXTEND, m.SandboxExtend(sandbox_id=sandbox, ttl_seconds=3600))
    assert info.expires_at > time.time() + 3000
    await asyncio.sleep(1.2)
    assert (await node.run(sandbox, "true")).exit_code == 0


async def test_a_busy_sandbox_is_not_idle_and_a_background_command_does_not_count(
    node: RunningNode,
) -> None:
    busy = await node.create(idle_seconds=0.5)
    idle = await node.create(idle_seconds=0.5)
    await node.run(busy, "sleep", "60", wait_seconds=0)
    await node.run(idle, "sleep", "60", wait_seconds=0, background=True)
    info = await node.until_gone(idle)
    assert info.reason == "it was idle for 0.5 s"
    await asyncio.sleep(0.6)
    assert node.node.sandboxes.find(busy) is not None


async def test_reading_its_state_does_not_keep_a_sandbox_alive(node: RunningNode) -> None:
    sandbox = await node.create(idle_seconds=0.6)
    with pytest.raises(SandboxGone):
        for _ in range(100):
            await node.ask(s.EXEC_LIST, m.ExecList(sandbox_id=sandbox))
            await node.ask(s.PROCESS_LIST, m.ProcessList(sandbox_id=sandbox))
            await asyncio.sleep(0.1)


async def test_a_sandbox_out_of_memory_says_so(node: RunningNode) -> None:
    sandbox = await node.create(resources=m.Resources(memory_bytes=32 * m.MIB))
    state = await node.run(sandbox, "sh", "-c", "x=a; while true; do x=$x$x; done")
    assert state.signal == signal.SIGKILL or state.exit_code == 137
    assert state.reason == "the kernel killed it: the sandbox was out of memory"
    assert (await node.run(sandbox, "echo", "alive")).exit_code == 0


async def test_a_fork_bomb_meets_its_limit_and_the_node_serves_others(node: RunningNode) -> None:
    bomb = await node.create(resources=m.Resources(pids=32))
    other = await node.create()
    await node.run(bomb, "sh", "-c", "b() { b | b & }; b; sleep 60", wait_seconds=0)
    assert (await node.run(other, "echo", "fine")).exit_code == 0
    assert (await node.stop(bomb)).state == "stopped"


async def test_a_sandbox_whose_first_process_is_killed_fails(node: RunningNode) -> None:
    sandbox = await node.create()
    waiting = asyncio.gather(node.run(sandbox, "sleep", "60"), return_exceptions=True)
    await asyncio.sleep(0.3)
    os.kill(node.node.sandboxes.get(sandbox).pid, signal.SIGKILL)
    info = await node.until_gone(sandbox)
    assert (info.state, info.reason) == ("failed", "its first process was killed by SIGKILL")
    assert isinstance((await waiting)[0], SandboxGone)


async def test_a_launcher_that_dies_fails_its_sandboxes_and_is_replaced(
    node: RunningNode,
) -> None:
    sandboxes = [await node.create() for _ in range(3)]
    os.kill(node.node.keeper.launcher.pid, signal.SIGKILL)
    for sandbox in sandboxes:
        info = await node.until_gone(sandbox)
        assert (info.state, info.reason) == ("failed", "the launcher of its node died")
    fresh = (await node.order(node.item()))[0]
    for _ in range(100):
        if fresh.status == "ready":
            break
        await asyncio.sleep(0.05)
        fresh = (await node.order(node.item()))[0]
    assert fresh.status == "ready"
    assert node.node.cgroups.known() == {fresh.sandbox_id}


async def test_a_service_told_to_stop_all_leaves_nothing(house: NodeHouse) -> None:
    async with house.running(stop_sandboxes_on_exit=True) as node:
        await node.order(*(node.item() for _ in range(5)))
        sandbox = await node.create()
        await node.run(sandbox, "sleep", "1000", wait_seconds=0)
        groups = node.node.cgroups
    _nothing_is_left(house)
    assert groups.known() == set()
    assert not Path(groups.v2_dir("x")).parent.exists()
    ended = (house.state_dir / "node" / house.name / "ended.jsonl").read_text().splitlines()
    assert {json.loads(line)["reason"] for line in ended} == {"its node was stopped"}


async def test_cleaning_after_a_crash_leaves_nothing(house: NodeHouse) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        await node.run(sandbox, "sleep", "1000", wait_seconds=0)
        await process.kill()
    house.clean()
    _nothing_is_left(house)
    assert not (house.state_dir / "node" / house.name).exists()


def _nothing_is_left(house: NodeHouse) -> None:
    assert str(house.state_dir) not in Path("/proc/self/mountinfo").read_text()
    left = [p for p in psutil.process_iter(["cmdline"]) if _belongs(p, house)]
    assert left == []
    root = Path("/sys/fs/cgroup")  # of v2 itself, or the directory of all hierarchies
    assert not [
        path for path in (root, *root.glob("*")) if (path / "sandfleet" / house.name).exists()
    ]
    sandboxes = house.state_dir / "node" / house.name / "sandboxes"
    assert not sandboxes.exists() or list(sandboxes.iterdir()) == []


def _belongs(process: psutil.Process, house: NodeHouse) -> bool:
    return any(house.name in part for part in process.info["cmdline"] or ())
