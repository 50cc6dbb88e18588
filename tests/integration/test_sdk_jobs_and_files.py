"""Jobs, files and look-ups through the SDK, over both ways, and the blocking side of it all."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
import pytest_asyncio
from sdk_peer import Peer
from sdk_ways import trainer_address
from servers import Servers

from sandfleet import (
    AsyncClient,
    AsyncSandbox,
    BadRequest,
    Client,
    FileProblem,
    NotFound,
    SandboxSpec,
    Unreachable,
    calls,
    job,
)
from sandfleet_common.states import State

pytestmark = pytest.mark.integration


# ------------------------------------------------------------------------ jobs


async def test_a_job_yields_each_sandbox_once_and_failures_as_results(
    client: AsyncClient,
) -> None:
    async with client.job(SandboxSpec(), count=6) as made:
        slots = [sandbox.info_now.slot async for sandbox in made.ready()]
        assert sorted(slot for slot in slots if slot is not None) == [1, 2, 3, 4, 5]
        assert [(f.slot, f.code) for f in made.failures] == [(0, "no_capacity")]
        assert made.progress is not None
        assert (made.progress.ready, made.progress.failed) == (5, 1)


async def test_sandboxes_whose_events_were_missed_are_found_in_the_record(
    peer: Peer, client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "QUIET_SECONDS", 0.2)
    peer.lose_events = True
    async with client.job(SandboxSpec(), count=6) as made:
        slots = [sandbox.info_now.slot async for sandbox in made.ready()]
    assert slots == [1, 2, 3, 4, 5]
    assert [f.slot for f in made.failures] == [0]


async def test_leaving_a_job_ends_its_sandboxes(peer: Peer, client: AsyncClient) -> None:
    async with client.job(SandboxSpec(), count=3) as made:
        await made.wait()
    assert {info.state for info in peer.sandboxes.values()} == {State.STOPPED}


async def test_a_job_that_is_kept_can_be_found_again(client: AsyncClient) -> None:
    async with client.job(SandboxSpec(), count=4, keep=True) as made:
        await made.wait()
    again = await client.get_job(made.id)
    assert len([sandbox async for sandbox in again.ready()]) == 3
    assert len([sandbox async for sandbox in client.list(job_id=made.id)]) == 3
    await again.cancel()


async def test_a_job_nobody_knows_is_not_found(client: AsyncClient) -> None:
    with pytest.raises(NotFound):
        await client.get_job("job-none")


async def test_a_job_of_no_sandboxes_is_refused_before_it_is_sent(client: AsyncClient) -> None:
    with pytest.raises(BadRequest) as caught:
        client.job(SandboxSpec(), count=0)
    assert caught.value.fields["field"] == "count"


# ----------------------------------------------------------------------- files


@pytest.mark.parametrize("size", [0, 1, 524_288, 524_289, 3_000_000])
async def test_a_file_of_any_size_comes_back_as_it_was(sandbox: AsyncSandbox, size: int) -> None:
    data = random.Random(size).randbytes(size)
    await sandbox.files.write("folder/file", data)
    assert await sandbox.files.read("folder/file") == data
    assert (await sandbox.files.stat("folder/file")).size == size


async def test_a_path_may_hold_anything_but_nothing(sandbox: AsyncSandbox) -> None:
    path = "two\nlines/ü & ?#%20+.txt"
    await sandbox.files.write(path, "text")
    assert await sandbox.files.read_text(path) == "text"
    with pytest.raises(BadRequest):
        await sandbox.files.read("")


async def test_what_is_not_there_is_told_with_its_name(sandbox: AsyncSandbox) -> None:
    assert not await sandbox.files.exists("missing")
    with pytest.raises(FileProblem) as caught:
        await sandbox.files.read("missing")
    assert caught.value.fields["errno"] == "ENOENT"


async def test_files_are_renamed_listed_and_removed(sandbox: AsyncSandbox) -> None:
    await sandbox.files.mkdir("a/b")
    await sandbox.files.write("a/one", b"1", mode=0o600)
    await sandbox.files.rename("a/one", "a/two")
    assert [entry.name for entry in await sandbox.files.list("a")] == ["b", "two"]
    assert (await sandbox.files.stat("a/two")).mode == 0o600
    await sandbox.files.remove("a/two")
    assert [entry.name for entry in await sandbox.files.list("a")] == ["b"]


async def test_directories_go_in_and_come_out_whole(sandbox: AsyncSandbox, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep" / "deeper").mkdir(parents=True)
    (source / "deep" / "deeper" / "script").write_text("#!/bin/sh\n")
    (source / "deep" / "deeper" / "script").chmod(0o755)
    (source / "data").write_bytes(bytes(2_000_000))
    (source / "link").symlink_to("/etc/passwd")
    told: list[int] = []
    await sandbox.files.upload(source, "copy", progress=told.append)
    await sandbox.files.download("copy", tmp_path / "back")
    assert sum(told) == 2_000_010
    assert (tmp_path / "back/data").read_bytes() == bytes(2_000_000)
    assert (tmp_path / "back/deep/deeper/script").stat().st_mode & 0o777 == 0o755
    assert not (tmp_path / "back/link").exists()


async def test_a_download_does_not_follow_a_link_that_lies_in_its_way(
    sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    target = tmp_path / "target"
    target.mkdir()
    (target / "file").symlink_to(victim)
    await sandbox.files.write("out/file", "theirs")
    await sandbox.files.download("out", target)
    assert victim.read_text() == "mine"
    assert (target / "file").read_text() == "theirs"


# -------------------------------------------------------------------- look-ups


async def test_sandboxes_are_found_and_extended(client: AsyncClient, sandbox: AsyncSandbox) -> None:
    assert (await client.get(sandbox.id)).id == sandbox.id
    assert [s.id async for s in client.list()] == [sandbox.id]
    before = await sandbox.info()
    assert before.expires_at is None
    assert (await sandbox.extend(600)).expires_at is not None


async def test_an_unknown_environment_is_told_with_the_known_ones(client: AsyncClient) -> None:
    with pytest.raises(NotFound, match="debian"):
        await client.create(SandboxSpec(environment="none"))


async def test_a_sandbox_ends_with_its_block(client: AsyncClient) -> None:
    async with await client.create() as sandbox:
        pass
    assert (await sandbox.info()).state is State.STOPPED
    await sandbox.stop()


async def test_nobody_to_ask_is_told_within_the_deadline(
    client: AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "FIRST_PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(calls.call, "__kwdefaults__", {"within": 0.3, "held": 0})
    with pytest.raises(Unreachable):
        await client.alerts()  # there is no monitor


# ------------------------------------------------------------ the blocking side


@pytest_asyncio.fixture
async def address(servers: Servers, peer: Peer) -> str:
    return trainer_address(servers)


async def test_the_blocking_side_does_the_same(address: str, tmp_path: Path) -> None:
    def script() -> list[str]:
        seen: list[str] = []
        with Client(nats=address) as client, client.create() as sandbox:
            seen.append(sandbox.run("echo ran").text)
            sandbox.files.write("file", "written")
            seen.append(sandbox.files.read_text("file"))
            command = sandbox.start("echo streamed; cat", stdin=True)
            seen.append(next(command).data.decode())
            command.write("fed")
            command.close_stdin()
            seen += [chunk.data.decode() for chunk in command]
            seen.append(str(command.wait().exit_code))
            with client.job(count=3) as made:
                seen.append(str(len(list(made.ready()))))
            seen.append(str([s.id for s in client.list()] == [sandbox.id]))
        seen.append(sandbox.info_now.state)
        return seen

    assert await asyncio.to_thread(script) == [
        "ran\n", "written", "streamed\n", "fed", "0", "2", "True", "stopped",
    ]  # fmt: skip


async def test_an_error_reaches_a_blocking_caller_as_itself(address: str) -> None:
    def script() -> None:
        with Client(nats=address) as client, client.create() as sandbox:
            sandbox.run(["no-such-program"])

    with pytest.raises(NotFound, match="no-such-program"):
        await asyncio.to_thread(script)
