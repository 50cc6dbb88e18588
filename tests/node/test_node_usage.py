"""What sandboxes use, as a real node tells it: the numbers move the right way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from node.nodes import NodeHouse, RunningNode

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import NotFound, SandboxGone
from sandfleet_common.ids import new_sandbox_id

pytestmark = [pytest.mark.root, pytest.mark.integration]

MEMORY_HOG = "i=0; a=x; while [ $i -lt 24 ]; do a=$a$a; i=$((i+1)); done; sleep 60; echo $i"
"""The shell's variable holds 16 MiB while it sleeps (as the last command, sleep would be the
shell's own process by then, and the memory gone)."""


async def used(node: RunningNode, sandbox_id: str) -> m.SandboxUsage:
    return await node.ask(s.USAGE, m.SandboxUsageGet(sandbox_id=sandbox_id))


async def top(node: RunningNode, **fields: Any) -> m.NodeUsage:
    return await node.ask(s.NODE_USAGE, m.NodeUsageGet.of(node=node.name, **fields))


async def until(
    node: RunningNode, sandbox_id: str, fact: Callable[[m.SandboxUsage], bool]
) -> m.SandboxUsage:
    """Wait until a sandbox's usage is as it should be, or fail with what it is."""
    found = await used(node, sandbox_id)
    for _ in range(200):
        if fact(found):
            break
        await asyncio.sleep(0.05)
        found = await used(node, sandbox_id)
    assert fact(found), found
    return found


async def test_a_new_sandbox_has_used_little_and_has_its_limits(node: RunningNode) -> None:
    resources = m.Resources(memory_bytes=64 * m.MIB, disk_bytes=32 * m.MIB)
    sandbox = await node.create(resources=resources, labels={"run": "7"})
    found = await used(node, sandbox)
    assert (found.state, found.labels) == ("running", {"run": "7"})
    assert found.memory_limit_bytes == 64 * m.MIB
    assert found.disk_limit_bytes == 32 * m.MIB
    assert 0 < found.memory_bytes <= found.memory_peak_bytes < 16 * m.MIB
    assert found.processes >= 1
    assert found.egress_bytes == 0


async def test_a_command_that_computes_shows_seconds_and_cores(node: RunningNode) -> None:
    sandbox = await node.create()
    await node.run(sandbox, "sh", "-c", "while :; do :; done", wait_seconds=0)
    found = await until(node, sandbox, lambda u: u.cpu_seconds > 0.5 and u.cpu_cores > 0.1)
    again = await until(node, sandbox, lambda u: u.cpu_seconds > found.cpu_seconds)
    assert again.idle_seconds == 0


async def test_memory_in_use_shows_and_its_peak_stays(node: RunningNode) -> None:
    sandbox = await node.create()
    before = await used(node, sandbox)
    state = await node.run(sandbox, "sh", "-c", MEMORY_HOG, wait_seconds=0)
    held = await until(node, sandbox, lambda u: u.memory_bytes > before.memory_bytes + 16 * m.MIB)
    assert held.memory_peak_bytes >= held.memory_bytes
    signal = m.ExecSignal(sandbox_id=sandbox, exec_id=state.exec_id, signal=9, tree=True)
    await node.ask(s.EXEC_SIGNAL, signal)
    freed = await until(node, sandbox, lambda u: u.memory_bytes < held.memory_bytes - 8 * m.MIB)
    assert freed.memory_peak_bytes >= held.memory_bytes


async def test_a_file_that_is_written_shows_on_disk(node: RunningNode) -> None:
    sandbox = await node.create()
    before = await used(node, sandbox)
    await node.run(sandbox, "sh", "-c", "dd if=/dev/urandom of=/root/file bs=1M count=8; sync")
    grown = await until(node, sandbox, lambda u: u.disk_bytes >= before.disk_bytes + 8 * m.MIB)
    assert grown.disk_bytes < before.disk_bytes + 16 * m.MIB
    await node.run(sandbox, "sh", "-c", "rm /root/file; sync")
    await until(node, sandbox, lambda u: u.disk_bytes < grown.disk_bytes - 7 * m.MIB)


async def test_reading_usage_does_not_resume_a_paused_sandbox(node: RunningNode) -> None:
    sandbox = await node.create()
    await node.run(sandbox, "sh", "-c", "while :; do :; done", wait_seconds=0, background=True)
    paused = await node.ask(s.PAUSE, m.SandboxPause(sandbox_id=sandbox))
    assert paused.state == "paused"
    first = await used(node, sandbox)
    second = await until(node, sandbox, lambda u: u.cpu_cores == 0)
    assert (first.state, second.state) == ("paused", "paused")
    assert second.cpu_seconds == first.cpu_seconds
    found = await top(node)
    assert (found.count, found.paused) == (1, 1)
    assert node.node.sandboxes.find(sandbox).state == "paused"
    await node.ask(s.RESUME, m.SandboxResume(sandbox_id=sandbox))
    await until(node, sandbox, lambda u: u.cpu_seconds > second.cpu_seconds)


async def test_processes_are_counted(node: RunningNode) -> None:
    sandbox = await node.create()
    before = (await used(node, sandbox)).processes
    script = "sleep 60 & sleep 60 & sleep 60 & wait"
    await node.run(sandbox, "sh", "-c", script, wait_seconds=0)
    await until(node, sandbox, lambda u: u.processes == before + 4)


async def test_reading_usage_is_no_activity(node: RunningNode) -> None:
    sandbox = await node.create()
    await node.run(sandbox, "true")
    known = node.node.sandboxes.find(sandbox)
    active_at = known.active_at
    first = await used(node, sandbox)
    await top(node)
    second = await used(node, sandbox)
    assert known.active_at == active_at
    assert second.idle_seconds > first.idle_seconds


async def test_a_node_tells_who_uses_most_and_the_sums(node: RunningNode) -> None:
    quiet, busy = await node.create(), await node.create(labels={"who": "busy"})
    await node.run(busy, "sh", "-c", "while :; do :; done", wait_seconds=0)
    await until(node, busy, lambda u: u.cpu_seconds > 0.3)
    found = await top(node)
    assert [u.sandbox_id for u in found.sandboxes] == [busy, quiet]
    assert found.sandboxes[0].labels == {"who": "busy"}
    assert (found.count, found.paused) == (2, 0)
    assert found.cpu_cores >= found.sandboxes[0].cpu_cores > 0.1
    assert found.memory_bytes == sum(u.memory_bytes for u in found.sandboxes)
    shortest = await top(node, order="idle", limit=1)
    assert [u.sandbox_id for u in shortest.sandboxes] == [quiet]
    assert shortest.count == 2


async def test_what_an_ended_sandbox_used_is_still_told(node: RunningNode) -> None:
    sandbox = await node.create()
    await node.run(sandbox, "sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
    living = await used(node, sandbox)
    await node.stop(sandbox)
    found = await used(node, sandbox)
    assert found.state == "stopped"
    assert found.cpu_seconds >= living.cpu_seconds > 0
    assert found.memory_peak_bytes >= living.memory_peak_bytes
    assert (await top(node)).count == 0


async def test_usage_of_an_unknown_sandbox_is_not_found(node: RunningNode) -> None:
    with pytest.raises(NotFound):
        await used(node, new_sandbox_id(node.name))


async def test_counters_go_on_after_a_restart(house: NodeHouse) -> None:
    async with house.running() as node:
        living, ended = await node.create(), await node.create()
        await node.run(living, "sh", "-c", "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done")
        before = await used(node, living)
        await node.stop(ended)
    async with house.running() as node:
        after = await used(node, living)
        assert after.cpu_seconds >= before.cpu_seconds > 0
        assert after.memory_peak_bytes >= before.memory_peak_bytes
        with pytest.raises(SandboxGone, match="stopped by its user"):
            await used(node, ended)


async def test_all_sandboxes_are_looked_at_also_when_nobody_asks(house: NodeHouse) -> None:
    async with house.running(usage_seconds=0.05) as node:
        for _ in range(3):
            await node.create()
        await asyncio.sleep(0.2)
        looked_at = 'sandfleet_node_each_memory_bytes_bucket{le="+Inf"}'
        for _ in range(200):
            if samples(node.node.metrics.page())[looked_at] == 3:
                return
            await asyncio.sleep(0.05)
        pytest.fail("not all were looked at")


def samples(page: bytes) -> dict[str, float]:
    lines = [line for line in page.decode().splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_more_sandboxes_are_no_more_series(node: RunningNode) -> None:
    first = await node.create()
    await top(node)
    before = samples(node.node.metrics.page())
    for _ in range(4):
        await node.create()
    while (await top(node)).count < 5:  # a look serves everybody for a moment
        await asyncio.sleep(0.1)
    after = samples(node.node.metrics.page())
    assert set(after) == set(before)
    assert not any(first in name for name in after)
    assert after["sandfleet_node_used_memory_bytes"] > before["sandfleet_node_used_memory_bytes"]
    assert after["sandfleet_node_used_cpu_seconds_total"] > 0
    assert after["sandfleet_node_processes"] >= 5
    assert after['sandfleet_node_sandboxes_by_qos{qos="latency-sensitive"}'] == 5
    assert after['sandfleet_node_each_idle_seconds_bucket{le="+Inf"}'] == 5
