"""Single sandboxes through a real scheduler process, NATS and Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from processes import Fleet, until

from sandfleet_common import subjects as s
from sandfleet_common.errors import (
    BadRequest,
    NoCapacity,
    NotFound,
    SandboxFailed,
)
from sandfleet_common.ids import node_of
from sandfleet_common.messages import (
    NodeList,
    NodeState,
    SandboxCreate,
    SandboxGet,
    SandboxInfo,
    SandboxList,
    SandboxSpec,
)
from sandfleet_common.states import Origin, State

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture
async def fleet(make_fleet: Fleet) -> AsyncGenerator[Fleet]:
    await make_fleet.scheduler()
    yield make_fleet


async def create(
    fleet: Fleet, *, key: str | None = None, deadline: float = 10, environment: str = "debian"
) -> SandboxInfo:
    request = SandboxCreate(
        spec=SandboxSpec(environment=environment), key=key, deadline_seconds=deadline
    )
    return await fleet.trainer.ask(s.SANDBOX_CREATE, request, within=deadline + 10)


async def test_a_sandbox_is_created_on_a_node(fleet: Fleet) -> None:
    node = await fleet.node("n1")
    info = await create(fleet)
    assert (info.node, info.state) == ("n1", State.RUNNING)
    assert node_of(info.sandbox_id) == "n1"
    assert list(node.sandboxes) == [info.sandbox_id]
    assert (
        await fleet.trainer.ask(s.SANDBOX_GET, SandboxGet(sandbox_id=info.sandbox_id), within=5)
        == info
    )
    page = await fleet.trainer.ask(s.SANDBOX_LIST, SandboxList(), within=5)
    assert page.sandboxes == [info]


async def test_the_nodes_alive_are_listed(fleet: Fleet) -> None:
    await fleet.node("n1")
    await fleet.node("n2")
    page = await fleet.trainer.ask(s.NODE_LIST, NodeList(), within=5)
    assert [beat.node for beat in page.nodes] == ["n1", "n2"]


async def test_an_unknown_sandbox_is_not_found_and_a_wrong_id_is_a_bad_request(
    fleet: Fleet,
) -> None:
    unknown = SandboxGet(sandbox_id="sb-n1-01h00000000000000000000000")
    with pytest.raises(NotFound):
        await fleet.trainer.ask(s.SANDBOX_GET, unknown, within=5)
    with pytest.raises(BadRequest):
        await fleet.trainer.ask(s.SANDBOX_GET, SandboxGet(sandbox_id="../x"), within=5)


async def test_a_refused_sandbox_goes_to_another_node(fleet: Fleet) -> None:
    first, second = await fleet.node("n1"), await fleet.node("n2")
    first.refuse = lambda item: "no"
    infos = [await create(fleet) for _ in range(6)]
    assert {info.node for info in infos} == {"n2"}
    assert first.requests and len(second.sandboxes) == 6


async def test_an_environment_that_heartbeats_have_no_room_for_is_found(fleet: Fleet) -> None:
    without, having = await fleet.node("n1"), await fleet.node("n2")
    for node in (without, having):
        node.environments_complete = False
        await node.beat()
    without.lacks = {"rare"}
    assert {(await create(fleet, environment="rare")).node for _ in range(6)} == {"n2"}


async def test_an_environment_that_nodes_looked_for_in_vain_is_refused_at_once(
    fleet: Fleet,
) -> None:
    nodes = [await fleet.node(name) for name in ("n1", "n2", "n3", "n4", "n5")]
    for node in nodes:
        node.environments_complete, node.lacks = False, {"rare"}
        await node.beat()
    with pytest.raises(NotFound, match="there is no environment rare"):
        await create(fleet, environment="rare", deadline=60)
    assert sum(len(node.requests) for node in nodes) == 3


async def test_a_version_that_its_only_node_lacks_is_refused_at_once(fleet: Fleet) -> None:
    node = await fleet.node("n1")
    node.lacks = {"debian:99"}
    with pytest.raises(NotFound, match="debian:99"):
        await create(fleet, environment="debian:99", deadline=60)


async def test_giving_up_says_why(fleet: Fleet) -> None:
    draining, full, refusing = [await fleet.node(name) for name in ("n1", "n2", "n3")]
    draining.state, full.capacity, refusing.refusing = NodeState.DRAINING, 0, "low on memory"
    for node in (draining, full, refusing):
        await node.beat()
    with pytest.raises(NoCapacity) as caught:
        await create(fleet, deadline=0.5)
    assert caught.value.message.startswith("no node could take it: ")
    for reason in ("1 is draining", "1 has no room for more sandboxes", "low on memory"):
        assert reason in caught.value.message


async def test_with_no_node_at_all_the_deadline_ends_it(fleet: Fleet) -> None:
    with pytest.raises(NoCapacity, match="no node is alive"):
        await create(fleet, deadline=0.3)


async def test_a_rejected_sandbox_is_on_record_with_its_reason(fleet: Fleet) -> None:
    node = await fleet.node("n1")
    node.refuse = lambda item: "it does not like it"
    with pytest.raises(NoCapacity, match="does not like"):
        await create(fleet, deadline=0.3)

    async def rejected() -> list[SandboxInfo]:
        return (await fleet.store.list(SandboxList(state=State.REJECTED))).sandboxes

    assert "does not like" in ((await until(rejected))[0].reason or "")


async def test_room_that_appears_before_the_deadline_is_used(fleet: Fleet) -> None:
    node = await fleet.node("n1")
    node.capacity = 0
    await node.beat()
    waiting = asyncio.ensure_future(create(fleet, deadline=20))
    await asyncio.sleep(0.3)
    assert not waiting.done()
    node.capacity = 10
    assert (await waiting).node == "n1"


async def test_an_unknown_environment_fails_fast_and_lists_the_known(fleet: Fleet) -> None:
    node = await fleet.node("n1")
    node.environments = ["debian", "python"]
    await node.beat()
    with pytest.raises(NotFound, match="'fedora'; there are: debian, python"):
        await create(fleet, environment="fedora", deadline=25)
    assert node.requests == []


async def test_a_sandbox_that_cannot_start_is_an_error_of_its_own(fleet: Fleet) -> None:
    node = await fleet.node("n1")
    node.fail = lambda item: "the disk broke"
    with pytest.raises(SandboxFailed, match="the disk broke"):
        await create(fleet)
    assert len(node.requests) == 1


async def test_the_same_key_gives_the_same_sandbox(fleet: Fleet) -> None:
    node = await fleet.node("n1")
    first = await create(fleet, key="k")
    assert await create(fleet, key="k") == first
    assert (await create(fleet, key="other")).sandbox_id != first.sandbox_id
    assert len(node.sandboxes) == 2


async def test_the_same_key_at_once_gives_one_sandbox(fleet: Fleet) -> None:
    await fleet.scheduler()
    nodes = [await fleet.node(name) for name in ("n1", "n2")]
    for node in nodes:
        node.start_seconds = 0.2
    infos = await asyncio.gather(*(create(fleet, key="k") for _ in range(12)))
    assert len({info.sandbox_id for info in infos}) == 1
    assert sum(len(node.sandboxes) for node in nodes) == 1


async def test_a_key_whose_sandbox_was_rejected_may_be_tried_again(fleet: Fleet) -> None:
    node = await fleet.node("n1")
    node.refuse = lambda item: "no"
    with pytest.raises(NoCapacity):
        await create(fleet, key="k", deadline=0.3)
    node.refuse = lambda item: None
    assert (await create(fleet, key="k")).state == State.RUNNING


async def test_a_lost_answer_is_asked_for_again_under_the_same_id(fleet: Fleet) -> None:
    node = await fleet.node("n1")
    node.losing = 1
    request = SandboxCreate(key="k", deadline_seconds=25)
    async with asyncio.TaskGroup() as group:
        asking = fleet.trainer.ask(s.SANDBOX_CREATE, request, within=28, resend=True)
        creating = group.create_task(asking)
        await node.asked.wait()
        await asyncio.to_thread(fleet.servers.nats.kill)
        await asyncio.to_thread(fleet.servers.nats.start)
        info = await creating

    # The trainer may have its answer from the record; the scheduler asks again all the same.
    async def asked_again() -> bool:
        return len(node.requests) >= 2

    await until(asked_again)
    assert {item.sandbox_id for r in node.requests for item in r.items} == {info.sandbox_id}
    assert node.creations == {info.sandbox_id: 1}


async def test_many_at_once_spread_over_the_nodes(fleet: Fleet) -> None:
    nodes = [await fleet.node(f"n{n}") for n in range(4)]
    for node in nodes:
        node.start_seconds = 0.05
    await asyncio.gather(*(create(fleet, deadline=20) for _ in range(80)))
    assert sum(len(node.sandboxes) for node in nodes) == 80
    assert min(len(node.sandboxes) for node in nodes) >= 8


async def test_a_silent_node_is_not_chosen(fleet: Fleet) -> None:
    silent, alive = await fleet.node("n1"), await fleet.node("n2")
    await silent.close()
    infos = [await create(fleet) for _ in range(8)]
    assert {info.node for info in infos} == {"n2"}
    assert len(alive.sandboxes) == 8


async def test_a_lost_nodes_sandboxes_fail_on_record_and_stay_so(make_fleet: Fleet) -> None:
    fleet = make_fleet
    for _ in range(2):
        await fleet.scheduler(node_silent_seconds="0.6", node_lost_seconds="1")
    node = await fleet.node("n1")
    info = await create(fleet)
    node.is_beating = False
    fleet.expire_beat("n1")

    async def failed() -> SandboxInfo | None:
        record = await fleet.store.get(info.sandbox_id)
        return record if record is not None and record.state == State.FAILED else None

    record = await until(failed)
    assert (record.origin, record.version) == (Origin.NODE_LOST, info.version + 1)
    assert "n1" in (record.reason or "")
    node.boot = "another"
    node.is_beating = True

    async def ended() -> bool:
        return info.sandbox_id in node.stopped

    await until(ended)
    assert (await create(fleet)).node == "n1"


async def test_a_node_that_only_nats_has_lost_keeps_its_sandboxes(make_fleet: Fleet) -> None:
    fleet = make_fleet
    await fleet.scheduler(node_silent_seconds="0.4", node_lost_seconds="0.8")
    node = await fleet.node("n1")
    info = await create(fleet)
    node.is_beating = False
    for _ in range(5):
        await fleet.keep_in_redis(node)
        await asyncio.sleep(0.5)
    record = await fleet.store.get(info.sandbox_id)
    assert record is not None and record.state == State.RUNNING
    with pytest.raises(NoCapacity, match="silent"):
        await create(fleet, deadline=0.3)
