"""Function calls through the SDK and the command line, both ways, with a peer that fails."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio
from calls_peer import CallsPeer, serving_calls
from sdk_ways import trainer_address
from servers import Connect, Servers

from sandfleet import (
    AsyncClient,
    BadRequest,
    Broken,
    Busy,
    Call,
    CallFailed,
    CallResult,
    Client,
    NotFound,
    TimedOut,
    calling,
)
from sandfleet_common.errors import NoCapacity
from sandfleet_common.messages import CallStep, FunctionResult

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]


@pytest_asyncio.fixture
async def peer(connect: Connect) -> AsyncGenerator[CallsPeer]:
    async with serving_calls(await connect("node"), await connect("scheduler")) as peer:
        yield peer


@pytest_asyncio.fixture
async def trainer(servers: Servers, peer: CallsPeer) -> AsyncGenerator[AsyncClient]:
    async with AsyncClient.connect(nats=trainer_address(servers)) as client:
        yield client


def square(number: int) -> int:
    return number * number


def failing(number: int) -> int:
    numbers = [1]
    return numbers[number]


# ----------------------------------------------------------------------- calls


async def test_a_call_gives_output_files_and_times(client: AsyncClient) -> None:
    code = (
        "import os, sys, other\n"
        "open('out', 'wb').write(b'\\xff')\n"
        "print(sys.stdin.read() + other.WORD + os.environ['A'])\n"
        "sys.exit(3)"
    )
    result = await client.call(
        code, stdin="in ", files={"other.py": "WORD = 'w'"}, fetch=["out", "no"], env={"A": "!"}
    )
    assert (result.status, result.exit_code, result.text) == ("error", 3, "in w!\n")
    assert (result.files, result.missing) == ({"out": b"\xff"}, ("no",))
    assert (result.wait_ms, result.run_ms) == (1, 2)
    with pytest.raises(CallFailed, match="exited with 3"):
        result.check()


async def test_a_full_queue_is_asked_again(client: AsyncClient, peer: CallsPeer) -> None:
    peer.busy = 3
    assert (await client.call("print(1)")).check().text == "1\n"
    assert len(peer.asked) == 4
    assert len({call.request_id for call in peer.asked}) == 1, "it is one and the same call"
    waits = [call.queue_seconds for call in peer.asked]
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] < waits[0], "what it waited here, it does not wait there"


async def test_a_queue_that_stays_full_is_told_when_the_wait_is_over(
    client: AsyncClient, peer: CallsPeer
) -> None:
    peer.busy = 1000
    with pytest.raises(Busy, match="full"):
        await client.call("print(1)", queue_s=0.2)
    assert len(peer.asked) > 1


async def test_it_waits_as_long_as_the_node_says(client: AsyncClient, peer: CallsPeer) -> None:
    peer.busy, peer.retry_after_seconds = 1, 60
    with pytest.raises(Busy):
        await client.call("print(1)", queue_s=5)
    assert len(peer.asked) == 1


async def test_a_lost_answer_is_not_asked_for_again(
    client: AsyncClient, peer: CallsPeer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calling, "MARGIN_SECONDS", 0.3)
    peer.is_silent = True
    with pytest.raises(TimedOut):
        await client.call("print(1)", timeout_s=0.1, queue_s=0.1)
    assert len(peer.asked) == 1


async def test_a_node_without_room_is_not_the_last_word(
    client: AsyncClient, peer: CallsPeer
) -> None:
    peer.fails = NoCapacity("it takes no sandboxes")
    with pytest.raises(NoCapacity, match="takes no"):
        await client.call("print(1)", queue_s=0.3)
    assert len(peer.asked) > 1, "another node might have had room"


async def test_a_bug_is_told_at_once(client: AsyncClient, peer: CallsPeer) -> None:
    peer.fails = Broken("inside")
    with pytest.raises(Broken, match="inside"):
        await client.call("print(1)")
    assert len(peer.asked) == 1


async def test_an_environment_that_no_node_has_is_named_with_those_there_are(
    client: AsyncClient, peer: CallsPeer
) -> None:
    with pytest.raises(NotFound, match="'debain'; there are: debian"):
        await client.call("print(1)", environment="debain")
    assert peer.asked == []


async def test_a_value_that_does_not_fit_goes_nowhere(client: AsyncClient, peer: CallsPeer) -> None:
    with pytest.raises(BadRequest, match="wall_seconds"):
        await client.call("print(1)", timeout_s=0)
    with pytest.raises(BadRequest, match="give code"):
        await client.call()
    assert peer.asked == []


# ------------------------------------------------------------------ many calls


async def test_many_calls_come_as_they_end_with_their_numbers(
    client: AsyncClient, peer: CallsPeer
) -> None:
    peer.busy = 5
    calls = (Call(f"print({number})") if number % 2 else f"print({number})" for number in range(20))
    found = {number: result.text async for number, result in client.call_many(calls, concurrency=3)}
    assert found == {number: f"{number}\n" for number in range(20)}
    assert 1 < peer.most_at_once <= 3


async def test_a_call_the_platform_could_not_make_is_a_result_of_its_own(
    client: AsyncClient, peer: CallsPeer
) -> None:
    peer.fails = NoCapacity("no sandbox in time")
    calls = [Call("1", queue_s=0.1)] * 2
    found: list[CallResult] = [result async for _, result in client.call_many(calls)]
    assert [result.status for result in found] == ["lost", "lost"]
    with pytest.raises(NoCapacity, match="in time"):
        found[0].check()


async def test_what_cannot_be_met_ends_the_rest(client: AsyncClient) -> None:
    with pytest.raises(NotFound, match="there are: debian"):
        async for _ in client.call_many([Call("1", environment="none")] * 5):
            pass
    with pytest.raises(BadRequest, match="concurrency"):
        async for _ in client.call_many(["1"], concurrency=0):
            pass


async def test_who_stops_early_leaves_nothing_running(client: AsyncClient, peer: CallsPeer) -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        while True:
            taken += 1
            yield "print(1)"

    many = client.call_many(endless(), concurrency=2)
    async for _ in many:
        break
    await many.aclose()  # type: ignore[attr-defined]
    assert taken <= 4, "calls are taken as they are made, not ahead"


async def test_an_error_of_the_calls_own_source_reaches_the_caller(client: AsyncClient) -> None:
    def broken() -> Iterator[str]:
        yield "print(1)"
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        async for _ in client.call_many(broken(), concurrency=1):
            pass


# ------------------------------------------------------------------- functions


async def test_a_function_runs_there_and_here(client: AsyncClient, peer: CallsPeer) -> None:
    there = client.function(timeout_s=5, environment="debian")(square)
    assert await there(7) == 49
    assert there.local(7) == 49
    assert (await there.call(number=3)).value == 9
    assert (peer.asked[0].function, peer.asked[0].limits.wall_seconds) == ("square", 5)


async def test_what_a_function_raises_comes_with_its_traceback(client: AsyncClient) -> None:
    there = client.function()(failing)
    with pytest.raises(CallFailed, match="raised IndexError: list index out of range") as raised:
        await there(7)
    assert "return numbers[number]" in str(raised.value)


async def test_a_function_of_many_gives_its_values_in_order(
    client: AsyncClient, peer: CallsPeer
) -> None:
    there = client.function()(square)
    assert [value async for value in there.map(range(12), concurrency=3)] == [
        number * number for number in range(12)
    ]
    assert peer.most_at_once <= 3
    with pytest.raises(CallFailed, match="IndexError"):
        async for _ in client.function()(failing).map([0, 5]):
            pass


async def test_an_argument_that_is_not_json_is_never_sent(
    client: AsyncClient, peer: CallsPeer
) -> None:
    there = client.function()(square)
    with pytest.raises(BadRequest, match="argument 1 of square is of type set"):
        await there({1})  # type: ignore[arg-type]
    assert peer.asked == []


async def test_the_blocking_side_does_the_same(servers: Servers, peer: CallsPeer) -> None:
    def work() -> None:
        with Client(nats=trainer_address(servers)) as client:
            assert client.call("print(1)").check().text == "1\n"
            found = dict(client.call_many(["print(1)", "print(2)"]))
            assert {n: r.text for n, r in found.items()} == {0: "1\n", 1: "2\n"}

            @client.function(timeout_s=5)
            def there(number: int) -> int:
                return number + 1

            assert (there(1), there.local(2), list(there.map([1, 2]))) == (2, 3, [2, 3])

    await asyncio.to_thread(work)


# ---------------------------------------------------------------- command line


async def run(
    servers: Servers, *arguments: str, given: bytes = b"", cwd: Path | None = None
) -> tuple[int, bytes, str]:
    inherited = {k: v for k, v in os.environ.items() if not k.startswith("SANDFLEET_")}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "sandfleet.cli", "call", *arguments, cwd=cwd,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env=inherited | {"SANDFLEET_NATS": trainer_address(servers)},
    )  # fmt: skip
    out, err = await process.communicate(given)
    assert process.returncode is not None
    return process.returncode, out, err.decode()


async def test_code_stands_on_the_command_line(servers: Servers, peer: CallsPeer) -> None:
    done = await run(servers, "import sys; print(sys.stdin.read()); sys.exit(7)", given=b"in")
    assert done == (7, b"in\n", "")


async def test_a_file_says_its_language_and_takes_files(
    servers: Servers, peer: CallsPeer, tmp_path: Path
) -> None:
    (tmp_path / "main.sh").write_text("cat a b > out; cat out")
    (tmp_path / "a").write_bytes(b"\xff")
    done = await run(
        servers, "main.sh", "--file", "a", "--file", "main.sh:b", "--fetch", "out:sub/copy",
        "--fetch", "none", cwd=tmp_path,
    )  # fmt: skip
    expected = b"\xff" + (tmp_path / "main.sh").read_bytes()
    assert done == (0, expected, "[sandfleet: none is no file there, or too large]\n")
    assert (tmp_path / "sub" / "copy").read_bytes() == expected
    assert peer.asked[0].language == "bash"


async def test_code_may_be_piped_in(servers: Servers, peer: CallsPeer) -> None:
    status, out, _ = await run(servers, "-", "-l", "bash", "--json", given=b"echo hi; exit 2")
    told = json.loads(out)
    assert (status, told["stdout"], told["exit_code"], told["status"]) == (2, "hi\n", 2, "error")


async def test_a_limit_is_told_and_ends_like_a_kill(servers: Servers, peer: CallsPeer) -> None:
    step = CallStep(signal=9, stdout=b"part\n", dropped_bytes=2048)
    peer.result = FunctionResult(status="timeout", step=step)
    status, out, err = await run(servers, "1", "--timeout", "2", "--memory", "64m")
    assert (status, out) == (137, b"part\n")
    assert "time limit of 2 s" in err
    assert "2.0 KiB of output dropped" in err
    assert peer.asked[0].limits.memory_bytes == 64 * 1024**2


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("nowhere.py",), 2, "there is no file 'nowhere.py'"),
        (("1", "-e", "none"), 125, "there are: debian"),
        (("1", "--timeout", "0"), 2, "sandfleet: --timeout: "),
        (
            ("1", "--memory", "1"),
            2,
            "sandfleet: --memory: input should be greater than or equal to 16",
        ),
        (("1", "--file", "nowhere"), 2, "No such file"),
        (("1", "--fetch", "../up"), 2, "path below"),
        (("1", "-l", "cobol"), 2, "cobol"),
        ((), 2, "CODE"),
    ],
)
async def test_mistakes_are_told_in_a_line(
    servers: Servers, peer: CallsPeer, arguments: tuple[str, ...], status: int, words: str
) -> None:
    found, out, err = await run(servers, *arguments)
    assert (found, out) == (status, b"")
    assert words in err
    assert "Traceback" not in err


async def test_the_shell_completes_environments_and_languages(
    servers: Servers, peer: CallsPeer
) -> None:
    async def complete(*words: str) -> bytes:
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SANDFLEET_")}
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sandfleet.cli", stdout=asyncio.subprocess.PIPE,
            env=inherited | {
                "SANDFLEET_NATS": trainer_address(servers),
                "_SANDFLEET_COMPLETE": "bash_complete",
                "COMP_WORDS": " ".join(("sandfleet", *words)),
                "COMP_CWORD": str(len(words)),
            },
        )  # fmt: skip
        return (await process.communicate())[0]

    assert b"plain,debian" in await complete("call", "-e", "de")
    assert b"plain,javascript" in await complete("call", "-l", "j")
