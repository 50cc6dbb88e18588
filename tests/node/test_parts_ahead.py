"""Parts of sandboxes made ahead: used once, taken over after a crash, never left behind."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest
from node.nodes import NodeHouse, RunningNode

from sandfleet_common import messages as m
from sandfleet_node.config import IDS_EACH
from sandfleet_node.launcher import LauncherRefused

pytestmark = pytest.mark.root
AHEAD = 4


async def until_full(node: RunningNode, count: int = AHEAD) -> None:
    """Wait until so many ranges have their parts."""
    for _ in range(1000):
        if len(node.node.storeroom) == count:
            return
        await asyncio.sleep(0.01)
    pytest.fail(f"{len(node.node.storeroom)} of {count} parts were made")


def directories(house: NodeHouse) -> set[str]:
    return {path.name for path in (house.state_dir / "node" / house.name / "ready").iterdir()}


def groups(house: NodeHouse) -> set[str]:
    """Return the names of all groups made ahead."""
    return {path.name for path in Path("/sys/fs/cgroup").glob(f"*/sandfleet/{house.name}/ready-*")}


def _put_in_the_way(path: str) -> None:
    Path(path).mkdir()


def claims(node: RunningNode) -> tuple[float, float]:
    """Return how many creations found parts ready, and how many did not."""
    counter = node.node.metrics.parts_claimed
    return counter.labels("hit")._value.get(), counter.labels("miss")._value.get()


async def test_a_creation_takes_parts_and_others_are_made(house: NodeHouse) -> None:
    async with house.running(parts_ahead=AHEAD) as node:
        await until_full(node)
        before = directories(house)
        sandbox = await node.create()
        assert claims(node) == (1, 0)
        uid = node.node.sandboxes.get(sandbox).uid
        assert str(uid) in before
        assert node.node.cgroups.known() == {sandbox}
        await until_full(node)
        assert str(uid) not in directories(house)
        assert (await node.run(sandbox, "true")).exit_code == 0


async def test_more_creations_than_parts_all_succeed_with_ranges_of_their_own(
    house: NodeHouse,
) -> None:
    async with house.running(parts_ahead=AHEAD) as node:
        await until_full(node)
        outcomes = await node.order(*(node.item() for _ in range(3 * AHEAD)))
        assert {outcome.status for outcome in outcomes} == {"ready"}
        hits, misses = claims(node)
        assert hits >= AHEAD
        assert hits + misses == 3 * AHEAD
        uids = {sandbox.uid for sandbox in node.node.sandboxes}
        assert len(uids) == 3 * AHEAD
        await until_full(node)
        assert not {str(uid) for uid in uids} & directories(house)


async def test_a_node_without_parts_ahead_makes_none(house: NodeHouse) -> None:
    async with house.running(parts_ahead=0) as node:
        sandbox = await node.create()
        assert claims(node) == (0, 1)
        assert (await node.run(sandbox, "true")).exit_code == 0
        assert directories(house) == groups(house) == set()


async def test_a_service_that_was_killed_leaves_its_parts_to_the_next(house: NodeHouse) -> None:
    async with house.process(parts_ahead=str(AHEAD)) as (process, node):
        sandbox = await node.create()
        for _ in range(500):
            if len(directories(house)) == AHEAD:
                break
            await asyncio.sleep(0.01)
        before = directories(house)
        await process.kill()
    async with house.running(parts_ahead=AHEAD) as node:
        await until_full(node)
        assert len(directories(house) & before) >= AHEAD - 1  # one may have been half made
        taken = node.node.sandboxes.get(sandbox).uid
        assert str(taken) not in directories(house)
        assert len({(await node.create()) for _ in range(AHEAD)}) == AHEAD


async def test_parts_that_are_not_wanted_any_more_are_removed(house: NodeHouse) -> None:
    async with house.running(parts_ahead=AHEAD) as node:
        await until_full(node)
    async with house.running(parts_ahead=1) as node:
        await until_full(node, 1)
        assert len(directories(house)) == 1
        assert {name.removeprefix("ready-") for name in groups(house)} <= directories(house)
    async with house.running(parts_ahead=0) as node:
        assert directories(house) == groups(house) == set()
        assert await node.create()


async def test_parts_outlive_the_launcher(house: NodeHouse) -> None:
    async with house.running(parts_ahead=AHEAD) as node:
        await until_full(node)
        first = node.node.keeper.launcher.pid
        os.kill(first, signal.SIGKILL)
        for _ in range(500):
            launcher = node.node.keeper.launcher
            if launcher is not None and launcher.pid != first:
                break
            await asyncio.sleep(0.01)
        assert len({(await node.create()) for _ in range(AHEAD + 1)}) == AHEAD + 1


async def test_a_creation_that_fails_leaves_nothing_of_its_parts(house: NodeHouse) -> None:
    async with house.running(parts_ahead=AHEAD) as node:
        await until_full(node)
        item = node.item()
        _put_in_the_way(node.node.cgroups.v2_dir(item.sandbox_id))
        outcome = (await node.order(item))[0]
        assert outcome.status == "failed"
        await until_full(node)
        assert len(directories(house)) == AHEAD
        assert {name.removeprefix("ready-") for name in groups(house)} <= directories(house)
        assert node.node.cgroups.known() == set()
        assert len({(await node.create()) for _ in range(AHEAD)}) == AHEAD


async def test_a_sandbox_stopped_while_it_starts_leaves_nothing(house: NodeHouse) -> None:
    async with house.running(parts_ahead=AHEAD) as node:
        await until_full(node)
        items = [node.item() for _ in range(8)]
        ordered = asyncio.ensure_future(node.order(*items))
        while not any(node.node.sandboxes.find(item.sandbox_id) for item in items):
            await asyncio.sleep(0)
        for item in items:
            await node.stop(item.sandbox_id)
        await ordered
        for item in items:
            await node.until_gone(item.sandbox_id)
        await until_full(node)
        assert node.node.cgroups.known() == set()
        assert node.node.places.sandbox_ids() == []
        assert len(node.node.storeroom) == AHEAD


async def test_a_service_told_to_stop_all_leaves_no_parts(house: NodeHouse) -> None:
    async with house.running(parts_ahead=AHEAD, stop_sandboxes_on_exit=True) as node:
        await until_full(node)
    assert directories(house) == groups(house) == set()


async def test_cleaning_after_a_crash_removes_parts(house: NodeHouse) -> None:
    async with house.process(parts_ahead=str(AHEAD)) as (process, node):
        await node.create()
        await process.kill()
    house.clean()
    assert groups(house) == set()
    assert not (house.state_dir / "node" / house.name).exists()


async def test_the_limits_on_files_reach_the_sandbox(house: NodeHouse) -> None:
    async with house.running() as node:
        sandbox = await node.create(resources=m.Resources(open_files=200))
        state = await node.run(sandbox, "sh", "-c", "ulimit -Hn")
        assert b"".join(chunk.data for chunk in state.output) == b"200\n"


async def test_preparing_a_range_that_is_none_is_refused(house: NodeHouse) -> None:
    async with house.running() as node:
        with pytest.raises(LauncherRefused):
            await node.node.keeper.need().prepare(0, IDS_EACH)
