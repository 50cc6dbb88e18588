"""Forks of real sandboxes: children that begin alike and go on alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from node.caps_tools import sh
from node.nodes import NodeHouse, RunningNode, output
from servers import Servers

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest, SandboxGone
from sandfleet_common.ids import new_sandbox_id, new_snapshot_id
from sandfleet_common.logs import Logger

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]


@pytest_asyncio.fixture(params=["auto", "accounting"])
async def node(request: pytest.FixtureRequest, house: NodeHouse) -> AsyncGenerator[RunningNode]:
    """Return a node with a pool, where there can be one, and one without."""
    async with house.running(disk_cap=request.param) as node:
        yield node


def held(node: RunningNode) -> list[str]:
    """Return what is held still for children."""
    pool = node.node.disks.pools.current
    stages = [] if pool is None else [n for n in pool.sandboxes() if n.startswith("sn-")]
    return stages + [path.name for path in node.node.places.forks.iterdir() if path.is_dir()]


def ask(node: RunningNode, sandbox: str, count: int, **fields: Any) -> m.SandboxFork:
    """Return a request for so many children."""
    fields.setdefault("snapshot_id", new_snapshot_id(node.name))
    children = [new_sandbox_id(node.name) for _ in range(count)]
    return m.SandboxFork(sandbox_id=sandbox, children=children, **fields)


async def fork(node: RunningNode, body: m.SandboxFork) -> list[str]:
    """Have children that are all ready."""
    forked: m.SandboxForked = await node.ask(s.FORK, body)
    assert [o.sandbox_id for o in forked.outcomes] == body.children
    assert {o.status for o in forked.outcomes} == {"ready"}, forked.outcomes
    return body.children


async def told(node: RunningNode, sandbox: str, script: str) -> str:
    state = await sh(node, sandbox, script)
    assert state.exit_code == 0, output(state)
    return output(state).decode()


async def test_children_have_their_parents_files_and_not_each_others(node: RunningNode) -> None:
    parent = await node.create(env={"A": "1"}, labels={"who": "parent"}, workdir="/root")
    await told(node, parent, "echo one > /root/x; echo t > /tmp/t; echo > /root/.netrc")
    children = await fork(node, ask(node, parent, 5))
    await asyncio.gather(*(told(node, c, f"echo {c} > /root/x") for c in children))
    for child in children:
        assert await told(node, child, "cat x /tmp/t; ls .netrc; echo $A") == (
            f"{child}\nt\n.netrc\n1\n"
        )
    assert await told(node, parent, "cat /root/x") == "one\n"
    info = node.node.sandboxes.get(children[0]).info()
    assert info.spec.labels == {"who": "parent"}
    assert info.environment == info.spec.environment


async def test_children_differ_in_what_was_asked_for(node: RunningNode) -> None:
    parent = await node.create(env={"A": "1"}, ttl_seconds=100)
    changes = m.ForkChanges(
        env={"B": "2"}, labels={"n": "1"}, ttl_seconds=50, idle_seconds=9,
        resources=m.Resources(pids=77),
    )  # fmt: skip
    (child,) = await fork(node, ask(node, parent, 1, changes=changes))
    spec = node.node.sandboxes.get(child).spec
    assert (spec.env, spec.labels) == ({"B": "2"}, {"n": "1"})
    assert (spec.ttl_seconds, spec.idle_seconds, spec.resources.pids) == (50, 9, 77)


async def test_the_same_request_again_is_the_same_children(node: RunningNode) -> None:
    parent = await node.create()
    body = ask(node, parent, 3)
    first, second = await asyncio.gather(fork(node, body), fork(node, body))
    assert first == second
    assert len(node.node.sandboxes) == 4
    await node.stop(parent)
    assert await fork(node, body) == first
    # More of the same moment, though the parent has gone.
    more = ask(node, parent, 2, snapshot_id=body.snapshot_id)
    await fork(node, more)
    with pytest.raises(SandboxGone):
        await node.ask(s.FORK, ask(node, parent, 1))


async def test_each_child_has_an_outcome_of_its_own(house: NodeHouse) -> None:
    async with house.running(sandboxes_max=3) as node:
        parent = await node.create()
        forked: m.SandboxForked = await node.ask(s.FORK, ask(node, parent, 4))
        statuses = [outcome.status for outcome in forked.outcomes]
        assert statuses == ["ready", "ready", "refused", "refused"]
        assert forked.outcomes[3].failure is not None
        assert forked.outcomes[3].failure.code == "no_capacity"


async def test_children_of_other_nodes_or_twice_are_refused(node: RunningNode) -> None:
    parent = await node.create()
    body = ask(node, parent, 1)
    for children in (body.children * 2, [new_sandbox_id("elsewhere")]):
        with pytest.raises(BadRequest, match="children"):
            await node.ask(s.FORK, body.model_copy(update={"children": children}))
    assert len(node.node.sandboxes) == 1


async def test_what_children_stand_on_goes_with_the_last_of_them(node: RunningNode) -> None:
    parent = await node.create()
    await told(node, parent, "echo x > /root/x")
    body = ask(node, parent, 2)
    children = await fork(node, body)
    assert held(node) == [body.snapshot_id]
    await node.stop(children[0])
    await node.node.forks.sweep(time.time() + 1)
    assert held(node) == [body.snapshot_id]
    await node.stop(children[1])
    await node.node.forks.sweep(time.time() + 1)
    assert held(node) == []
    assert node.node.snapshot_records.forks() == []
    # The same content may come again.
    (child,) = await fork(node, ask(node, parent, 1))
    assert await told(node, child, "cat /root/x") == "x\n"


async def test_ids_and_rights_are_the_childs_own(node: RunningNode) -> None:
    parent = await node.create()
    await told(
        node, parent,
        "cd /root; echo x > suid; /bin/busybox chown 1000:5 suid; /bin/busybox chmod 6755 suid; "
        "/bin/busybox ln suid two; mkdir d; /bin/busybox chown 1000:1000 d; rm /bin/tail; "
        "/bin/busybox ln -s x l; /bin/busybox chown -h 7:8 l; /bin/busybox mkfifo p; rm -r /home; "
        "mkdir /home",
    )  # fmt: skip
    look = (
        "/bin/busybox find /root /home /bin -exec /bin/busybox stat -c '%n %F %a %u %g %h' {} ';' "
        "| grep -v 'directory' | sort; stat -c '%u %g %a' /root /root/d /home"
    )
    before = await told(node, parent, look)
    (child,) = await fork(node, ask(node, parent, 1))
    assert await told(node, child, look) == before
    await told(node, child, "echo more >> /root/suid; /bin/busybox chown 3:3 /root/two")
    (grandchild,) = await fork(node, ask(node, child, 1))
    assert await told(node, grandchild, "cat /root/suid; stat -c '%u %g' /root/two") == (
        "x\nmore\n3 3\n"
    )


async def test_the_next_service_knows_what_children_stand_on(house: NodeHouse) -> None:
    async with house.running() as node:
        parent = await node.create()
        await told(node, parent, "echo x > /root/x")
        body = ask(node, parent, 1)
        (child,) = await fork(node, body)
    async with house.running() as node:
        assert await told(node, child, "cat /root/x") == "x\n"
        (other,) = await fork(node, ask(node, parent, 1, snapshot_id=body.snapshot_id))
        assert await told(node, other, "cat /root/x") == "x\n"


async def test_a_grandchilds_snapshot_is_whole_on_another_node(
    house: NodeHouse, servers: Servers, tmp_path: Path, log: Logger
) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "layers").symlink_to(tmp_path / "layers")
    second = NodeHouse(servers, tmp_path / "second", log)
    try:
        async with house.running() as here, second.running() as there:
            parent = await here.create()
            await told(here, parent, "echo 1 > /root/first; echo x > /root/gone")
            (child,) = await fork(here, ask(here, parent, 1))
            await told(here, child, "echo 2 > /root/second; rm /root/gone")
            (grandchild,) = await fork(here, ask(here, child, 1))
            await told(here, grandchild, "echo 3 > /root/third")
            info: m.SnapshotInfo = await here.ask(
                s.SNAPSHOT,
                m.SandboxSnapshot(
                    sandbox_id=grandchild, snapshot_id=new_snapshot_id(here.name), wait_seconds=20
                ),
            )
            assert info.state is m.SnapshotState.READY, info
            assert (info.parent, info.environment) == (None, "tiny:1")
            assert len(info.layers) == 4
            other = await there.create(environment=info.snapshot_id)
            seen = await told(there, other, "cd /root; ls; cat first second third")
            assert seen == "first\nsecond\nthird\n1\n2\n3\n"
    finally:
        second.clean()
