"""Pausing, phases and usage through the SDK, over NATS and through a real gateway."""

from __future__ import annotations

import asyncio

import pytest
from sdk_peer import NODE, Peer

from sandfleet import (
    AsyncClient,
    AsyncSandbox,
    BadRequest,
    Client,
    Conflict,
    NotFound,
    SandboxPhase,
    SandboxSpec,
    SandboxUsage,
    State,
)
from sandfleet_common import messages as m
from sandfleet_common.states import Origin

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

RUN_7 = SandboxSpec(labels={"run": "7"})


def uses(peer: Peer, sandbox_id: str, **amounts: float) -> None:
    """Say what a sandbox uses."""
    peer.usages.used[sandbox_id] = SandboxUsage.of(
        sandbox_id=sandbox_id, state=State.RUNNING, at=1.0, **amounts
    )


async def test_a_sandbox_is_paused_and_resumed(peer: Peer, sandbox: AsyncSandbox) -> None:
    assert (await sandbox.pause()).state is State.PAUSED
    assert sandbox.info_now.state is State.PAUSED
    assert (await sandbox.info()).state is State.PAUSED
    assert (await sandbox.pause(wait=2.5)).state is State.PAUSED
    assert peer.usages.waited == [0, 2.5]
    assert (await sandbox.resume()).state is State.RUNNING


async def test_a_pause_may_wait_only_so_long(sandbox: AsyncSandbox) -> None:
    with pytest.raises(BadRequest, match="wait_seconds"):
        await sandbox.pause(wait=3600)


async def test_a_pause_whose_answer_was_lost_is_asked_for_again(
    peer: Peer, sandbox: AsyncSandbox, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandfleet.calls.ATTEMPT_SECONDS", 0.5)
    peer.lose_answers["sf.v1.node.{node}.op.pause"] = 1
    assert (await sandbox.pause()).state is State.PAUSED
    assert len(peer.usages.waited) == 2


async def test_a_phase_is_said(peer: Peer, sandbox: AsyncSandbox) -> None:
    await sandbox.set_phase("waiting")
    await sandbox.set_phase(SandboxPhase.ACTIVE)
    assert peer.usages.phases == ["waiting", "active"]
    with pytest.raises(BadRequest, match="phase"):
        await sandbox.set_phase("sleeping")


async def test_scoring_lasts_as_long_as_its_block(peer: Peer, sandbox: AsyncSandbox) -> None:
    async with sandbox.scoring():
        assert peer.usages.phases == ["scoring"]
    assert peer.usages.phases == ["scoring", "auto"]


async def test_an_error_while_scoring_is_told_and_ends_the_phase(
    peer: Peer, sandbox: AsyncSandbox
) -> None:
    with pytest.raises(ZeroDivisionError):
        async with sandbox.scoring():
            raise ZeroDivisionError
    assert peer.usages.phases == ["scoring", "auto"]


async def test_a_sandbox_that_ends_while_it_is_scored_is_no_second_error(
    peer: Peer, sandbox: AsyncSandbox
) -> None:
    async with sandbox.scoring():
        await sandbox.stop()
    assert (await sandbox.info()).state is State.STOPPED


async def test_usage_is_told_as_the_node_tells_it(peer: Peer, sandbox: AsyncSandbox) -> None:
    uses(peer, sandbox.id, cpu_seconds=1.25, memory_bytes=5, memory_peak_bytes=7)
    found = await sandbox.usage()
    assert (found.cpu_seconds, found.memory_bytes, found.memory_peak_bytes) == (1.25, 5, 7)


async def test_a_fleets_usage_is_sorted_and_summed(peer: Peer, client: AsyncClient) -> None:
    ids = [(await client.create()).id for _ in range(3)]
    for sandbox_id, cores, memory in zip(ids, (0.1, 0.9, 0.5), (30, 20, 10), strict=True):
        uses(peer, sandbox_id, cpu_cores=cores, memory_bytes=memory)
    by_cpu = await client.usage()
    assert [u.sandbox_id for u in by_cpu.sandboxes] == [ids[1], ids[2], ids[0]]
    by_memory = await client.usage(order="memory", limit=2, node=NODE)
    assert [u.sandbox_id for u in by_memory.sandboxes] == ids[:2]
    (node,) = by_memory.nodes
    assert (node.node, node.count, node.memory_bytes, node.sandboxes) == (NODE, 3, 60, [])
    assert [beat.node for beat in by_memory.beats] == [NODE]


async def test_a_node_that_is_silent_does_not_hide_the_others(
    peer: Peer, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandfleet.usage.ANSWER_SECONDS", 1.0)
    sandbox = await client.create()
    peer.usages.strangers = ["elsewhere"]
    found = await client.usage()
    assert [u.sandbox_id for u in found.sandboxes] == [sandbox.id]
    assert found.silent == ["elsewhere"]


async def test_usage_of_a_node_that_is_not_there_says_so(client: AsyncClient) -> None:
    with pytest.raises(NotFound, match="no node 'nowhere' is alive"):
        await client.usage(node="nowhere")
    with pytest.raises(BadRequest, match="order"):
        await client.usage(order="beauty")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def test_many_are_paused_resumed_and_ended_by_label(peer: Peer, client: AsyncClient) -> None:
    chosen = [await client.create(RUN_7), await client.create(RUN_7)]
    other = await client.create()
    acted = await client.pause(labels={"run": "7"})
    assert (acted.matched, acted.done, acted.failures) == (2, 2, [])
    assert [(await s.info()).state for s in (*chosen, other)] == ["paused", "paused", "running"]
    assert {s.id async for s in client.list(state=State.PAUSED)} == {s.id for s in chosen}
    assert (await client.resume(labels={"run": "7"})).done == 2
    assert (await client.stop(labels={"run": "7"}, reason="the run is over")).done == 2
    info = await chosen[0].info()
    assert (info.state, info.reason) == ("stopped", "the run is over")
    assert (await other.info()).state is State.RUNNING


async def test_what_could_not_be_paused_is_told_with_its_reason(
    peer: Peer, client: AsyncClient
) -> None:
    chosen = [await client.create(RUN_7), await client.create(RUN_7)]
    peer.usages.unpausable = {chosen[0].id}
    acted = await client.pause(labels={"run": "7"})
    assert (acted.matched, acted.done) == (2, 1)
    assert [f.sandbox_id for f in acted.failures] == [chosen[0].id]
    with pytest.raises(Conflict):
        await chosen[0].pause()


async def test_all_of_everybody_is_not_paused_by_accident(client: AsyncClient) -> None:
    with pytest.raises(BadRequest, match="job_id or labels"):
        await client.pause()


async def test_a_job_is_paused_and_resumed(peer: Peer, client: AsyncClient) -> None:
    async with client.job(count=3) as job:
        await job.wait()
        acted = await job.pause()
        assert (acted.matched, acted.done) == (2, 2)
        assert {i.state for i in peer.sandboxes.values()} == {State.PAUSED}
        assert (await job.resume()).done == 2
    assert [act.action for act in peer.usages.acts] == ["pause", "resume"]


async def test_the_blocking_side_does_the_same(
    peer: Peer, client: AsyncClient, gateway_address: str
) -> None:
    def work() -> tuple[m.SandboxInfo, m.SandboxUsage, int]:
        with Client.connect(url=gateway_address) as blocking:
            sandbox = blocking.create(RUN_7)
            with sandbox.scoring():
                sandbox.pause()
            used = sandbox.usage()
            acted = blocking.resume(labels={"run": "7"})
            return sandbox.info(), used, acted.done

    info, used, resumed = await asyncio.to_thread(work)
    assert (info.state, used.state, resumed) == ("running", "paused", 1)
    assert peer.usages.phases == ["scoring", "auto"]
    peer.end(info.sandbox_id, "over", Origin.USER)
