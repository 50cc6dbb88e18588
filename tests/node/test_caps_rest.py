"""Caps of processes, memory, CPU, open files and output: each holds, the agent answers after it,
another sandbox on the node does not notice, and nothing is left when both have ended.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from node.caps_tools import assert_answers, sh
from node.nodes import RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]
RESOURCES = m.Resources(cpu=0.5, memory_bytes=64 * m.MIB, pids=48, open_files=128)


class Pair:
    """A sandbox with low caps, and another that must not notice."""

    def __init__(self, node: RunningNode, greedy: str, witness: str) -> None:
        self.node = node
        self.greedy = greedy
        self.witness = witness

    async def try_to(self, script: str, seconds: float = 20) -> m.ExecState:
        return await sh(self.node, self.greedy, script, seconds)

    async def used(self) -> m.SandboxUsage:
        return await self.node.ask(s.USAGE, m.SandboxUsageGet(sandbox_id=self.greedy))

    async def end(self, state: m.ExecState) -> None:
        """Kill everything a command has started."""
        await self.node.ask(
            s.EXEC_SIGNAL,
            m.ExecSignal(sandbox_id=self.greedy, exec_id=state.exec_id, signal=9, tree=True),
        )
        await self.node.wait(self.greedy, state.exec_id)


@pytest_asyncio.fixture
async def pair(node: RunningNode) -> AsyncGenerator[Pair]:
    greedy, witness = await node.create(resources=RESOURCES), await node.create()
    yield Pair(node, greedy, witness)
    await assert_answers(node, witness, greedy)
    for sandbox in (greedy, witness):
        await node.stop(sandbox)
    assert node.node.places.sandbox_ids() == []
    assert node.node.cgroups.known() == set()
    assert node.node.disks.usage() == {}


async def test_a_fork_bomb_stops_at_the_limit_of_processes(pair: Pair) -> None:
    bomb = await pair.node.run(
        pair.greedy, "sh", "-c", "b() { b | b & b; }; b; sleep 60", wait_seconds=0
    )
    await asyncio.sleep(1)
    assert (await pair.used()).processes <= RESOURCES.pids
    await assert_answers(pair.node, pair.witness)
    await pair.end(bomb)


async def test_no_process_opens_more_files_than_it_may(pair: Pair) -> None:
    script = 'i=3; while [ $i -lt 400 ]; do eval "exec $i</dev/null" || exit 7; i=$((i+1)); done'
    state = await pair.try_to(f"ulimit -n; {script}")
    assert output(state, "stdout") == b"128\n"
    assert state.exit_code != 0


async def test_no_process_raises_the_limit_of_open_files(pair: Pair) -> None:
    assert (await pair.try_to("ulimit -n 129")).exit_code != 0


async def test_output_beyond_its_limit_is_counted_and_dropped(pair: Pair) -> None:
    state = await pair.node.run(
        pair.greedy, "sh", "-c", "yes | head -c 30000000", output_limit_bytes=m.MIB
    )
    assert (state.output_bytes, state.dropped_bytes) == (m.MIB, 30_000_000 - m.MIB)
    kept = Path(pair.node.node.places.sandbox(pair.greedy)) / "commands"
    assert _bytes_below(kept) < 2 * m.MIB


async def test_pages_of_files_stay_within_the_memory(pair: Pair) -> None:
    state = await pair.try_to(
        "dd if=/dev/zero of=/root/big bs=1M count=300 && cat /root/big | wc -c"
    )
    assert output(state, "stdout").strip() == str(300 * m.MIB).encode()
    assert (await pair.used()).memory_peak_bytes <= RESOURCES.memory_bytes


async def test_files_in_memory_count_as_memory(pair: Pair) -> None:
    state = await pair.try_to("dd if=/dev/zero of=/dev/shm/big bs=1M count=200")
    assert state.exit_code != 0
    assert (await pair.used()).memory_peak_bytes <= RESOURCES.memory_bytes
    await pair.try_to("rm -f /dev/shm/big")


async def test_many_small_processes_share_one_limit_of_memory(pair: Pair) -> None:
    script = (
        "for i in $(seq 1 22); do (x=0123456789abcdef; n=0; "
        "while [ $n -lt 18 ]; do x=$x$x; n=$((n+1)); done; sleep 2) & done; wait"
    )
    await pair.try_to(script)
    used = await pair.used()
    assert used.memory_peak_bytes <= RESOURCES.memory_bytes
    assert pair.node.node.cgroups.oom_kills(pair.greedy) > 0


async def test_it_gets_no_more_of_the_cpu_than_it_may(pair: Pair) -> None:
    spin = "for i in 1 2 3 4; do (while :; do :; done) & done; wait"
    spinning = await pair.node.run(pair.greedy, "sh", "-c", spin, wait_seconds=0)
    before, began = (await pair.used()).cpu_seconds, time.monotonic()
    await asyncio.sleep(3)
    await assert_answers(pair.node, pair.witness)
    spent = (await pair.used()).cpu_seconds - before
    # A quota is given out every tenth of a second; a part of two more may fall into this time.
    assert spent <= RESOURCES.cpu * (time.monotonic() - began + 0.3)
    await pair.end(spinning)


def _bytes_below(folder: Path) -> int:
    return sum(os.lstat(path).st_blocks * 512 for path in folder.rglob("*"))
