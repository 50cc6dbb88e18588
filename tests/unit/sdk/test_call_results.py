"""What a function call asks for, and what its result says."""

from __future__ import annotations

import pickle

import pytest

from sandfleet import BadRequest, Call, CallFailed, CallLimits, CallResult, CallStep, Interrupted
from sandfleet.calling import held_seconds
from sandfleet.calls import may_repeat
from sandfleet.results import call_result_of
from sandfleet_common import subjects as s
from sandfleet_common.errors import Busy, TimedOut, Unreachable
from sandfleet_common.messages import CALL_BYTES, CallStatus, FunctionResult

TRACEBACK = b'Traceback (most recent call last):\n  File "main.py", line 1\nValueError: no\n'


def test_a_call_holds_text_and_bytes_alike() -> None:
    message = Call("x", stdin="ä", files={"a": "b", "c": b"\xff"}, env={"A": "1"}).message()
    assert message.stdin == "ä".encode()
    assert message.files == {"a": b"b", "c": b"\xff"}
    assert (message.limits.wall_seconds, message.queue_seconds) == (10, 30)


def test_files_alone_have_a_main() -> None:
    message = Call(files={"main.c": "int main;", "other.h": ""}, language="c").message()
    assert (message.code, message.files) == ("int main;", {"other.h": b""})
    with pytest.raises(BadRequest, match=r"'main\.py'"):
        Call(files={"other.py": ""}).message()
    with pytest.raises(BadRequest, match="UTF-8"):
        Call(files={"main.py": b"\xff"}).message()


def test_what_is_said_twice_counts_as_said_last() -> None:
    limits = CallLimits(wall_seconds=3, processes=5)
    chosen = Call("x", limits=limits, timeout_s=4, memory=64 * 1024**2).message().limits
    assert (chosen.wall_seconds, chosen.processes, chosen.memory_bytes) == (4, 5, 64 * 1024**2)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (Call("x", timeout_s=-1), "wall_seconds"),
        (Call("x", memory=1), "memory_bytes"),
        (Call("x" * (CALL_BYTES + 1)), "put larger files into a sandbox"),
        (Call("x", files={"../a": ""}), "path below"),
        (Call("x", fetch=["/etc/passwd"]), "path below"),
        (Call("x", fetch="out.txt"), "a list of names"),
        (Call("x", env={"A=B": ""}), "environment variable"),
        (Call("x", queue_s=-1), "queue_seconds"),
    ],
)
def test_a_value_that_does_not_fit_is_named(call: Call, words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        call.message()


def test_an_answer_is_awaited_for_the_queue_the_compiler_and_the_program() -> None:
    assert held_seconds(Call("x", timeout_s=5, queue_s=7).message()) == 12
    assert held_seconds(Call("x", language="cpp", timeout_s=5, queue_s=7).message()) == 17


def test_a_call_is_sent_again_only_when_nobody_heard_it_or_a_queue_was_full() -> None:
    assert may_repeat(s.FUNCTION_CALL, Unreachable("nobody"))
    assert may_repeat(s.FUNCTION_CALL, Busy("full"))
    assert not may_repeat(s.FUNCTION_CALL, TimedOut("lost"))


def test_a_result_says_how_long_it_waited_apart_from_how_long_it_ran() -> None:
    step = CallStep(exit_code=0, stdout=b"out", cpu_seconds=0.5, memory_peak_bytes=7)
    reply = FunctionResult(status="ok", step=step, value=[1], wait_ms=3, run_ms=4, missing=["a"])
    result = call_result_of(reply)
    assert (result.ok, result.text, result.value, result.missing) == (True, "out", [1], ("a",))
    assert (result.wait_ms, result.run_ms) == (3, 4)
    assert result.check() is result


def test_where_the_compiler_failed_its_words_are_the_result() -> None:
    compiled = CallStep(exit_code=1, stderr=b"main.c:1: no\n")
    result = call_result_of(FunctionResult(status="compile_error", compiled=compiled))
    with pytest.raises(CallFailed, match=r"did not compile\n.*main\.c:1: no"):
        result.check()


@pytest.mark.parametrize(
    ("status", "words"),
    [("timeout", "time limit"), ("memory", "out of memory"), ("killed", "signal 9")],
)
def test_a_limit_is_told_in_words(status: CallStatus, words: str) -> None:
    with pytest.raises(CallFailed, match=words) as raised:
        CallResult(status=status, signal=9).check()
    assert raised.value.fields["status"] == status


def test_a_failed_call_shows_the_last_lines_of_its_traceback() -> None:
    many = b"".join(b"line %d\n" % number for number in range(100))
    result = CallResult(
        status="error", exit_code=1, stderr=many + TRACEBACK, exception="ValueError: no"
    )
    with pytest.raises(CallFailed) as raised:
        result.check()
    text = str(raised.value)
    assert text.startswith("the call raised ValueError: no\n")
    assert text.endswith(TRACEBACK.decode().rstrip())
    assert "line 50\n" not in text
    assert raised.value.traceback.startswith("line 0\n")
    again = pickle.loads(pickle.dumps(raised.value))
    assert (again.result, str(again)) == (result, text)


def test_a_value_that_is_not_json_was_not_raised() -> None:
    result = CallResult(status="error", exception="what it returned is not JSON: a set")
    with pytest.raises(CallFailed, match=r"^the call failed: what it returned is not JSON"):
        result.check()
    with pytest.raises(CallFailed, match=r"^the call raised KeyError$"):
        CallResult(status="error", exception="KeyError").check()


def test_a_call_whose_sandbox_ended_is_interrupted_and_not_failed() -> None:
    with pytest.raises(Interrupted, match="sb-1"):
        CallResult(status="lost", sandbox_id="sb-1").check()
    with pytest.raises(Busy, match="full"):
        CallResult(status="lost", error=Busy("full")).check()
