"""Pausing, resuming and stopping many sandboxes through a real scheduler process."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from processes import Fleet, until

from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest, Busy, SandfleetError
from sandfleet_common.messages import (
    Action,
    JobState,
    JobSubmit,
    NodeAct,
    SandboxCreate,
    SandboxesAct,
    SandboxesActed,
    SandboxSpec,
)
from sandfleet_common.states import State

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


async def act(
    fleet: Fleet, action: Action, *, job_id: str | None = None, **labels: str
) -> SandboxesActed:
    request = SandboxesAct(action=action, job_id=job_id, labels=labels, reason="the test said so")
    return await fleet.trainer.ask(s.SANDBOXES_ACT, request, within=30)


async def ready_job(fleet: Fleet, count: int, **labels: str) -> JobSubmit:
    """Submit a job and wait until all its sandboxes are ready."""
    job = JobSubmit(count=count, spec=SandboxSpec(labels=labels))
    await fleet.trainer.store(s.JOB_SUBMIT, job, once=job.job_id)

    async def over() -> bool:
        known = await fleet.store.get_job(job.job_id)
        return known is not None and known[1].state == JobState.DONE

    await until(over)
    return job


async def fleet_of(fleet: Fleet, nodes: int, **settings: str) -> Fleet:
    await fleet.scheduler(**settings)
    for number in range(nodes):
        await fleet.node(f"n{number}")
    return fleet


def states(fleet: Fleet) -> Counter[State]:
    return Counter(info.state for node in fleet.nodes for info in node.sandboxes.values())


async def test_a_job_is_paused_resumed_and_stopped(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 3)
    job = await ready_job(fleet, 60)
    other = await ready_job(fleet, 5)
    actions: list[tuple[Action, State]] = [
        ("pause", State.PAUSED),
        ("resume", State.RUNNING),
        ("stop", State.STOPPED),
    ]
    for action, state in actions:
        acted = await act(fleet, action, job_id=job.job_id)
        assert (acted.matched, acted.done, acted.failures) == (60, 60, [])
        found = [i for n in fleet.nodes for i in n.sandboxes.values() if i.job_id == job.job_id]
        assert {info.state for info in found} == {state}
    untouched = [i for n in fleet.nodes for i in n.live if i.job_id == other.job_id]
    assert len(untouched) == 5
    reasons = {a.reason for n in fleet.nodes for a in n.actions}
    assert reasons == {"the test said so"}


async def test_labels_choose_and_narrow_a_job_down(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 2)
    job = await ready_job(fleet, 4, run="a", role="actor")
    await ready_job(fleet, 3, run="a", role="judge")
    await fleet.trainer.ask(
        s.SANDBOX_CREATE, SandboxCreate(spec=SandboxSpec(labels={"run": "a"})), within=10
    )
    assert (await act(fleet, "pause", job_id=job.job_id, role="judge")).matched == 0
    assert (await act(fleet, "pause", run="a", role="judge")).done == 3
    assert (await act(fleet, "pause", run="a")).done == 8
    assert states(fleet) == {State.PAUSED: 8}


async def test_the_same_request_again_changes_nothing(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 1)
    job = await ready_job(fleet, 6)
    await act(fleet, "pause", job_id=job.job_id)
    versions = {i.sandbox_id: i.version for i in fleet.nodes[0].live}
    again = await act(fleet, "pause", job_id=job.job_id)
    assert (again.matched, again.done) == (6, 6)
    assert {i.sandbox_id: i.version for i in fleet.nodes[0].live} == versions
    await act(fleet, "stop", job_id=job.job_id)
    nothing = await act(fleet, "stop", job_id=job.job_id)
    assert (nothing.matched, nothing.done, nothing.failures) == (0, 0, [])


async def test_many_go_in_batches_two_at_a_time(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 1)
    node = fleet.nodes[0]
    await ready_job(fleet, 900, big="yes")
    node.gate.clear()
    node.asked.clear()
    acting = asyncio.ensure_future(act(fleet, "pause", big="yes"))
    await node.asked.wait()
    await asyncio.sleep(0.5)
    assert len(node.actions) == 2
    node.gate.set()
    acted = await acting
    assert (acted.matched, acted.done) == (900, 900)
    assert sorted(len(request.sandbox_ids) for request in node.actions) == [132, 256, 256, 256]


async def test_one_that_ended_meanwhile_is_stopped_but_cannot_be_paused(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 1)
    node = fleet.nodes[0]
    job = await ready_job(fleet, 3)
    node.sandboxes.pop(next(iter(node.sandboxes)))
    paused = await act(fleet, "pause", job_id=job.job_id)
    assert (paused.matched, paused.done) == (3, 2)
    assert [f.failure and f.failure.code for f in paused.failures] == ["sandbox_gone"]
    stopped = await act(fleet, "stop", job_id=job.job_id)
    assert (stopped.matched, stopped.done, stopped.failures) == (3, 3, [])


async def test_a_node_that_is_gone_is_a_failure_of_its_sandboxes_alone(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 2, node_silent_seconds="1")
    gone, alive = fleet.nodes
    job = await ready_job(fleet, 300)
    await gone.close()
    acted = await act(fleet, "pause", job_id=job.job_id)
    assert (acted.matched, acted.done) == (300, len(alive.live))
    assert len(acted.failures) == min(100, len(gone.live)) > 0
    reasons = {f.failure.message for f in acted.failures if f.failure is not None}
    assert all("n0" in reason for reason in reasons)
    assert {info.state for info in alive.live} == {State.PAUSED}


async def test_a_node_that_never_answers_is_a_failure_when_time_is_up(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 2, act_seconds="2", act_answer_seconds="0.5")
    mute, alive = fleet.nodes
    job = await ready_job(fleet, 40)
    mute.gate.clear()
    acted = await act(fleet, "stop", job_id=job.job_id)
    assert acted.done == len(alive.sandboxes)
    assert acted.matched - acted.done == len(acted.failures) == len(mute.sandboxes)
    assert {f.failure and f.failure.code for f in acted.failures} == {"timeout"}
    assert len(mute.actions) > 1
    mute.gate.set()


async def test_a_busy_node_is_asked_again(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 1)
    node = fleet.nodes[0]
    job = await ready_job(fleet, 5)

    def busy_twice(request: NodeAct) -> SandfleetError | None:
        return Busy("later", retry_after_seconds=0.1) if len(node.actions) < 3 else None

    node.act = busy_twice
    acted = await act(fleet, "pause", job_id=job.job_id)
    assert (acted.done, len(node.actions)) == (5, 3)


async def test_what_a_node_refuses_is_reported_with_its_reason(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 1)
    node = fleet.nodes[0]
    job = await ready_job(fleet, 5)
    node.act = lambda request: BadRequest("this kernel cannot freeze")
    acted = await act(fleet, "pause", job_id=job.job_id)
    assert (acted.matched, acted.done, len(acted.failures)) == (5, 0, 5)
    failure = acted.failures[0].failure
    assert failure is not None and failure.message == "this kernel cannot freeze"


async def test_a_job_whose_record_is_gone_is_found_among_the_live(make_fleet: Fleet) -> None:
    fleet = await fleet_of(make_fleet, 1)
    job = await ready_job(fleet, 4)
    await ready_job(fleet, 2)
    fleet.forget_job(job.job_id)
    acted = await act(fleet, "pause", job_id=job.job_id)
    assert (acted.matched, acted.done) == (4, 4)
