"""Commands through the SDK over a real NATS server, with a peer that fails on request."""

from __future__ import annotations

import asyncio
import hashlib
import random
from pathlib import Path

import pytest
from sdk_peer import Peer
from servers import Servers

from sandfleet import (
    AsyncClient,
    AsyncSandbox,
    CommandFailed,
    Conflict,
    NodeLost,
    NotFound,
    SandboxGone,
    TimedOut,
    calls,
    command,
)
from sandfleet import sandbox as sandbox_module
from sandfleet_common import subjects as s
from sandfleet_common.states import Origin

pytestmark = pytest.mark.integration


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let one attempt be over soon, so that a lost answer does not hold a test up."""
    monkeypatch.setattr(calls, "ATTEMPT_SECONDS", 0.5)
    monkeypatch.setattr(sandbox_module, "HOLD_SECONDS", 0.2)
    monkeypatch.setattr(command, "QUIET_SECONDS", 0.3)


def numbered(count: int) -> bytes:
    return b"".join(b"line %d\n" % number for number in range(1, count + 1))


async def test_a_short_command_takes_one_request(peer: Peer, sandbox: AsyncSandbox) -> None:
    peer.asked.clear()
    result = await sandbox.run("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"out\n", b"err\n")
    assert peer.asked == {s.EXEC_START.pattern: 1}


async def test_a_list_runs_without_a_shell(sandbox: AsyncSandbox) -> None:
    assert (await sandbox.run(["echo", "$HOME;"])).text == "$HOME;\n"


async def test_input_that_is_short_travels_with_the_request(
    peer: Peer, sandbox: AsyncSandbox
) -> None:
    peer.asked.clear()
    assert (await sandbox.run(["cat"], input="hällo")).text == "hällo"
    assert peer.asked == {s.EXEC_START.pattern: 1}


async def test_environment_and_directory_reach_the_command(
    sandbox: AsyncSandbox, tmp_path: Path
) -> None:
    result = await sandbox.run("echo $NAME; pwd", env={"NAME": "value"}, cwd=str(tmp_path))
    assert result.text.split() == ["value", str(tmp_path)]


async def test_output_longer_than_one_answer_is_complete(sandbox: AsyncSandbox) -> None:
    result = await sandbox.run("seq 1 200000")
    assert result.stdout == b"".join(b"%d\n" % n for n in range(1, 200_001))


async def test_check_raises_with_the_result(sandbox: AsyncSandbox) -> None:
    with pytest.raises(CommandFailed) as caught:
        await sandbox.run("echo broken >&2; exit 7", check=True)
    assert caught.value.result.exit_code == 7
    assert "broken" in caught.value.message


async def test_a_signal_is_told_apart_from_an_exit_code(sandbox: AsyncSandbox) -> None:
    result = await sandbox.run("kill -TERM $$")
    assert (result.exit_code, result.signal) == (None, 15)


async def test_a_timeout_keeps_partial_output(sandbox: AsyncSandbox) -> None:
    result = await sandbox.run("echo begun; sleep 30", timeout=0.3)
    assert result.timed_out
    assert result.stdout == b"begun\n"


async def test_dropped_output_is_counted(sandbox: AsyncSandbox) -> None:
    result = await sandbox.run("head -c 100000 /dev/zero", output_limit=1000)
    assert len(result.stdout) == 1000
    assert result.dropped_bytes == 99_000


async def test_a_lost_answer_does_not_run_a_command_twice(
    peer: Peer, sandbox: AsyncSandbox, impatient: None
) -> None:
    peer.lose_answers[s.EXEC_START.pattern] = 2
    result = await sandbox.run("echo once >> log; cat log", timeout=5)
    assert result.stdout == b"once\n"
    assert list(peer.starts.values()) == [1]


async def test_a_signal_whose_answer_is_lost_is_not_sent_twice(
    peer: Peer, sandbox: AsyncSandbox, impatient: None
) -> None:
    running = await sandbox.start("sleep 30")
    peer.lose_answers[s.EXEC_SIGNAL.pattern] = 1
    with pytest.raises(TimedOut):
        await running.signal(15)
    assert peer.asked[s.EXEC_SIGNAL.pattern] == 1


async def test_a_lost_answer_to_a_creation_gives_the_same_sandbox(
    peer: Peer, client: AsyncClient, impatient: None
) -> None:
    peer.lose_answers[s.SANDBOX_CREATE.pattern] = 1
    await client.create(deadline=1)
    assert len(peer.sandboxes) == 1


async def test_a_creation_nobody_waits_for_leaves_no_sandbox(
    peer: Peer, client: AsyncClient
) -> None:
    peer.lose_answers[s.SANDBOX_CREATE.pattern] = 1
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await client.create()
    assert [info.state for info in peer.sandboxes.values()] == ["stopped"]


async def test_long_input_arrives_whole(sandbox: AsyncSandbox) -> None:
    data = random.Random(1).randbytes(5_000_000)
    result = await sandbox.run(["sha256sum"], input=data)
    assert result.text.split()[0] == hashlib.sha256(data).hexdigest()


async def test_a_command_may_ignore_long_input(sandbox: AsyncSandbox) -> None:
    result = await sandbox.run("exit 4", input=bytes(3_000_000))
    assert result.exit_code == 4


async def test_output_is_streamed_as_it_comes(sandbox: AsyncSandbox) -> None:
    running = await sandbox.start("echo one; read word; echo $word >&2", stdin=True)
    first = await anext(running)
    await running.write("two\n")
    second = await anext(running)
    assert [(c.stream, c.data) for c in (first, second)] == [
        ("stdout", b"one\n"),
        ("stderr", b"two\n"),
    ]
    assert [chunk async for chunk in running] == []
    assert (await running.wait()).exit_code == 0


async def test_lost_frames_are_asked_for_again_and_come_once(
    peer: Peer, sandbox: AsyncSandbox, impatient: None
) -> None:
    peer.lose_frames = {2, 3, 7}
    running = await sandbox.start("for i in $(seq 1 400); do echo line $i; done; sleep 0.1; echo")
    seen = b"".join([chunk.data async for chunk in running])
    assert seen == numbered(400) + b"\n"


async def test_a_lost_last_frame_does_not_hold_the_reader(
    peer: Peer, sandbox: AsyncSandbox, impatient: None
) -> None:
    peer.lose_frames = {1}
    running = await sandbox.start("echo only; cat", stdin=True)
    assert (await anext(running)).data == b"only\n"
    await running.close_stdin()
    assert [chunk async for chunk in running] == []


async def test_a_node_that_starts_anew_loses_no_output(
    peer: Peer, sandbox: AsyncSandbox, impatient: None
) -> None:
    running = await sandbox.start("for i in $(seq 1 100); do echo line $i; sleep 0.01; done")
    seen = (await anext(running)).data
    peer.lose_node()
    seen += b"".join([chunk.data async for chunk in running])
    assert seen == numbered(100)
    assert peer.attached == 2


async def test_input_survives_a_node_that_starts_anew(
    peer: Peer, sandbox: AsyncSandbox, impatient: None
) -> None:
    data = random.Random(2).randbytes(1_000_000)
    running = await sandbox.start(["sha256sum"], stdin=True)
    await running.write(data[:300_000])
    peer.lose_node()
    await running.write(data[300_000:])
    await running.close_stdin()
    result = await running.wait()
    assert result.text.split()[0] == hashlib.sha256(data).hexdigest()


async def test_a_server_that_restarts_loses_no_output(
    servers: Servers, peer: Peer, sandbox: AsyncSandbox, impatient: None
) -> None:
    running = await sandbox.start("for i in $(seq 1 150); do echo line $i; sleep 0.01; done")
    seen = (await anext(running)).data
    servers.nats.restart()  # in this thread: the server ends with the thread that started it
    seen += b"".join([chunk.data async for chunk in running])
    assert seen == numbered(150)


async def test_a_slow_reader_holds_the_sender_back(peer: Peer, sandbox: AsyncSandbox) -> None:
    running = await sandbox.start("seq 1 500000")
    seen = (await anext(running)).data
    await peer.until(lambda: peer.sent_most_beyond_credit >= 1024 * 1024)
    assert peer.sent_most_beyond_credit == 1024 * 1024
    seen += b"".join([chunk.data async for chunk in running])
    assert hashlib.sha256(seen).digest() == hashlib.sha256(
        b"".join(b"%d\n" % n for n in range(1, 500_001))
    ).digest()  # fmt: skip


async def test_another_reader_continues_from_a_position(
    client: AsyncClient, sandbox: AsyncSandbox
) -> None:
    running = await sandbox.start("for i in $(seq 1 50); do echo line $i; sleep 0.01; done")
    seen = (await anext(running)).data
    await running.detach()
    again = await (await client.get(sandbox.id)).attach(running.exec_id, position=running.position)
    seen += b"".join([chunk.data async for chunk in again])
    assert seen == numbered(50)


async def test_wait_gives_the_output_nobody_has_read(sandbox: AsyncSandbox) -> None:
    running = await sandbox.start("echo unread")
    assert (await running.wait()).stdout == b"unread\n"


async def test_a_cancelled_caller_kills_its_command(peer: Peer, sandbox: AsyncSandbox) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await sandbox.run("sleep 60")
    (found,) = peer.commands.values()
    assert await found.process.wait() == -9


async def test_writing_to_a_command_that_has_ended_says_so(sandbox: AsyncSandbox) -> None:
    running = await sandbox.start("exit 0", stdin=True)
    await running.wait()
    assert [chunk async for chunk in running] == []
    with pytest.raises(Conflict) as caught:
        await running.write(b"late")
    assert caught.value.code == "conflict"


async def test_a_program_that_does_not_exist_is_named(sandbox: AsyncSandbox) -> None:
    with pytest.raises(NotFound) as caught:
        await sandbox.run(["no-such-program"])
    assert "no-such-program" in caught.value.message


@pytest.mark.parametrize(("origin", "error"), [("user", SandboxGone), ("node-lost", NodeLost)])
async def test_a_silent_node_is_explained_by_the_record(
    peer: Peer,
    client: AsyncClient,
    origin: str,
    error: type[Exception],
) -> None:
    elsewhere = await client.create()
    gone = peer.end(elsewhere.id, "its machine burnt", Origin(origin))
    moved = gone.model_copy(update={"sandbox_id": gone.sandbox_id.replace("-peer-", "-ashes-")})
    peer.sandboxes[moved.sandbox_id] = moved
    with pytest.raises(error, match="its machine burnt"):
        await (await client.get(moved.sandbox_id)).run(["true"])
