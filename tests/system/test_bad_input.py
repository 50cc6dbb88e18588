"""Bad input gets one clear sentence, and nothing is lost."""

from __future__ import annotations

import asyncio
import hashlib
import random

import pytest

from sandfleet import (
    AsyncClient,
    AsyncSandbox,
    BadRequest,
    Job,
    NotFound,
    Resources,
    SandboxSpec,
    SandfleetError,
)

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]


async def test_an_unknown_environment_is_named_together_with_the_known_ones(
    client: AsyncClient,
) -> None:
    with pytest.raises(NotFound) as caught:
        await client.create(SandboxSpec(environment="no-such-thing"))
    assert caught.value.code == "not_found"
    assert "no-such-thing" in caught.value.message
    assert "debian" in caught.value.message


async def test_a_job_for_an_unknown_environment_ends_with_that_reason(client: AsyncClient) -> None:
    async with client.job(SandboxSpec(environment="no-such-thing"), count=3) as job:
        assert [sandbox async for sandbox in job.ready()] == []
        assert {failure.code for failure in job.failures} == {"not_found"}
        assert len(job.failures) == 3


def test_a_limit_of_zero_is_refused_before_it_is_sent() -> None:
    with pytest.raises(BadRequest) as caught:
        Resources.of(cpu=0)
    assert caught.value.fields["field"] == "cpu"


async def test_a_program_that_does_not_exist_is_named(sandbox: AsyncSandbox) -> None:
    with pytest.raises(SandfleetError) as caught:
        await sandbox.run(["no-such-program"])
    assert caught.value.code in {"not_found", "file_error"}
    assert "no-such-program" in caught.value.message


async def test_a_working_directory_that_does_not_exist_is_named(sandbox: AsyncSandbox) -> None:
    with pytest.raises(SandfleetError) as caught:
        await sandbox.run(["true"], cwd="/no/such/place")
    assert "/no/such/place" in caught.value.message


async def test_a_path_may_hold_a_newline(sandbox: AsyncSandbox) -> None:
    path = "/tmp/two\nlines"
    await sandbox.files.write(path, b"inside")
    assert await sandbox.files.read(path) == b"inside"
    assert "two\nlines" in [entry.name for entry in await sandbox.files.list("/tmp")]
    await sandbox.files.remove(path)
    assert not await sandbox.files.exists(path)


async def test_bytes_are_bytes(sandbox: AsyncSandbox) -> None:
    every = bytes(range(256)) * 4
    await sandbox.files.write("/tmp/every", every)
    assert await sandbox.files.read("/tmp/every") == every
    assert (await sandbox.run(["cat", "/tmp/every"])).stdout == every


async def test_a_hundred_megabytes_of_input_arrive_whole(sandbox: AsyncSandbox) -> None:
    data = random.Random(7).randbytes(1024 * 1024) * 100
    result = await sandbox.run(["sha256sum"], input=data)
    assert result.stdout.split()[0].decode() == hashlib.sha256(data).hexdigest()


async def test_yes_is_cut_at_the_output_limit_and_says_so(sandbox: AsyncSandbox) -> None:
    limit = 1024 * 1024
    result = await sandbox.run(["yes"], timeout=3, output_limit=limit)
    assert result.timed_out
    assert len(result.stdout) == limit
    assert result.stdout == b"y\n" * (limit // 2)
    assert result.dropped_bytes > 0
    assert (await sandbox.run(["echo", "fine"])).stdout == b"fine\n"


async def test_a_timeout_kills_the_whole_tree_and_keeps_partial_output(
    sandbox: AsyncSandbox,
) -> None:
    script = "echo begun; setsid sleep 4711 & sleep 4711"
    result = await sandbox.run(script, timeout=1)
    assert result.timed_out
    assert result.stdout == b"begun\n"
    left = [p for p in await sandbox.processes() if "4711" in p.argv]
    assert left == []


async def test_a_fork_bomb_stays_inside_its_sandbox(client: AsyncClient) -> None:
    spec = SandboxSpec(resources=Resources(pids=64, memory_bytes=256 * 1024**2))
    async with await client.create(spec) as bombed, await client.create() as neighbour:
        bomb = await bombed.run("b() { b | b & }; b; sleep 2", timeout=4)
        assert bomb.exit_code != 0 or bomb.timed_out or bomb.stderr
        assert (await neighbour.run(["echo", "here"])).stdout == b"here\n"
        assert len(await bombed.processes()) <= 64
        assert (await bombed.info()).state == "running"


async def test_a_sandbox_that_eats_memory_loses_the_eater_not_the_agent(
    client: AsyncClient,
) -> None:
    spec = SandboxSpec(resources=Resources(memory_bytes=64 * 1024**2))
    async with await client.create(spec) as sandbox:
        eaten = await sandbox.run(["python3", "-c", "x = bytearray(512 * 1024**2)"], timeout=30)
        assert eaten.exit_code != 0
        assert (await sandbox.run(["echo", "alive"])).stdout == b"alive\n"


async def test_a_client_that_disappears_loses_no_output(
    client: AsyncClient, sandbox: AsyncSandbox
) -> None:
    script = "for i in $(seq 1 200); do echo line $i; sleep 0.01; done"
    command = await sandbox.start(script)
    seen = b""
    async for chunk in command:
        seen += chunk.data
        if len(seen) > 100:
            break  # the reader is gone without a word
    await command.detach()
    again = await (await client.get(sandbox.id)).attach(command.exec_id, position=len(seen))
    async for chunk in again:
        seen += chunk.data
    assert seen == b"".join(b"line %d\n" % number for number in range(1, 201))
    assert (await again.wait()).exit_code == 0


async def test_output_in_the_background_does_not_hold_the_command(sandbox: AsyncSandbox) -> None:
    async with asyncio.timeout(20):
        result = await sandbox.run("sleep 300 & echo done")
    assert result.stdout == b"done\n"
    assert result.exit_code == 0


async def test_an_ended_sandbox_says_why(client: AsyncClient) -> None:
    sandbox = await client.create()
    await sandbox.stop()
    with pytest.raises(SandfleetError) as caught:
        await sandbox.run(["true"])
    assert caught.value.code == "sandbox_gone"
    assert "stopped" in caught.value.message


def test_a_job_of_no_sandboxes_is_refused() -> None:
    with pytest.raises(BadRequest):
        Job(SandboxSpec(), count=0)
