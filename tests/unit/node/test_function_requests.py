"""Requests to a zygote, and results that are given once however often they are asked for."""

from __future__ import annotations

import asyncio
import json

import pytest

from sandfleet_common.errors import BadRequest, Busy
from sandfleet_common.messages import CallLimits, FunctionCall, FunctionResult
from sandfleet_node.functions.inside.frames import SIZE
from sandfleet_node.functions.memory import KEPT, KEPT_BYTES, KEPT_SECONDS, Recent
from sandfleet_node.functions.requests import opening, pack


def test_a_request_holds_what_was_asked_for() -> None:
    call = FunctionCall(
        code="é",
        stdin=b"in",
        files={"a/b": b"file"},
        fetch=["x"],
        env={"N": "v"},
        function="f",
        arguments=[1],
        limits=CallLimits(wall_seconds=2, cpu_seconds=1.2),
    )
    data = pack(call)
    assert SIZE.unpack_from(data)[0] == len(data) - SIZE.size
    (size,) = SIZE.unpack_from(data, SIZE.size)
    about = json.loads(data[2 * SIZE.size : 2 * SIZE.size + size])
    assert data[2 * SIZE.size + size :] == "é".encode() + b"in" + b"file"
    assert (about["code"], about["stdin"], about["files"]) == (2, 2, [["a/b", 4]])
    assert about["limits"][:2] == [2, 2]
    assert (about["function"], about["arguments"], about["fetch"]) == ("f", [1], ["x"])
    assert about["compile"] is None


def test_what_no_zygote_could_use_is_refused() -> None:
    with pytest.raises(BadRequest, match="surrogate"):
        pack(FunctionCall(code="\ud800"))
    with pytest.raises(BadRequest, match="below another file"):
        pack(FunctionCall(files={"a": b"", "a/b/c": b""}))


def test_the_zygote_is_sent_whole_and_in_an_order_that_works() -> None:
    told = json.loads(opening(5, ["numpy"], None)[SIZE.size :])
    assert told["settings"] == {"calls": 5, "imports": ["numpy"], "places": None}
    seen: set[str] = set()
    for name, text in told["modules"]:
        compile(text, name, "exec")
        for line in text.splitlines():
            if line.startswith("from .") and not line.startswith("from . "):
                assert line.split()[1][1:] in seen, (name, line)
        seen.add(name)


async def test_a_request_that_comes_again_while_it_runs_waits_for_the_one_result() -> None:
    recent, ran, gate = Recent(), list[int](), asyncio.Event()

    async def run() -> FunctionResult:
        ran.append(1)
        await gate.wait()
        return FunctionResult(status="ok", node="n")

    async def later() -> None:
        await asyncio.sleep(0)
        gate.set()

    asked = [recent.once("r", run, lambda: 0.0) for _ in range(3)]
    first, second, third, _ = await asyncio.gather(*asked, later())
    assert first is second is third
    assert await recent.once("r", run, lambda: 1.0) is first
    assert ran == [1]
    assert len(recent) == 0


async def test_an_error_is_not_kept_and_old_results_are_forgotten() -> None:
    recent, ran = Recent(), list[int]()

    async def run() -> FunctionResult:
        ran.append(1)
        if len(ran) == 1:
            raise Busy("not now", retry_after_seconds=1)
        return FunctionResult(status="ok")

    with pytest.raises(Busy):
        await recent.once("r", run, lambda: 0.0)
    await recent.once("r", run, lambda: 0.0)
    await recent.once("r", run, lambda: KEPT_SECONDS + 1)
    assert len(ran) == 3
    for number in range(KEPT + 1):
        await recent.once(f"other{number}", run, lambda: KEPT_SECONDS + 1)
    await recent.once("r", run, lambda: KEPT_SECONDS + 1)
    assert len(ran) == 3 + KEPT + 2


async def test_a_result_is_kept_from_the_end_of_its_call_on() -> None:
    recent, ran, now = Recent(), list[int](), [0.0]

    async def run() -> FunctionResult:
        ran.append(1)
        now[0] += 10 * KEPT_SECONDS
        return FunctionResult(status="ok")

    first = await recent.once("r", run, lambda: now[0])
    now[0] += KEPT_SECONDS / 2
    assert await recent.once("r", run, lambda: now[0]) is first
    assert ran == [1]


async def test_what_is_remembered_stays_bounded_whatever_the_results_are() -> None:
    recent, now = Recent(), [0.0]

    async def run() -> FunctionResult:
        return FunctionResult(status="ok", value="x" * (KEPT_BYTES // 8))

    for number in range(40):
        now[0] += 2 * KEPT_SECONDS if number % 2 else 0
        await recent.once("again", run, lambda: now[0])
        await recent.once(f"once{number}", run, lambda: now[0])
        assert KEPT_BYTES // 8 <= recent.kept_bytes <= KEPT_BYTES
    for number in range(40):
        await recent.once(f"beside{number}", run, lambda: now[0])
        assert recent.kept_bytes <= KEPT_BYTES
