"""Admission by pressure and shedding, on a real node whose limits are set high."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path
from typing import Any

from node.nodes import NodeHouse, RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.states import Origin, State
from sandfleet_node.machine import parse_meminfo

MORE_THAN_THERE_IS = 1 << 60
HAS_PRESSURE = Path("/proc/pressure/cpu").exists()


def _meminfo() -> dict[str, int]:
    return parse_meminfo(Path("/proc/meminfo").read_text())


async def _beat(node: RunningNode) -> m.NodeBeat:
    """Return the next heartbeat."""
    heard: asyncio.Future[m.NodeBeat] = asyncio.get_running_loop().create_future()

    async def hear(beat: m.NodeBeat) -> None:
        if not heard.done() and beat.node == node.name:
            heard.set_result(beat)

    subscription = await node.bus.listen(s.NODE_BEAT, hear)
    try:
        return await heard
    finally:
        await subscription.close()


async def test_a_node_below_its_floor_refuses_and_its_heartbeat_says_why(house: NodeHouse) -> None:
    async with house.running(memory_floor_bytes=MORE_THAN_THERE_IS) as node:
        outcome = (await node.order(node.item()))[0]
        assert outcome.status == "refused"
        assert outcome.failure is not None
        assert outcome.failure.code == "no_capacity"
        assert "MiB of memory available, below its floor of" in outcome.failure.message
        assert "(memory_floor_bytes)" in outcome.failure.message
        assert (await _beat(node)).refusing is not None


async def test_a_heartbeat_carries_what_was_measured(node: RunningNode) -> None:
    await node.create()
    beat = await _beat(node)
    assert beat.refusing is None
    assert beat.starts_per_second > 0
    memory = _meminfo()
    assert 0 < beat.memory_available_bytes < memory["MemTotal"]
    assert beat.swap_free_bytes <= memory["SwapTotal"]
    assert (beat.pressure.cpu_some is not None) is HAS_PRESSURE
    assert (beat.inodes_free is None) is (os.statvfs(node.node.settings.state_dir).f_files == 0)


async def test_a_slowed_node_still_takes_sandboxes_fewer_at_once(house: NodeHouse) -> None:
    limits: dict[str, Any] = {"cpu_slow_percent": 1e-9, "load_slow_per_core": 1e-9}
    async with house.running(**limits, starting_at_once_slow=1) as node:
        await _beat(node)
        for _ in range(100):
            if node.node.turnstile.width == 1:
                break
            await node.node.beats.beat()
        assert node.node.turnstile.width == 1
        outcomes = await node.order(*(node.item() for _ in range(4)))
        assert [outcome.status for outcome in outcomes] == ["ready"] * 4


async def test_a_full_queue_refuses_as_busy_and_says_when_to_come_back(house: NodeHouse) -> None:
    async with house.running(starting_limit=3) as node:
        outcomes = await node.order(*(node.item() for _ in range(8)))
        refused = [outcome.failure for outcome in outcomes if outcome.status == "refused"]
        assert [outcome.status for outcome in outcomes].count("ready") == 3
        assert len(refused) == 5
        for failure in refused:
            assert failure is not None
            assert failure.code == "busy"
            assert failure.fields["retry_after_seconds"] > 0
            assert "starting 3 sandboxes, its limit (starting_limit)" in failure.message


async def test_a_sandbox_not_ready_by_its_deadline_has_failed_and_left_nothing(
    house: NodeHouse,
) -> None:
    async with house.running(starting_at_once=1, starting_at_once_slow=1) as node:
        async with node.node.turnstile:
            late = node.item(deadline_seconds=0.2)
            outcome = (await node.order(late))[0]
        assert outcome.status == "failed"
        assert outcome.failure is not None
        assert outcome.failure.code == "timeout"
        info = node.node.sandboxes.ended(late.sandbox_id)
        assert info.state is State.FAILED
        assert info.reason == "the sandbox was not ready by its deadline"
        assert info.origin is Origin.PLATFORM
        assert late.sandbox_id not in node.node.cgroups.known()
        assert (await node.order(node.item()))[0].status == "ready", "its turn was given back"


def _mib(reason: str | None, text: str) -> int:
    """Return the amount that follows a text in a reason."""
    assert reason is not None
    assert reason.startswith(text)
    return int(reason.removeprefix(text).removesuffix(" MiB"))


async def _grow(node: RunningNode, sandbox_id: str, mib: int, *, is_busy: bool = True) -> None:
    """Let a sandbox hold memory, and keep it busy unless it may be paused."""
    script = f"head -c {mib}m /dev/zero > /dev/shm/held && echo held"
    script += " && exec sleep 1000" if is_busy else ""
    state = await node.run(sandbox_id, "sh", "-c", script, wait_seconds=0)
    for _ in range(500):
        state = await node.ask(
            s.EXEC_WAIT, m.ExecWait(sandbox_id=sandbox_id, exec_id=state.exec_id)
        )
        if output(state, "stdout") == b"held\n":
            return
        await asyncio.sleep(0.01)
    raise AssertionError(f"nothing came of it: {state}")


async def test_a_node_out_of_memory_pauses_what_is_idle_and_ends_the_largest_best_effort(
    house: NodeHouse,
) -> None:
    async with house.running() as node:
        large, small = [await node.create(qos=m.Qos.BEST_EFFORT) for _ in range(2)]
        idle = await node.create(qos=m.Qos.BEST_EFFORT)
        precious = await node.create(qos=m.Qos.LATENCY)
        for sandbox, mib in ((large, 60), (small, 30), (precious, 60)):
            await _grow(node, sandbox, mib)
        await _grow(node, idle, 60, is_busy=False)
    limits = dict.fromkeys(("memory_floor_bytes", "memory_end_bytes"), MORE_THAN_THERE_IS)
    async with house.running(**limits, shed_settle_seconds=0.1) as node:
        first = await node.until_gone(large)
        second = await node.until_gone(small)
        assert first.state is State.FAILED
        assert first.origin is Origin.PLATFORM
        text = "the node ran out of memory: it was the largest best-effort sandbox, "
        assert 56 <= _mib(first.reason, text) <= 64
        assert first.ended_at is not None
        assert second.ended_at is not None
        assert first.ended_at < second.ended_at
        assert node.node.sandboxes.get(idle).state is State.PAUSED
        assert (await node.run(precious, "echo", "alive")).exit_code == 0
        shed = node.node.metrics.registry.get_sample_value
        step = {"want": "memory"}
        name = "sandfleet_node_shedding_steps_total"
        assert (shed(name, {**step, "step": "end"}) or 0) >= 2
        assert (shed(name, {**step, "step": "pause"}) or 0) >= 1
        assert (shed(name, {**step, "step": "reclaim"}) or 0) >= 1


async def test_a_node_out_of_disk_ends_the_best_effort_sandbox_that_has_written_most(
    house: NodeHouse,
) -> None:
    async with house.running() as node:
        writer, modest = [await node.create(qos=m.Qos.BEST_EFFORT) for _ in range(2)]
        precious = await node.create(qos=m.Qos.LATENCY)
        for sandbox, mib in ((writer, 48), (modest, 4), (precious, 64)):
            script = f"dd if=/dev/urandom of=/root/written bs=1048576 count={mib} && sync"
            assert (await node.run(sandbox, "busybox", "sh", "-c", script)).exit_code == 0
    limits = {"disk_end_bytes": MORE_THAN_THERE_IS, "shed_rest_seconds": 0.2}
    async with house.running(**limits, shed_settle_seconds=0.1) as node:
        info = await node.until_gone(writer)
        assert info.state is State.FAILED
        assert info.origin is Origin.PLATFORM
        text = "the node ran out of disk: it was the best-effort sandbox that had written most, "
        assert 40 <= _mib(info.reason, text) <= 56
        for other in (modest, precious):
            assert (await node.run(other, "echo", "alive")).exit_code == 0


async def test_a_node_whose_memory_is_only_short_ends_nobody(house: NodeHouse) -> None:
    async with house.running() as node:
        sandbox = await node.create(qos=m.Qos.BEST_EFFORT)
        await _grow(node, sandbox, 30)
    limits = {"memory_floor_bytes": MORE_THAN_THERE_IS, "memory_end_bytes": 0}
    async with house.running(**limits, shed_settle_seconds=0.01) as node:
        until = time.monotonic() + 1.5
        while time.monotonic() < until:
            await asyncio.sleep(0.1)
        assert node.node.sandboxes.get(sandbox).ending is None
