"""Services die in the middle of work, and nothing is lost or done twice."""

from __future__ import annotations

import asyncio
import os
import select
import signal
from pathlib import Path

import pytest

from sandfleet import AsyncClient, AsyncSandbox, Resources, SandboxSpec, local

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(180)]

SMALL = SandboxSpec(resources=Resources(memory_bytes=64 * 1024**2, pids=32))


def kill(state: Path, service: str) -> None:
    """Kill one process of the platform, without warning, and see it gone."""
    endpoints = local.find(state)
    assert endpoints is not None
    process = os.pidfd_open(endpoints.pids[service])
    try:
        signal.pidfd_send_signal(process, signal.SIGKILL)
        ended, _, _ = select.select([process], [], [], 10)
        assert ended, f"{service} does not die"
    finally:
        os.close(process)


async def revive(state: Path) -> None:
    """Start again what has died."""
    await asyncio.to_thread(local.up, state, progress=lambda line: None)


@pytest.mark.parametrize("service", ["nats", "redis", "scheduler", "node"])
async def test_a_job_survives_the_death_of(
    service: str, platform: Path, client: AsyncClient
) -> None:
    count = 120
    async with client.job(SMALL, count=count, deadline_seconds=120) as job:
        slots: list[int] = []
        sandboxes: list[AsyncSandbox] = []
        revived: asyncio.Task[None] | None = None
        async for sandbox in job.ready():
            assert sandbox.info_now.slot is not None
            slots.append(sandbox.info_now.slot)
            sandboxes.append(sandbox)
            if len(slots) == 20:
                kill(platform, service)
                revived = asyncio.create_task(revive(platform))
        assert revived is not None
        await revived
        failed = [failure.slot for failure in job.failures]
        assert sorted(slots + failed) == list(range(count))
        assert failed == []
        assert len({sandbox.id for sandbox in sandboxes}) == count
        for sandbox in sandboxes[::10]:
            assert (await sandbox.run(["echo", "here"])).stdout == b"here\n"


async def test_a_command_outlives_its_node_service(platform: Path, client: AsyncClient) -> None:
    async with await client.create(SMALL) as sandbox:
        command = await sandbox.start("for i in $(seq 1 400); do echo line $i; sleep 0.02; done")
        await asyncio.sleep(1)
        kill(platform, "node")
        await asyncio.sleep(1)
        await revive(platform)
        seen = b""
        async for chunk in await sandbox.attach(command.exec_id):
            seen += chunk.data
        assert seen == b"".join(b"line %d\n" % number for number in range(1, 401))
        assert (await command.wait()).exit_code == 0


async def test_redis_learns_all_sandboxes_anew(platform: Path, client: AsyncClient) -> None:
    async with await client.create(SMALL) as sandbox:
        kill(platform, "redis")
        await revive(platform)
        async with asyncio.timeout(30):
            while sandbox.id not in [known.id async for known in client.list()]:
                await asyncio.sleep(0.2)
        assert (await sandbox.run(["echo", "here"])).stdout == b"here\n"
