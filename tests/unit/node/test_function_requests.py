"""Requests to a zygote, and results that are given once however often they are asked for."""

from __future__ import annotations

import asyncio
import json

import pytest

from sandfleet_common.errors import BadRequest, Busy
from sandfleet_common.messages import CallLimits, FunctionCall, FunctionResult
from sandfleet_node.functions.inside.frames import SIZE
from sandfleet_node.functions.memory import KEPT, KEPT_SECONDS, Recent
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

    asked = [recent.once("r", run, 0.0) for _ in range(3)]
    first, second, third, _ = await asyncio.gather(*asked, later())
    assert first is second is third
    assert await recent.once("r", run, 1.0) is first
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
        await recent.once("r", run, 0.0)
    await recent.once("r", run, 0.0)
    await recent.once("r", run, KEPT_SECONDS + 1)
    assert len(ran) == 3
    for number in range(KEPT + 1):
        await recent.once(f"other{number}", run, 0.0)
    await recent.once("r", run, KEPT_SECONDS + 1)
    assert len(ran) == 3 + KEPT + 2
