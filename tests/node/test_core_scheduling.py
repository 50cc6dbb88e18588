"""Hyperthreads kept to one sandbox at a time, or a clear word where that cannot be had."""

from __future__ import annotations

import os

import pytest
from node.nodes import NodeHouse

from sandfleet_common.errors import BadRequest
from sandfleet_node.cores import CoreScheduling, cookie_of, support


async def test_where_the_kernel_has_none_a_node_that_should_use_it_does_not_start(
    house: NodeHouse,
) -> None:
    if support() is not CoreScheduling.MISSING:
        pytest.skip("doctor line `core-scheduling`: this kernel has core scheduling")
    with pytest.raises(BadRequest, match="CONFIG_SCHED_CORE"):
        async with house.running(core_scheduling=True):
            pass


async def test_every_sandbox_has_a_cookie_of_its_own_and_its_commands_inherit_it(
    house: NodeHouse,
) -> None:
    if support() is not CoreScheduling.WORKS:
        pytest.skip("doctor line `core-scheduling`: the kernel has none, or no hyperthreads")
    async with house.running(core_scheduling=True) as node:
        ids = [await node.create() for _ in range(2)]
        cookies = [cookie_of(node.node.sandboxes.get(each).pid) for each in ids]
        assert 0 not in cookies
        assert cookies[0] != cookies[1]
        assert cookie_of(os.getpid()) == 0
        await node.run(ids[0], "sleep", "100", wait_seconds=0)
        pids = node.node.pausing.group(node.node.sandboxes.get(ids[0])).pids()
        assert {cookie_of(pid) for pid in pids} == {cookies[0]}
