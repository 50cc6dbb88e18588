"""The pool of a real node: restarts, a pool that breaks, a full disk below it, none at all."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from node.caps_tools import CAP, assert_answers, sh
from node.nodes import NodeHouse, RunningNode, output
from servers import Servers

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import Unreachable
from sandfleet_common.logs import Logger
from sandfleet_node.disk import loop

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]


@pytest_asyncio.fixture
async def pooled(house: NodeHouse) -> AsyncGenerator[RunningNode]:
    async with house.running() as node:
        need_pool(node)
        yield node


def need_pool(node: RunningNode) -> None:
    if node.node.disks.free_bytes() is None:
        pytest.skip("doctor line `disk-caps`: no btrfs with simple quotas here")


def pools(house: NodeHouse) -> list[Path]:
    return sorted((house.state_dir / "node" / house.name / "pools").glob("*.img"))


def mounts_here() -> str:
    return Path("/proc/self/mountinfo").read_text()


def launcher_of(house: NodeHouse) -> int:
    for process in psutil.process_iter(["cmdline"]):
        line = process.info["cmdline"] or [""]
        if "launcher" in line and any(f"/{house.name}/run" in part for part in line):
            parent = process.parent()
            if parent is None or parent.cmdline() != line:
                return process.pid
    raise AssertionError("no launcher")


async def test_nothing_of_a_pool_is_seen_on_the_host(pooled: RunningNode, house: NodeHouse) -> None:
    sandbox = await pooled.create()
    await sh(pooled, sandbox, "echo hidden > /root/hidden")
    assert str(house.state_dir) not in mounts_here()
    mounts = output(await sh(pooled, sandbox, "cat /proc/self/mountinfo")).decode()
    assert "btrfs" not in mounts
    assert str(house.state_dir) not in mounts


async def test_the_next_service_finds_the_pool_with_all_that_was_written(house: NodeHouse) -> None:
    spec = {"resources": m.Resources(disk_bytes=CAP)}
    async with house.running() as node:
        need_pool(node)
        sandbox = await node.create(**spec)
        gone = await node.create(**spec)
        await sh(node, sandbox, "dd if=/dev/zero of=/root/big bs=1M count=40")
    async with house.running() as node:
        assert len(pools(house)) == 1
        assert node.node.disks.usage([sandbox])[sandbox] > 40 * m.MIB
        state = await sh(node, sandbox, "dd if=/dev/zero of=/root/more bs=1M count=40")
        assert b"Disk quota exceeded" in output(state, "stderr")
        await node.stop(gone)
        await node.stop(sandbox)
        assert node.node.disks.usage() == {}


async def test_a_killed_service_and_launcher_leave_no_mount_and_no_device(house: NodeHouse) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        await sh(node, sandbox, "echo x > /root/x")
        (image,) = pools(house)
        assert loop.find(image) is not None
        await process.kill()
        assert loop.find(image) is not None  # its sandboxes live in it
        os.kill(launcher_of(house), signal.SIGKILL)
        assert loop.until_free([image], 20) == []
        await process.start()
        assert len(pools(house)) == 1
        await assert_answers(node, await node.create())


async def test_a_launcher_that_is_replaced_has_the_pool_too(pooled: RunningNode) -> None:
    lost = await pooled.create()
    os.kill(pooled.node.keeper.launcher.pid, signal.SIGKILL)
    await pooled.until_gone(lost)
    while pooled.node.keeper.launcher is None or pooled.node.load.broken is not None:
        await asyncio.sleep(0.02)
    fresh = await pooled.create()
    await assert_answers(pooled, fresh)
    assert set(pooled.node.disks.usage()) == {fresh}


async def test_a_node_that_ends_all_leaves_no_image_and_no_device(house: NodeHouse) -> None:
    async with house.running(stop_sandboxes_on_exit=True) as node:
        need_pool(node)
        await sh(node, await node.create(), "dd if=/dev/zero of=/root/big bs=1M count=20")
        (image,) = pools(house)
    assert pools(house) == []
    assert loop.find(image) is None


async def test_without_pools_the_next_service_keeps_what_is_in_one(house: NodeHouse) -> None:
    async with house.running() as node:
        need_pool(node)
        old = await node.create()
    async with house.running(disk_cap="accounting") as node:
        new = await node.create()
        await assert_answers(node, old, new)
        assert (Path(node.node.places.sandbox(new)) / "upper").exists()
        assert not (Path(node.node.places.sandbox(old)) / "upper").exists()


async def test_a_node_that_must_have_a_pool_says_why_it_has_none(
    house: NodeHouse,
) -> None:
    in_the_way = house.state_dir / "node" / house.name / "pools" / "1.img"
    in_the_way.mkdir(parents=True)
    with pytest.raises(Unreachable, match="sandboxes have no disk"):
        async with house.running(disk_cap="pool"):
            pass


# ------------------------------------------------- a disk that is small and full


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """Return a directory on an ext4 file system of 900 MiB."""
    image, place = tmp_path / "disk.img", tmp_path / "disk"
    with image.open("wb") as file:
        file.truncate(900 * m.MIB)
    place.mkdir()
    subprocess.run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(place)], check=True)
    yield place
    subprocess.run(["umount", str(place)], check=True)


@pytest.fixture
def cramped(
    servers: Servers, small_disk: Path, tiny_layers: Path, log: Logger
) -> Generator[NodeHouse]:
    """Return a place for a node on a small disk."""
    state = small_disk / "state"
    state.mkdir()
    (state / "layers").symlink_to(tiny_layers)
    house = NodeHouse(servers, state, log)
    yield house
    house.clean()


async def test_writes_fail_before_the_disk_below_is_full(cramped: NodeHouse) -> None:
    async with cramped.running(disk_reserve_bytes=200 * m.MIB, inodes_floor=0) as node:
        need_pool(node)
        greedy, witness = await node.create(), await node.create()
        state = await sh(node, greedy, "dd if=/dev/zero of=/root/big bs=1M count=2000")
        assert b"Disk quota exceeded" in output(state, "stderr")
        disk = os.statvfs(cramped.state_dir)
        assert disk.f_bavail * disk.f_frsize > 100 * m.MIB
        assert not node.node.disks.pools.current.is_broken()
        await node.stop(greedy)
        for _ in range(100):  # its space comes back when the kernel has cleaned up
            state = await sh(node, witness, "dd if=/dev/zero of=/root/big bs=1M count=100")
            if state.exit_code == 0:
                break
            await asyncio.sleep(0.3)
        assert state.exit_code == 0


async def test_a_pool_that_breaks_fails_its_sandboxes_and_is_made_anew(cramped: NodeHouse) -> None:
    async with cramped.running(disk_reserve_bytes=200 * m.MIB, inodes_floor=0) as node:
        need_pool(node)
        sandbox = await node.create()
        first = node.node.disks.pools.current
        # Somebody else takes all of the disk, faster than anybody could look.
        writing = await node.run(
            sandbox, "sh", "-c", "dd if=/dev/zero of=/root/big bs=1M count=300", wait_seconds=0
        )
        hog = cramped.state_dir / "hog"
        with hog.open("wb") as file:
            disk = os.statvfs(cramped.state_dir)
            os.posix_fallocate(file.fileno(), 0, disk.f_bavail * disk.f_frsize - 4 * m.MIB)
        info = await asyncio.wait_for(node.until_gone(sandbox), 60)
        assert info.state == "failed"
        assert info.reason is not None
        assert "the disk below it was full" in info.reason
        hog.unlink()
        while node.node.disks.pools.current in (None, first):
            await asyncio.sleep(0.05)
        fresh = await node.create()
        await assert_answers(node, fresh)
        assert writing.exec_id


# ------------------------------------------------------------------- accounting


async def test_without_a_pool_a_sandbox_over_its_cap_is_ended(house: NodeHouse) -> None:
    async with house.running(disk_cap="accounting") as node:
        greedy = await node.create(resources=m.Resources(disk_bytes=CAP))
        witness = await node.create(resources=m.Resources(disk_bytes=CAP))
        script = "for i in 1 2 3 4; do dd if=/dev/zero of=/root/$i bs=1M count=30; done; sleep 60"
        await node.run(greedy, "sh", "-c", script, wait_seconds=0)
        info = await node.until_gone(greedy)
        assert info.state == "failed"
        assert info.reason is not None
        assert "more than its disk allows" in info.reason
        await assert_answers(node, witness)
        await node.stop(witness)


async def test_without_a_pool_one_file_ends_at_the_cap(house: NodeHouse) -> None:
    async with house.running(disk_cap="accounting") as node:
        greedy = await node.create(resources=m.Resources(disk_bytes=CAP))
        await sh(node, greedy, "dd if=/dev/zero of=/root/big bs=1M count=200; true")
        state = await sh(node, greedy, "busybox stat -c %s /root/big")
        assert int(output(state, "stdout")) == CAP


@pytest.mark.parametrize(
    "script",
    [
        # names without content
        "mkdir /root/m; cd /root/m; seq 1 100000 | busybox xargs touch; sleep 60",
        # files without names
        "exec 3>/root/a 4>/root/b; rm /root/a /root/b; yes | head -c 40000000 >&3;"
        " yes | head -c 40000000 >&4; sleep 60",
    ],
)
async def test_without_a_pool_what_hides_is_found(house: NodeHouse, script: str) -> None:
    async with house.running(disk_cap="accounting") as node:
        greedy = await node.create(resources=m.Resources(disk_bytes=CAP))
        await node.run(greedy, "sh", "-c", script, wait_seconds=0)
        info = await node.until_gone(greedy)
        assert info.reason is not None
        assert "more than its disk allows" in info.reason


async def test_a_pool_that_is_smaller_than_the_disk_is_what_schedulers_hear_of(
    house: NodeHouse,
) -> None:
    async with house.running(disk_pool_bytes=300 * m.MIB) as node:
        need_pool(node)
        beats: list[m.NodeBeat] = []

        async def hear(beat: m.NodeBeat) -> None:
            beats.append(beat)

        await node.bus.listen(s.NODE_BEAT, hear)
        await node.bus.flush()
        await node.node.beats.beat()
        await node.bus.flush()
        assert any(0 < b.disk_free_bytes <= 300 * m.MIB for b in beats if b.node == node.name)
