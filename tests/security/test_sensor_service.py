"""The sensor service when something around it fails."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from pathlib import Path

import nats
import psutil
import pytest
from servers import Servers
from watching import Cage, Heard, Running, running

from sandfleet_common import subjects
from sandfleet_common.messages import Fact, FactBatch

pytestmark = [pytest.mark.integration, pytest.mark.root, pytest.mark.timeout(90)]

UMOUNT = 'libc.umount2(b"/there-is-no-such-place", 0)'


async def test_without_the_right_to_load_ebpf_it_is_ready_and_says_so(
    cage: Cage, servers: Servers, tmp_path: Path
) -> None:
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        pytest.skip("doctor line `util-linux`: setpriv is not installed")
    helpless = (setpriv, "--bounding-set=-all", "--inh-caps=-all", "--no-new-privs")
    async with running("sensor", servers, tmp_path / "log", *helpless, node=cage.node) as service:
        status, health = await service.health()
        assert (status, health["ready"], health["problems"]) == (200, True, {})
        assert health["warnings"]["ebpf"] == (
            "nobody watches the sandboxes of this machine: the kernel does not load the eBPF "
            "programs: it needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_RESOURCE; "
            "see the line `ebpf` of `sandfleet doctor`"
        )
        assert await service.metric("sandfleet_sensor_attached") == 0
        assert await service.metric('sandfleet_health_check{check="ebpf"}') == 0


async def test_without_the_program_it_is_ready_and_says_so(
    cage: Cage, servers: Servers, tmp_path: Path
) -> None:
    async with running(
        "sensor", servers, tmp_path / "log", node=cage.node, sensor_binary="/nowhere/sensor"
    ) as service:
        status, health = await service.health()
        assert status == 200
        assert "sandfleet-sensor is missing" in health["warnings"]["ebpf"]


async def test_a_sensor_program_that_dies_is_started_again(
    cage: Cage, heard: Heard, sensor: Running
) -> None:
    (before,) = sensor.children()
    os.kill(before, signal.SIGKILL)
    await sensor.until_metric("sandfleet_sensor_program_starts_total", 2)
    await sensor.until(lambda _, health: not health["warnings"])
    sandbox, where = cage.sandbox("c1")
    cage.run(where, UMOUNT)
    fact = await heard.until(lambda fact: fact.kind == "umount2")
    assert fact.sandbox_id == sandbox


async def test_what_ran_before_the_sensor_is_judged(
    cage: Cage, heard: Heard, servers: Servers, tmp_path: Path
) -> None:
    sandbox, where = cage.sandbox("c1")
    process = cage.start(where, "/bin/sh", "-c", "read x; exec umount /there-is-no-such-place")
    assert process.stdin is not None
    async with running(
        "sensor", servers, tmp_path / "log", node=cage.node, cgroup_directory=cage.root.name
    ) as service:
        await service.until(lambda _, health: not health["warnings"])
        process.stdin.write("\n")
        process.stdin.flush()
        await heard.until(lambda fact: (fact.path or "").endswith("/umount"))
        assert heard.of(sandbox)


async def test_the_program_ends_with_a_service_that_is_killed(
    cage: Cage, servers: Servers, tmp_path: Path
) -> None:
    async with running(
        "sensor", servers, tmp_path / "log", node=cage.node, cgroup_directory=cage.root.name
    ) as service:
        await service.until(lambda _, health: not health["warnings"])
        (program,) = [psutil.Process(pid) for pid in service.children()]
        service.process.kill()
        await service.process.wait()
        await asyncio.to_thread(program.wait, 20)
    assert not program.is_running()


async def test_facts_seen_while_nats_is_away_arrive_afterwards(
    cage: Cage, servers: Servers, sensor: Running
) -> None:
    admin = {"user": "admin", "password": servers.nats.passwords["admin"]}
    client = await nats.connect(servers.nats.url, **admin)
    # A stream, so that it does not matter who is back first: the sensor or who reads its facts.
    await client.jetstream().add_stream(name="SEEN", subjects=[subjects.SECURITY_FACTS.wildcard()])
    await client.close()
    sandbox, where = cage.sandbox("c1")
    servers.nats.stop()
    await sensor.until(lambda status, _: status == 503)
    cage.run(where, UMOUNT)
    await sensor.until_metric("sandfleet_sensor_waiting_facts")
    servers.nats.start()
    client = await nats.connect(servers.nats.url, **admin)
    try:
        reader = await client.jetstream().pull_subscribe("", stream="SEEN", durable="reader")
        found: list[Fact] = []
        while not any(fact.kind == "umount2" for fact in found):
            for message in await reader.fetch(10, timeout=20):
                found += FactBatch.decode(message.data).facts
    finally:
        await client.close()
    assert {fact.sandbox_id for fact in found} == {sandbox}


async def test_told_to_stop_it_leaves_no_process_and_sends_what_waits(
    cage: Cage, heard: Heard, servers: Servers, tmp_path: Path
) -> None:
    async with running(
        "sensor",
        servers,
        tmp_path / "log",
        node=cage.node,
        cgroup_directory=cage.root.name,
        batch_seconds="10",
    ) as service:
        await service.until(lambda _, health: not health["warnings"])
        children = [psutil.Process(pid) for pid in service.children()]
        sandbox, where = cage.sandbox("c1")
        cage.run(where, UMOUNT)
        await service.until_metric("sandfleet_sensor_waiting_facts")
    await heard.until(lambda fact: fact.kind == "umount2")
    assert heard.of(sandbox)
    assert children
    assert not any(child.is_running() for child in children)
