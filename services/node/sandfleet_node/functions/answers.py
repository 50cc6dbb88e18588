"""What a zygote answers, read as what it is: bytes from inside a sandbox."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass
from typing import Any, Literal

from sandfleet_common.messages import CallStatus, CallStep, FunctionCall

from .inside.frames import (
    ANSWER,
    CALL_BYTES,
    FILE,
    FRAME,
    FRAME_BYTES,
    HELLO,
    MEMORY,
    NO_VALUE,
    RAISED,
    RESULT,
    SETTLED,
    STEP,
    TIMED_OUT,
    VALUE,
)
from .inside.leftovers import PLACES_MAX

_STEPS_MAX = 2
_SHOWN = 200
_OUT_OF_MEMORY = (b"std::bad_alloc", b"heap out of memory")
"""What C++ and JavaScript say before they give up."""
_MOST = {HELLO: 1024 * 1024, RESULT: FRAME_BYTES, SETTLED: 1024}


class Misbehaved(ValueError):
    """These are not bytes that a zygote sends."""


class Reader:
    """Takes bytes as they come and gives whole frames."""

    def __init__(self) -> None:
        self._data = bytearray()

    def feed(self, data: bytes) -> list[tuple[int, bytes]]:
        """Return the frames, kind and payload, that are whole now.

        Raises:
            Misbehaved: a frame is of no kind, or too long.
        """
        self._data += data
        found: list[tuple[int, bytes]] = []
        while len(self._data) >= FRAME.size:
            kind, size = FRAME.unpack_from(self._data)
            if size > _MOST.get(kind, -1):
                raise Misbehaved(f"a frame of kind {kind} and {size} bytes")
            end = FRAME.size + size
            if len(self._data) < end:
                break
            found.append((kind, bytes(self._data[FRAME.size : end])))
            del self._data[:end]
        return found


@dataclass(frozen=True, slots=True)
class Hello:
    """What an environment has."""

    python: str
    languages: tuple[str, ...]
    imports: tuple[str, ...]
    places: tuple[str, ...]
    """What everybody may write to, as it found before anything untrusted ran."""


def read_hello(payload: bytes) -> Hello:
    """Return what a HELLO says.

    Raises:
        Misbehaved: it makes no sense.
    """
    try:
        told: dict[str, Any] = json.loads(payload)
        return Hello(
            str(told["python"])[:_SHOWN],
            tuple(str(name)[:_SHOWN] for name in list(told["languages"])[:16]),
            tuple(str(name)[:_SHOWN] for name in list(told["imports"])[:256]),
            tuple(str(path) for path in list(told["places"])[: PLACES_MAX + 1]),
        )
    except (ValueError, KeyError, TypeError, RecursionError) as problem:
        raise Misbehaved(f"a hello that makes no sense: {problem}") from None


@dataclass(frozen=True, slots=True)
class Answer:
    """How a call ended, as its zygote tells it."""

    steps: list[CallStep]
    timed_out: list[bool]
    note: bytes
    files: list[bytes | None]


class _Cursor:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        end = self._at + count
        if count < 0 or end > len(self._data):
            raise Misbehaved("an answer that is shorter than it says")
        part, self._at = self._data[self._at : end], end
        return part

    def finish(self) -> None:
        if self._at != len(self._data):
            raise Misbehaved("an answer that is longer than it says")


def read_answer(payload: bytes) -> Answer:
    """Return what a RESULT says.

    Raises:
        Misbehaved: it makes no sense.
    """
    cursor = _Cursor(payload)
    count, files, note_bytes = ANSWER.unpack(cursor.take(ANSWER.size))
    if not 1 <= count <= _STEPS_MAX:
        raise Misbehaved(f"an answer with {count} steps")
    heads: list[tuple[int, ...]] = [STEP.unpack(cursor.take(STEP.size)) for _ in range(count)]
    sizes = [FILE.unpack(cursor.take(FILE.size))[0] for _ in range(files)]
    steps = [_step(cursor, head) for head in heads]
    note = cursor.take(note_bytes)
    found = [None if size < 0 else cursor.take(size) for size in sizes]
    cursor.finish()
    if sum(len(data) for data in found if data is not None) > CALL_BYTES:
        raise Misbehaved("an answer with more bytes of files than are allowed")
    return Answer(steps, [bool(head[2] & TIMED_OUT) for head in heads], note, found)


def _step(cursor: _Cursor, head: tuple[int, ...]) -> CallStep:
    code, number, _, out, err, dropped, wall_us, cpu_us, peak_kib = head
    if max(out, err) > CALL_BYTES:
        raise Misbehaved("an answer with more output than is allowed")
    return CallStep(
        exit_code=code if code >= 0 else None,
        signal=number if number > 0 else None,
        stdout=cursor.take(out),
        stderr=cursor.take(err),
        dropped_bytes=dropped,
        wall_seconds=round(wall_us / 1e6, 6),
        cpu_seconds=round(cpu_us / 1e6, 6),
        memory_peak_bytes=peak_kib * 1024,
    )


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of a call."""

    status: CallStatus
    value: Any = None
    exception: str | None = None


def judge(call: FunctionCall, answer: Answer, *, ran_out: bool) -> Verdict:
    """Say how a call ended. `ran_out`: the kernel killed something for want of memory."""
    is_compiled = call.language in ("c", "cpp")
    if is_compiled and len(answer.steps) == 1:
        return Verdict("compile_error")
    step, timed_out = answer.steps[-1], answer.timed_out[-1]
    status = _status(call, step, timed_out, ran_out)
    if call.language != "python":
        return Verdict(status)
    kind, text = answer.note[:1], answer.note[1:].decode("utf-8", "replace")
    if kind == MEMORY and status == "error":
        return Verdict("memory", exception=text)
    if kind == RAISED and status == "error":
        return Verdict("error", exception=text)
    if call.function is None:
        return Verdict(status)
    return _judge_value(status, kind, text)


def _judge_value(status: CallStatus, kind: bytes, text: str) -> Verdict:
    if status not in ("ok", "error"):
        return Verdict(status)
    if kind == NO_VALUE:
        return Verdict("error", exception=text)
    if kind != VALUE:
        return Verdict("error", exception="the process ended before the function returned")
    if status != "ok":
        return Verdict(status, exception="the process failed after the function had returned")
    try:
        value = _value(text)
    except (ValueError, RecursionError) as problem:
        return Verdict("error", exception=f"what it returned is not JSON: {problem}"[:500])
    return Verdict("ok", value=value)


def _value(text: str) -> Any:
    if len(text) > CALL_BYTES:
        raise ValueError("it is too long")
    value = json.loads(text, parse_constant=_no_constant)
    # What the answer's own encoder would choke on later: halves of surrogate pairs.
    json.dumps(value, ensure_ascii=False).encode()
    return value


def _no_constant(name: str) -> Literal[0]:
    raise ValueError(f"{name} is no number there")


def _status(call: FunctionCall, step: CallStep, timed_out: bool, ran_out: bool) -> CallStatus:
    allowed = call.limits.cpu_seconds
    if timed_out or step.signal == signal.SIGXCPU:
        return "timeout"
    if step.signal == signal.SIGKILL:
        if ran_out:
            return "memory"
        if allowed is not None and step.cpu_seconds >= allowed:
            return "timeout"
    if ran_out and step.exit_code == 128 + signal.SIGKILL:
        return "memory"
    if step.signal == signal.SIGABRT and any(text in step.stderr for text in _OUT_OF_MEMORY):
        return "memory"
    if step.signal is not None:
        return "killed"
    return "ok" if step.exit_code == 0 else "error"
