"""Snapshots of real sandboxes: what is kept, who waits, what ends with what."""

from __future__ import annotations

import asyncio
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
from sandfleet_common.errors import Conflict, SandboxGone
from sandfleet_common.ids import new_snapshot_id
from sandfleet_common.logs import Logger

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]

LIST = """(/bin/busybox find / -xdev ! -type d -exec /bin/stat -c '%n %F %a %u %g %s' {} ';'
/bin/busybox find / -xdev -type d -exec /bin/stat -c '%n %F %a %u %g' {} ';') | sort"""
CAP = 64 * m.MIB


async def take(node: RunningNode, sandbox: str, **fields: Any) -> m.SnapshotInfo:
    """Take a snapshot and wait until it is over."""
    fields.setdefault("snapshot_id", new_snapshot_id(node.name))
    fields.setdefault("wait_seconds", 20)
    return await node.ask(s.SNAPSHOT, m.SandboxSnapshot(sandbox_id=sandbox, **fields))


async def taken(node: RunningNode, sandbox: str, **fields: Any) -> m.SnapshotInfo:
    """Take a snapshot that is ready."""
    info = await take(node, sandbox, **fields)
    assert info.state is m.SnapshotState.READY, info
    return info


async def restored(node: RunningNode, info: m.SnapshotInfo, **spec: Any) -> str:
    """Create a sandbox from a snapshot."""
    return await node.create(environment=info.snapshot_id, **spec)


async def told(node: RunningNode, sandbox: str, script: str) -> str:
    """Run a script that must succeed and return what it printed."""
    state = await sh(node, sandbox, script)
    assert state.exit_code == 0, output(state)
    return output(state).decode()


def left_over(house: NodeHouse) -> list[str]:
    """Return what is left of snapshots under way."""
    staging = house.state_dir / "node" / house.name / "staging"
    return [path.name for path in staging.iterdir()]


def stages(node: RunningNode) -> list[str]:
    """Return the snapshots that the pool holds still."""
    pool = node.node.disks.pools.current
    return [] if pool is None else [name for name in pool.sandboxes() if name.startswith("sn-")]


@pytest_asyncio.fixture(params=["pool", "accounting"])
async def either(request: pytest.FixtureRequest, house: NodeHouse) -> AsyncGenerator[RunningNode]:
    """Return a node with a pool, and one without."""
    async with house.running(disk_cap=request.param if request.param != "pool" else "auto") as node:
        if request.param == "pool" and node.node.disks.free_bytes() is None:
            pytest.skip("doctor line `disk-caps`: no btrfs with simple quotas here")
        yield node


# ------------------------------------------------------------- what is kept


async def test_a_restored_sandbox_has_the_files_and_the_snapshot_says_so(
    either: RunningNode, house: NodeHouse
) -> None:
    sandbox = await either.create(env={"TOKEN": "secret"}, workdir="/root")
    await told(either, sandbox, "echo hello > /root/kept; mkdir -p /srv/a/b; echo x > /srv/a/b/c")
    info = await taken(either, sandbox, name="first", labels={"step": "1"})
    assert info.layer is not None
    assert info.layers[0] == info.layer.digest
    assert info.layers[1:] == list(either.node.sandboxes.get(sandbox).ground.layers)
    assert (info.parent, info.environment) == (None, "tiny:1")
    assert (info.name, info.labels, info.workdir) == ("first", {"step": "1"}, "/root")
    assert info.env == {"FROM_ENV": "yes"}
    assert info.frozen_ms is not None and info.packed_ms is not None
    assert left_over(house) == [] and stages(either) == []
    other = await restored(either, info)
    assert await told(either, other, "cat /root/kept /srv/a/b/c; pwd") == "hello\nx\n/root\n"
    assert either.node.sandboxes.get(other).info().environment == info.snapshot_id
    # Neither sees what the other writes from now on.
    await told(either, sandbox, "echo parent > /root/kept")
    assert await told(either, other, "cat /root/kept; echo child > /root/kept") == "hello\n"
    assert await told(either, sandbox, "cat /root/kept") == "parent\n"


async def test_kinds_of_files_come_back_as_they_were(either: RunningNode) -> None:
    sandbox = await either.create()
    await told(
        either,
        sandbox,
        """
        cd /root
        rm /bin/tail; rm -r /home/user; mkdir /home/user; echo new > /home/user/new
        rm /bin/tr; mkdir /bin/tr; echo in > /bin/tr/file
        echo linked > one; /bin/busybox ln one two
        /bin/busybox ln -s /nowhere link
        /bin/busybox mkfifo pipe
        echo su > suid; /bin/busybox chmod 4755 suid
        echo mine > owned; /bin/busybox chown 1000:1000 owned; /bin/busybox chmod 640 owned
        /bin/busybox truncate -s 50M sparse; echo end >> sparse
        printf 'x' > 'new
line'
        """,
    )
    before = await told(either, sandbox, LIST)
    info = await taken(either, sandbox)
    other = await restored(either, info)
    assert await told(either, other, LIST) == before
    seen = await told(
        either,
        other,
        """
        cd /root
        ls /bin/tail 2>/dev/null; ls /home/user; cat /bin/tr/file
        [ one -ef two ] && echo same; /bin/busybox readlink link; [ -p pipe ] && echo pipe
        stat -c '%a %U' suid; stat -c '%a %u %g' owned
        stat -c %s sparse; tail() { /bin/busybox tail "$@"; }; tail -c 4 sparse
        """,
    )
    assert seen.split() == [
        "new", "in", "same", "/nowhere", "pipe", "4755", "root", "640", "1000", "1000",
        str(50 * m.MIB + 4), "end",
    ]  # fmt: skip


async def test_nothing_of_the_host_is_in_a_layer(
    either: RunningNode, house: NodeHouse, tmp_path: Path
) -> None:
    sandbox = await either.create()
    await told(either, sandbox, "echo x >> /etc/passwd; /bin/busybox touch /bin/cat; echo y > /new")
    info = await taken(either, sandbox)
    assert info.layer is not None
    files = either.node.layers.files(info.layer.digest)
    assert files is not None
    place = tmp_path / "layer"
    place.mkdir()
    process = await asyncio.create_subprocess_exec(
        "unshare", "--mount", "sh", "-c",
        f"mount -t erofs -o ro,device=$(losetup --find --show --read-only {files.data}) "
        f"$(losetup --find --show --read-only {files.meta}) {place} && cd {place} && "
        "find . | sort && find . -exec getfattr -h -d -m - {} + ; stat -c %u new etc/passwd; "
        f"cd /; umount {place}; losetup -j {files.data} -j {files.meta} >/dev/null; "
        f"for f in {files.data} {files.meta}; do losetup -j $f | cut -d: -f1 | "
        "xargs -r losetup -d; done",
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, problem = await process.communicate()
    lines = said.decode().split()
    assert "./etc/passwd" in lines, problem
    assert "./new" in lines
    for own in ("./etc/hostname", "./etc/resolv.conf", "./proc", "./dev", "./sys"):
        assert own not in lines
    assert not [line for line in lines if "trusted.overlay" in line]
    assert lines[-2:] == ["0", "0"]


async def test_the_same_content_has_the_same_digest(either: RunningNode) -> None:
    first = await either.create()
    info = await taken(either, first)
    for _ in range(3):
        sandbox = await restored(either, info)
        again = await taken(either, sandbox)
        assert again.layer is not None and info.layer is not None
        assert again.layer.digest == info.layer.digest
        assert again.layer.size_bytes <= 16_384
        assert again.parent == info.snapshot_id
        assert again.environment == "tiny:1"
        info = again


async def test_a_long_line_of_snapshots_becomes_short(node: RunningNode) -> None:
    sandbox = await node.create()
    lengths: list[int] = []
    for number in range(11):
        await told(node, sandbox, f"echo {number} > /root/{number}; rm -f /root/{number - 2}")
        info = await taken(node, sandbox)
        lengths.append(len(info.layers))
        sandbox = await restored(node, info)
    assert lengths == [2, 3, 4, 5, 6, 7, 8, 9, 2, 3, 4]
    assert await told(node, sandbox, "cd /root; ls; cat 9 10") == "10\n9\n9\n10\n"


async def test_secrets_and_residue_are_left_out_unless_wanted(either: RunningNode) -> None:
    sandbox = await either.create()
    await told(
        either,
        sandbox,
        "mkdir -p /root/.ssh /run/x; echo k > /root/.ssh/id_rsa; echo h > /root/.ssh/known_hosts; "
        "echo t > /tmp/t; echo x > /run/x/pid",
    )
    info = await taken(either, sandbox)
    assert sorted(info.scrubbed) == ["/root/.ssh/id_rsa", "/run/x", "/tmp/t"]
    other = await restored(either, info)
    assert await told(either, other, "ls /root/.ssh; ls /tmp /run") == (
        "known_hosts\n/run:\n\n/tmp:\n"
    )
    whole = await taken(either, sandbox, scrub=False)
    assert whole.scrubbed == []
    other = await restored(either, whole)
    assert await told(either, other, "cat /root/.ssh/id_rsa /tmp/t /run/x/pid") == "k\nt\nx\n"


async def test_a_directory_becomes_a_layer_of_its_own(either: RunningNode) -> None:
    sandbox = await either.create()
    await told(
        either,
        sandbox,
        "mkdir -p /image/etc /image/opt; echo a > /image/etc/a; echo > /image/etc/.wh.passwd; "
        "echo host > /image/etc/hostname; echo x > /bin/new",
    )
    info = await taken(
        either, sandbox, root="/image", whiteouts="oci", kind="base", key="the-key",
        description="an image", notes={"libc": "musl"},
    )  # fmt: skip
    assert info.layer is not None
    assert info.layers == [info.layer.digest]
    assert (info.layer.kind, info.layer.description) == ("base", "an image")
    assert info.layer.notes == {"libc": "musl"}
    assert (await either.node.layers.record("keys", "the-key")).decode() == info.layer.digest
    for root, error in (("/nowhere", "not_found"), ("/bin", "conflict")):
        failed = await take(either, sandbox, root=root)
        assert failed.failure is not None
        assert (failed.state, failed.failure.code) == (m.SnapshotState.FAILED, error)


async def test_a_root_that_is_a_link_leads_nowhere(either: RunningNode) -> None:
    sandbox = await either.create()
    await told(either, sandbox, "/bin/busybox ln -s /etc /image")
    info = await take(either, sandbox, root="/image")
    assert info.failure is not None
    assert info.failure.code == "conflict"
    assert info.failure.fields["phase"] == "packing"


# ------------------------------------------------------------ who and when


async def test_one_id_is_one_snapshot(either: RunningNode) -> None:
    sandbox = await either.create()
    other = await either.create()
    snapshot = new_snapshot_id(either.name)
    infos = await asyncio.gather(*(take(either, sandbox, snapshot_id=snapshot) for _ in range(5)))
    assert {info.created_at for info in infos} == {infos[0].created_at}
    await either.stop(sandbox)
    assert await take(either, sandbox, snapshot_id=snapshot) == infos[0]
    with pytest.raises(Conflict, match="is a snapshot of"):
        await take(either, other, snapshot_id=snapshot)
    with pytest.raises(SandboxGone):
        await take(either, sandbox)


async def test_a_paused_sandbox_stays_paused(either: RunningNode) -> None:
    sandbox = await either.create()
    await told(either, sandbox, "echo x > /root/x")
    await either.ask(s.PAUSE, m.SandboxPause(sandbox_id=sandbox))
    info = await taken(either, sandbox)
    assert either.node.sandboxes.get(sandbox).info().state == "paused"
    assert info.frozen_ms == 0
    assert await told(either, await restored(either, info), "cat /root/x") == "x\n"


async def test_a_sandbox_goes_on_after_its_snapshot(either: RunningNode) -> None:
    sandbox = await either.create()
    running = await either.run(
        sandbox, "sh", "-c", "while [ ! -e /root/stop ]; do sleep 0.02; done; echo over",
        background=True, wait_seconds=0,
    )  # fmt: skip
    for _ in range(3):
        await taken(either, sandbox)
    await told(either, sandbox, "echo > /root/stop")
    state = await either.wait(sandbox, running.exec_id)
    assert output(state) == b"over\n"


async def test_a_sandbox_may_end_once_it_is_told_of_its_snapshot(house: NodeHouse) -> None:
    async with house.running(snapshot_packs_at_once=1) as node:
        if node.node.disks.free_bytes() is None:
            pytest.skip("doctor line `disk-caps`: no btrfs with simple quotas here")
        sandbox = await node.create()
        await told(node, sandbox, "dd if=/dev/urandom of=/root/x bs=1M count=30 2>/dev/null")
        ids = [new_snapshot_id(node.name) for _ in range(3)]
        infos = [await take(node, sandbox, snapshot_id=i, wait_seconds=0) for i in ids]
        assert infos[-1].state is m.SnapshotState.PACKING
        await node.stop(sandbox)
        infos = [await taken(node, sandbox, snapshot_id=i) for i in ids]
        assert len({info.layers[0] for info in infos}) == 1
        assert stages(node) == []


async def test_holding_files_still_does_not_lower_a_sandboxs_cap(house: NodeHouse) -> None:
    async with house.running() as node:
        if node.node.disks.free_bytes() is None:
            pytest.skip("doctor line `disk-caps`: no btrfs with simple quotas here")
        sandbox = await node.create(resources=m.Resources(disk_bytes=CAP))
        fill = "dd if=/dev/zero of=/root/x bs=1M count=50 conv=notrunc 2>&1"
        await told(node, sandbox, fill)
        stage = await asyncio.to_thread(
            node.node.disks.stage, sandbox, "sn-test", CAP, 10, lambda: False
        )
        assert "50+0 records out" in await told(node, sandbox, fill)
        await asyncio.to_thread(node.node.disks.unstage, stage)
        while node.node.disks._lifted:
            await asyncio.sleep(0.05)
        state = await sh(node, sandbox, "dd if=/dev/zero of=/root/y bs=1M count=50")
        assert b"Disk quota exceeded" in output(state, "stderr")


# ------------------------------------------------------------ what goes wrong


async def test_a_huge_hole_is_refused_with_a_reason(house: NodeHouse) -> None:
    async with house.running(snapshot_holes_bytes=0) as node:
        sandbox = await node.create(resources=m.Resources(disk_bytes=CAP))
        await told(node, sandbox, "/bin/busybox truncate -s 1099511627776 /root/hole || true")
        info = await take(node, sandbox)
        if node.node.disks.free_bytes() is not None:
            assert info.failure is not None
            assert "too long to be packed" in info.failure.message
            assert info.failure.fields["phase"] == "packing"
        assert left_over(house) == [] and stages(node) == []
        assert await told(node, sandbox, "echo lives") == "lives\n"


async def test_packing_that_takes_too_long_is_given_up(house: NodeHouse) -> None:
    async with house.running(snapshot_pack_seconds=0.05) as node:
        sandbox = await node.create()
        await told(node, sandbox, "dd if=/dev/urandom of=/root/x bs=1M count=100 2>/dev/null")
        info = await take(node, sandbox)
        assert info.failure is not None
        assert "took longer than 0.05 s" in info.failure.message
        assert left_over(house) == [] and stages(node) == []


async def test_ten_thousand_files_are_packed(either: RunningNode) -> None:
    sandbox = await either.create()
    await told(
        either,
        sandbox,
        "mkdir /root/many; cd /root/many; seq 10000 | /bin/busybox xargs touch; echo x > 'a\nb'",
    )
    other = await restored(either, await taken(either, sandbox))
    assert await told(either, other, "ls /root/many | wc -l; cat '/root/many/a\nb'") == "10001\nx\n"


async def test_a_full_disk_fails_it_with_a_reason_and_leaves_nothing(house: NodeHouse) -> None:
    async with house.running(disk_reserve_bytes=1 << 60, disk_cap="accounting") as node:
        sandbox = await node.create()
        await told(node, sandbox, "echo x > /root/x")
        info = await take(node, sandbox)
        assert info.failure is not None
        assert (info.failure.code, info.failure.fields["phase"]) == ("no_capacity", "packing")
        assert "no room" in info.failure.message
        assert left_over(house) == []


async def test_a_node_that_is_killed_while_packing_says_so_afterwards(house: NodeHouse) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        script = "dd if=/dev/urandom of=/root/x bs=1M count=200 2>/dev/null"
        await told(node, sandbox, script)
        snapshot = new_snapshot_id(node.name)
        info = await take(node, sandbox, snapshot_id=snapshot, wait_seconds=0)
        assert info.state is m.SnapshotState.PACKING
        await process.kill()
        assert left_over(house) == [snapshot]
        await process.start()
        info = await take(node, sandbox, snapshot_id=snapshot)
        assert info.failure is not None
        assert info.failure.code == "interrupted"
        assert (
            info.failure.message == "packing failed: its node service restarted before it was ready"
        )
        for _ in range(500):
            if left_over(house) == []:
                break
            await asyncio.sleep(0.01)
        assert left_over(house) == []
        assert await told(node, sandbox, "echo lives") == "lives\n"
        await taken(node, sandbox)


async def test_another_node_restores_from_the_store_they_share(
    house: NodeHouse, servers: Servers, tmp_path: Path, log: Logger
) -> None:
    (tmp_path / "second").mkdir()
    (tmp_path / "second" / "layers").symlink_to(tmp_path / "layers")
    second = NodeHouse(servers, tmp_path / "second", log)
    try:
        async with house.running() as here, second.running() as there:
            sandbox = await here.create()
            await told(here, sandbox, "echo far > /root/x; rm /bin/tail")
            info = await taken(here, sandbox)
            other = await restored(there, info)
            assert (
                await told(there, other, "cat /root/x; ls /bin/tail 2>/dev/null; true") == "far\n"
            )
    finally:
        second.clean()
