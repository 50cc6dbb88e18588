"""CPU classes and phases, as the kernel has them."""

from __future__ import annotations

from pathlib import Path

import pytest
from node.nodes import NodeHouse, RunningNode

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import SandboxGone

P = m.SandboxPhase


def _share(node: RunningNode, sandbox_id: str) -> tuple[bool, int]:
    """Return whether a sandbox's group is idle, and its weight in thousandths of a core's."""
    directory, is_v2 = node.node.cgroups.controller_dir("cpu", sandbox_id)
    idle = Path(directory, "cpu.idle")
    if not idle.exists():
        pytest.skip("the kernel has no cpu.idle, it came with Linux 5.15")
    weight = Path(directory, "cpu.weight" if is_v2 else "cpu.shares").read_text()
    return idle.read_text() == "1\n", round(int(weight) * 1000 / (100 if is_v2 else 1024))


def _write(directory: str, name: str, value: str) -> None:
    Path(directory, name).write_text(value)


async def _set(node: RunningNode, sandbox_id: str, phase: P) -> None:
    await node.ask(s.SET_PHASE, m.SandboxSetPhase(sandbox_id=sandbox_id, phase=phase))


async def test_a_best_effort_sandbox_is_idle_and_a_latency_sensitive_one_is_not(
    node: RunningNode,
) -> None:
    idle = await node.create(qos=m.Qos.BEST_EFFORT)
    plain = await node.create()
    assert _share(node, idle)[0]
    assert _share(node, plain) == (False, 1000)


async def test_every_phase_is_a_share_and_auto_follows_what_runs(node: RunningNode) -> None:
    sandbox = await node.create()
    for phase, weight in ((P.WAITING, 250), (P.SCORING, 4000), (P.ACTIVE, 1000), (P.AUTO, 250)):
        await _set(node, sandbox, phase)
        assert _share(node, sandbox) == (False, weight)
    await node.run(sandbox, "sleep", "100", wait_seconds=0)
    assert _share(node, sandbox) == (False, 1000)


async def test_a_best_effort_sandbox_leaves_idleness_while_it_is_scored(node: RunningNode) -> None:
    sandbox = await node.create(qos=m.Qos.BEST_EFFORT, resources=m.Resources(cpu=2))
    await _set(node, sandbox, P.SCORING)
    assert _share(node, sandbox) == (False, 200)
    await node.run(sandbox, "true")
    assert _share(node, sandbox) == (False, 200), "what its user said holds"
    await _set(node, sandbox, P.AUTO)
    assert _share(node, sandbox)[0]


async def test_a_sandbox_whose_commands_have_ended_is_lowered_a_look_later(
    node: RunningNode,
) -> None:
    sandbox = await node.create()
    await node.run(sandbox, "true")
    phases = node.node.phases
    phases.sweep()
    assert _share(node, sandbox) == (False, 1000), "it may have another command in a moment"
    phases.sweep()
    phases.sweep()
    assert _share(node, sandbox) == (False, 250)
    await node.run(sandbox, "sleep", "100", wait_seconds=0, background=True)
    assert _share(node, sandbox) == (False, 250), "what runs in the background waits"


async def test_a_phase_survives_a_restart_even_if_the_kernel_was_told_otherwise(
    house: NodeHouse,
) -> None:
    async with house.running() as node:
        scored, plain = await node.create(), await node.create()
        idle = await node.create(qos=m.Qos.BEST_EFFORT)
        await _set(node, scored, P.SCORING)
        directory, is_v2 = node.node.cgroups.controller_dir("cpu", scored)
        _write(directory, "cpu.weight" if is_v2 else "cpu.shares", "7")
        _write(node.node.cgroups.controller_dir("cpu", idle)[0], "cpu.idle", "0")
    async with house.running() as node:
        assert _share(node, scored) == (False, 4000)
        assert _share(node, plain) == (False, 250)
        assert _share(node, idle)[0]
        await _set(node, scored, P.AUTO)
    async with house.running() as node:
        assert _share(node, scored) == (False, 250)


async def test_a_sandbox_that_has_ended_has_no_phase(node: RunningNode) -> None:
    sandbox = await node.create()
    await node.stop(sandbox)
    with pytest.raises(SandboxGone):
        await _set(node, sandbox, P.ACTIVE)
