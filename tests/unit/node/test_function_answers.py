"""What comes from a zygote is read with suspicion, and judged."""

from __future__ import annotations

import random

import pytest

from sandfleet_common.messages import CallLimits, CallStep, FunctionCall
from sandfleet_node.functions.answers import (
    Answer,
    Misbehaved,
    Reader,
    judge,
    read_answer,
    read_hello,
)
from sandfleet_node.functions.fitting import fit
from sandfleet_node.functions.inside.frames import (
    ANSWER,
    CALL_BYTES,
    FILE,
    FRAME,
    HELLO,
    RESULT,
    STEP,
    TIMED_OUT,
)


def payload(
    *, out: bytes = b"out", note: bytes = b"", files: tuple[bytes | None, ...] = ()
) -> bytes:
    head = ANSWER.pack(1, len(files), len(note))
    step = STEP.pack(0, -1, 0, len(out), 3, 7, 1_500_000, 2000, 10)
    table = b"".join(FILE.pack(-1 if f is None else len(f)) for f in files)
    return head + step + table + out + b"err" + note + b"".join(f for f in files if f is not None)


def test_an_answer_is_read() -> None:
    answer = read_answer(payload(note=b"V1", files=(b"abc", None, b"")))
    step = answer.steps[0]
    assert (step.exit_code, step.signal) == (0, None)
    assert (step.stdout, step.stderr, step.dropped_bytes) == (b"out", b"err", 7)
    assert (step.wall_seconds, step.cpu_seconds) == (1.5, 0.002)
    assert (answer.note, answer.files) == (b"V1", [b"abc", None, b""])
    assert answer.timed_out == [False]


def test_frames_are_put_together_from_pieces() -> None:
    data = FRAME.pack(RESULT, 3) + b"abc" + FRAME.pack(HELLO, 0)
    reader, found = Reader(), list[tuple[int, bytes]]()
    for byte in data:
        found += reader.feed(bytes([byte]))
    assert found == [(RESULT, b"abc"), (HELLO, b"")]


@pytest.mark.parametrize("head", [FRAME.pack(9, 1), FRAME.pack(RESULT, 1 << 30)])
def test_a_frame_of_no_kind_or_without_measure_is_refused_at_once(head: bytes) -> None:
    with pytest.raises(Misbehaved):
        Reader().feed(head)


@pytest.mark.parametrize("seed", range(50))
def test_damaged_answers_are_refused_or_read_and_nothing_else(seed: int) -> None:
    dice = random.Random(seed)
    data = bytearray(payload(note=b"V1", files=(b"abc", None)))
    for _ in range(dice.randrange(1, 4)):
        data[dice.randrange(len(data))] = dice.randrange(256)
    cut = dice.choice([len(data), dice.randrange(len(data))])
    try:
        answer = read_answer(bytes(data[:cut]))
    except Misbehaved:
        return
    assert sum(len(step.stdout) + len(step.stderr) for step in answer.steps) <= len(data)


def test_more_than_was_allowed_is_refused() -> None:
    with pytest.raises(Misbehaved, match="more output"):
        read_answer(payload(out=b"x" * (CALL_BYTES + 1)))
    with pytest.raises(Misbehaved, match="files"):
        read_answer(payload(files=(b"x" * CALL_BYTES, b"x")))
    with pytest.raises(Misbehaved, match="longer"):
        read_answer(payload() + b"x")


@pytest.mark.parametrize("text", [b"", b"[]", b"{}", b"nul", b"[" * 100_000, b'{"python": 1}'])
def test_a_hello_without_sense_is_refused(text: bytes) -> None:
    with pytest.raises(Misbehaved):
        read_hello(text)


def verdict_of(
    note: bytes = b"", *, code: int | None = 0, signal: int | None = None, **fields: object
) -> tuple[str, object, str | None]:
    ran_out = bool(fields.pop("ran_out", False))
    timed_out = bool(fields.pop("timed_out", False))
    stderr = fields.pop("stderr", b"")
    cpu = fields.pop("cpu", 0)
    step = CallStep.model_validate(
        {"exit_code": code, "signal": signal, "stderr": stderr, "cpu_seconds": cpu}
    )
    call = FunctionCall.model_validate(fields)
    judged = judge(call, Answer([step], [timed_out], note, []), ran_out=ran_out)
    return judged.status, judged.value, judged.exception


def test_statuses_follow_from_how_it_ended() -> None:
    assert verdict_of()[0] == "ok"
    assert verdict_of(code=3)[0] == "error"
    assert verdict_of(code=None, signal=11)[0] == "killed"
    assert verdict_of(code=None, signal=9, timed_out=True)[0] == "timeout"
    assert verdict_of(code=None, signal=24)[0] == "timeout"
    assert verdict_of(code=None, signal=9, ran_out=True)[0] == "memory"
    assert verdict_of(code=137, ran_out=True, language="bash")[0] == "memory"
    assert verdict_of(b"MMemoryError", code=1)[0] == "memory"
    assert verdict_of(code=None, signal=6, stderr=b"std::bad_alloc", language="bash")[0] == "memory"
    assert verdict_of(language="c")[0] == "compile_error"
    limits = CallLimits(cpu_seconds=1)
    assert verdict_of(code=None, signal=9, cpu=2.0, limits=limits)[0] == "timeout"
    assert verdict_of(b"EValueError: so", code=1) == ("error", None, "ValueError: so")


def test_values_are_json_or_an_error() -> None:
    assert verdict_of(b'V{"a": [1]}', function="f") == ("ok", {"a": [1]}, None)
    for note in (b"V", b"Vnul", b"VNaN", b"V[" + b"[" * 100_000, b'V"\\ud800"', b"V\xff"):
        status, value, exception = verdict_of(note, function="f")
        assert (status, value) == ("error", None)
        assert exception
    assert verdict_of(b"", function="f")[0] == "error"
    assert verdict_of(b"V1", code=120, function="f")[0] == "error"
    assert verdict_of(b"V1", code=None, signal=9, timed_out=True, function="f")[0] == "timeout"


def test_a_timed_out_step_says_so() -> None:
    head = ANSWER.pack(1, 0, 0)
    step = STEP.pack(-1, 9, TIMED_OUT, 0, 0, 0, 0, 0, 0)
    answer = read_answer(head + step)
    assert (answer.timed_out, answer.steps[0].signal) == ([True], 9)


def test_what_is_given_back_fits_as_a_whole() -> None:
    step = CallStep(stdout=b"o" * 400_000, stderr=b"e" * 400_000, dropped_bytes=5)
    fitted = fit(10, {"big": b"x" * 500_000, "small": b"y" * 20_000}, step, CallStep(stderr=b"z"))
    # The first file leaves no room for the second, nor for much output.
    room = CALL_BYTES - 10 - 500_000 - 20_000
    assert set(fitted.files) == {"big", "small"}
    assert len(fitted.step.stdout) + len(fitted.step.stderr) == room
    assert fitted.step.dropped_bytes == 5 + 800_000 - room
    assert fitted.compiled is not None
    assert fitted.compiled.stderr == b""
    assert fit(CALL_BYTES, {"a": b"x"}, CallStep(), None).files == {}
    uneven = fit(0, {}, CallStep(stdout=b"o" * 600_000, stderr=b"e" * 10), None).step
    assert (len(uneven.stdout), len(uneven.stderr)) == (CALL_BYTES - 10, 10)
