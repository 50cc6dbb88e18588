"""The cap of a sandbox's disk holds, whatever way it is written, and the sandbox goes on."""

from __future__ import annotations

import errno
from collections.abc import AsyncGenerator

import pytest
import pytest_asyncio
from node.caps_tools import (
    CAP,
    EDQUOT,
    PROBE,
    assert_answers,
    build_probe,
    put,
    sh,
    told,
)
from node.nodes import NodeHouse, RunningNode, output

from sandfleet_common import messages as m

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]
SLACK = 2 * m.MIB
"""What a file system keeps aside for what is under way."""


@pytest.fixture(scope="session")
def probe(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return build_probe(tmp_path_factory.mktemp("probe"))


@pytest_asyncio.fixture
async def pooled(house: NodeHouse) -> AsyncGenerator[RunningNode]:
    async with house.running() as node:
        if node.node.disks.free_bytes() is None:
            pytest.skip("doctor line `disk-caps`: no btrfs with simple quotas here")
        yield node


class Pair:
    """A sandbox with a cap, and another that must not notice."""

    def __init__(self, node: RunningNode, greedy: str, witness: str) -> None:
        self.node = node
        self.greedy = greedy
        self.witness = witness

    def used(self) -> int:
        return self.node.node.disks.usage([self.greedy])[self.greedy]

    async def try_to(self, what: str, *arguments: object) -> dict[str, int]:
        argv = [PROBE, what, *map(str, arguments)]
        return told(await self.node.run(self.greedy, *argv, wait_seconds=60))


@pytest_asyncio.fixture
async def pair(pooled: RunningNode, probe: bytes) -> AsyncGenerator[Pair]:
    """Both serve afterwards, and nothing of them is left when they have ended."""
    greedy = await pooled.create(resources=m.Resources(disk_bytes=CAP))
    witness = await pooled.create()
    await put(pooled, greedy, PROBE, probe)
    pair = Pair(pooled, greedy, witness)
    yield pair
    assert pair.used() <= CAP
    await assert_answers(pooled, witness)
    await sh(pooled, greedy, "cd /root && rm -rf [!p]* big")
    await assert_answers(pooled, greedy)
    for sandbox in (greedy, witness):
        await pooled.stop(sandbox)
    assert pooled.node.disks.usage() == {}
    assert pooled.node.places.sandbox_ids() == []


async def test_one_big_file_ends_at_the_cap(pair: Pair) -> None:
    found = await pair.try_to("write", "/root/big", 2 * CAP)
    assert found["error"] == EDQUOT
    assert CAP - SLACK < found["written"] <= CAP
    state = await sh(pair.node, pair.greedy, "echo more >> /root/big; echo x > /root/other")
    assert b"Disk quota exceeded" in output(state, "stderr") or state.exit_code == 0
    assert pair.used() <= CAP


async def test_a_program_reads_that_its_quota_is_exceeded(pair: Pair) -> None:
    state = await sh(pair.node, pair.greedy, "dd if=/dev/zero of=/root/big bs=1M count=200")
    assert state.exit_code == 1
    assert b"Disk quota exceeded" in output(state, "stderr")


async def test_deleting_makes_room_at_once(pair: Pair) -> None:
    for _ in range(3):
        found = await pair.try_to("write", "/root/big", 2 * CAP)
        assert CAP - SLACK < found["written"] <= CAP
        await sh(pair.node, pair.greedy, "rm /root/big")


async def test_direct_writes_end_at_the_cap(pair: Pair) -> None:
    found = await pair.try_to("direct", "/root/big", 2 * CAP)
    assert found["error"] in (EDQUOT, errno.ENOSPC)  # the kernel's direct path says the latter
    assert found["written"] <= CAP


async def test_more_than_the_cap_cannot_be_allocated(pair: Pair) -> None:
    assert await pair.try_to("allocate", "/root/big", 2 * CAP) == {"allocated": EDQUOT}
    assert await pair.try_to("allocate", "/root/big", CAP // 2) == {"allocated": 0}


async def test_a_sparse_file_may_be_long_and_its_pages_are_counted(pair: Pair) -> None:
    found = await pair.try_to("map", "/root/big", 4 * CAP)
    assert found["touched"] <= CAP


async def test_a_file_without_a_name_is_counted(pair: Pair) -> None:
    state = await pair.node.run(
        pair.greedy, PROBE, "unlinked", "/root/big", str(2 * CAP), "hold", wait_seconds=3
    )
    assert told(state)["written"] <= CAP
    assert pair.used() > CAP - SLACK
    again = await pair.try_to("write", "/root/big", CAP)
    assert again.get("written", 0) < SLACK  # not even its name may have found room
    await sh(pair.node, pair.greedy, "busybox killall probe; sleep 0.2")


async def test_many_small_files_end_at_the_cap(pair: Pair) -> None:
    script = (
        "mkdir /root/many && cd /root/many && "
        "seq 1 40000 | busybox xargs -n 2000 busybox sh -c "
        "'for i; do echo 0123456789 > $i || exit 255; done' sh"
    )
    state = await sh(pair.node, pair.greedy, script)
    assert b"Disk quota exceeded" in output(state, "stderr")
    assert pair.used() <= CAP


async def test_files_without_content_end_at_the_cap_too(pair: Pair) -> None:
    script = (
        "mkdir /root/many && cd /root/many && "
        "seq 1 40000 | sed s/^/a-name-that-is-long-enough-/ | busybox xargs -n 500 touch"
    )
    resources = m.Resources(disk_bytes=4 * m.MIB, memory_bytes=256 * m.MIB)
    small = await pair.node.create(resources=resources)
    state = await sh(pair.node, small, script)
    assert b"Disk quota exceeded" in output(state, "stderr")
    assert pair.node.node.disks.usage([small])[small] <= 4 * m.MIB
    await pair.node.stop(small)


async def test_another_name_of_a_file_takes_nothing_more(pair: Pair) -> None:
    script = (
        "cd /root && dd if=/dev/zero of=file bs=1M count=40 && "
        "for i in $(seq 1 50); do busybox ln file name$i || exit 1; done"
    )
    assert (await sh(pair.node, pair.greedy, script)).exit_code == 0
    assert pair.used() < CAP


async def test_copying_up_a_big_file_of_a_layer_is_counted(pooled: RunningNode) -> None:
    small = await pooled.create(resources=m.Resources(disk_bytes=m.MIB))
    state = await sh(pooled, small, "busybox chmod 700 /bin/busybox")
    assert state.exit_code != 0
    assert b"Disk quota exceeded" in output(state, "stderr")
    await assert_answers(pooled, small)


async def test_requests_to_the_file_system_below_are_refused_or_harmless(pair: Pair) -> None:
    before = pair.node.node.disks.pools.current.sandboxes()
    found = await pair.try_to("requests", "/root")
    refused = {errno.ENOTTY, errno.EPERM, errno.EOPNOTSUPP, errno.EINVAL, errno.EXDEV}
    wrong = {name: code for name, code in found.items() if code not in refused}
    assert wrong == {"written": 65536, "error": 0}
    assert pair.node.node.disks.pools.current.sandboxes() == before


async def test_what_a_sandbox_takes_is_known(pair: Pair) -> None:
    before = pair.used()
    await pair.try_to("write", "/root/big", 16 * m.MIB)
    assert 16 * m.MIB <= pair.used() - before < 17 * m.MIB


async def test_files_do_what_programs_expect_of_them(pair: Pair) -> None:
    found = await pair.try_to("features", "/root")
    assert {name: code for name, code in found.items() if code != 0} == {}
    assert len(found) == 10


async def test_what_a_layer_has_is_removed_replaced_and_renamed(pair: Pair) -> None:
    script = (
        "set -e; rm /bin/tr; test ! -e /bin/tr; rm -rf /home; mkdir /home;"
        'test -z "$(ls -A /home)";'
        "busybox mv /bin/od /bin/od2; test -L /bin/od2; test ! -e /bin/od;"
        "busybox cp /bin/busybox /root/busybox; chmod +x /root/busybox; /root/busybox echo runs"
    )
    state = await sh(pair.node, pair.greedy, script.replace("chmod", "busybox chmod"))
    assert (state.exit_code, output(state)) == (0, b"runs\n")
