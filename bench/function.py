"""How fast code is graded by function calls: Sandfleet and plain subprocess, in one run.

The work is HumanEval: each problem's canonical solution and a broken one, judged by the
problem's own tests. It is done three ways, with the same programs and as many at once:
by `client.call` over NATS, by POST /run_code through the gateway, as SandboxFusion's
clients ask, and by a Python process of this host for each, which isolates nothing.
First one after the other, which gives the latency, then several at once, which gives
the rate. The ways take turns, so that what else the machine does hits all of them. The
verdicts are compared problem by problem.

    make bench-function
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import report
from problems import Program, programs

from sandfleet import AsyncClient, local
from sandfleet.endpoints import local_gateway

Grade = Callable[[Program], Awaitable[bool]]
"""Runs a program; whether it exited with 0."""

LIMIT_SECONDS = 20
NOTHING = Program("nothing", True, "pass\n")
WARM_UP = 40
PLAIN_PYTHON = getattr(sys, "_base_executable", None) or sys.executable
"""Not the one of the virtual environment, which would start slower."""


@dataclass(slots=True)
class Way:
    """One way, and what it gave."""

    grade: Grade
    each_ms: list[float] = field(default_factory=list[float])
    """One after the other."""
    empty_ms: list[float] = field(default_factory=list[float])
    """The same with a program that does nothing."""
    graded: int = 0
    seconds: float = 0.0
    """Several at once: how many, and how long it took."""
    verdicts: dict[int, bool] = field(default_factory=dict[int, bool])

    @property
    def per_s(self) -> float:
        """Programs a second, several at once."""
        return self.graded / self.seconds


@asynccontextmanager
async def by_call(client: AsyncClient) -> AsyncGenerator[Grade]:
    """Grade by function calls over NATS."""

    async def grade(program: Program) -> bool:
        return (await client.call(program.text, timeout_s=LIMIT_SECONDS)).ok

    yield grade


@asynccontextmanager
async def by_run_code(state: Path) -> AsyncGenerator[Grade]:
    """Grade by POST /run_code, over connections that stay open."""
    place = local_gateway(state)
    headers = {"Authorization": f"Bearer {place.api_key}"}
    async with httpx.AsyncClient(base_url=place.url, headers=headers, timeout=60) as http:

        async def grade(program: Program) -> bool:
            body: dict[str, object] = {
                "code": program.text, "language": "python", "stdin": "",
                "run_timeout": LIMIT_SECONDS, "compile_timeout": LIMIT_SECONDS,
                "files": {}, "fetch_files": [],
            }  # fmt: skip
            answer = (await http.post("/run_code", json=body)).raise_for_status().json()
            if answer["status"] == "SandboxError":
                raise RuntimeError(answer["message"])
            return answer["status"] == "Success"

        yield grade


@asynccontextmanager
async def by_subprocess(at_once: int) -> AsyncGenerator[Grade]:
    """Grade by a Python process of this host for each program, fed from threads."""
    loop = asyncio.get_running_loop()
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(at_once) as pool:

        def run(program: Program) -> bool:
            done = subprocess.run(
                [PLAIN_PYTHON, "-"], input=program.text.encode(), capture_output=True,
                cwd=folder, check=False, timeout=LIMIT_SECONDS,
            )  # fmt: skip
            return done.returncode == 0

        async def grade(program: Program) -> bool:
            return await loop.run_in_executor(pool, run, program)

        yield grade


async def one_by_one(ways: dict[str, Way], work: Sequence[Program]) -> None:
    """Grade one after the other, each program every way before the next."""
    for program in work:
        for way in ways.values():
            began = time.perf_counter()
            await way.grade(program)
            taken = (time.perf_counter() - began) * 1000
            (way.empty_ms if program is NOTHING else way.each_ms).append(taken)


async def together(way: Way, work: Sequence[Program], at_once: int) -> None:
    """Grade all, `at_once` at a time, once more.

    A program that did not end alike every time counts as one that failed.
    """
    left = iter(enumerate(work))

    async def worker() -> None:
        for number, program in left:
            is_passed = await way.grade(program)
            way.verdicts[number] = way.verdicts.get(number, True) and is_passed

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    way.seconds += time.perf_counter() - began
    way.graded += len(work)


async def all_ways(
    state: Path, work: Sequence[Program], at_once: int, rounds: int
) -> dict[str, Way]:
    """Measure the three ways, taking turns, so that what else the machine does hits all."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient.connect(state=state))
        opened = {
            "call": by_call(client),
            "run_code": by_run_code(state),
            "subprocess": by_subprocess(at_once),
        }
        ways = {name: Way(await stack.enter_async_context(way)) for name, way in opened.items()}
        for way in ways.values():
            await together(Way(way.grade), [NOTHING] * WARM_UP, at_once)
        await one_by_one(ways, [NOTHING] * len(work))
        await one_by_one(ways, work)
        for _ in range(rounds):
            for way in ways.values():
                await together(way, work, at_once)
        return ways


def disagreements(ways: dict[str, Way], work: Sequence[Program]) -> list[str]:
    """Return what did not end as it should, or not alike every way."""
    found: list[str] = []
    for number, program in enumerate(work):
        ended = {name: way.verdicts[number] for name, way in ways.items()}
        if set(ended.values()) != {program.is_right}:
            kind = "right" if program.is_right else "broken"
            passed = [name for name, is_passed in ended.items() if is_passed]
            found.append(f"{program.task} ({kind}) passed by {', '.join(passed) or 'no way'}")
    return found


def figures_of(ways: dict[str, Way]) -> dict[str, float | int | str | None]:
    """Return the figures of all ways."""
    call, over_http, plain = ways["call"], ways["run_code"], ways["subprocess"]

    def at(values: list[float], percent: int) -> float:
        return round(report.percentile(values, percent), 2)

    return {
        "warm_p50_ms": at(call.each_ms, 50),
        "warm_p99_ms": at(call.each_ms, 99),
        "calls_per_s": round(call.per_s, 1),
        "subprocess_p50_ms": at(plain.each_ms, 50),
        "subprocess_p99_ms": at(plain.each_ms, 99),
        "subprocess_per_s": round(plain.per_s, 1),
        "run_code_p50_ms": at(over_http.each_ms, 50),
        "run_code_p99_ms": at(over_http.each_ms, 99),
        "run_code_per_s": round(over_http.per_s, 1),
        "empty_call_p50_ms": at(call.empty_ms, 50),
        "empty_run_code_p50_ms": at(over_http.empty_ms, 50),
        "empty_subprocess_p50_ms": at(plain.empty_ms, 50),
        "ratio_p50": report.ratio(at(plain.each_ms, 50), at(call.each_ms, 50)),
        "ratio_per_s": report.ratio(call.per_s, plain.per_s),
    }


def main() -> int:
    """Run the benchmark; fails when the ways do not agree."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--problems", type=int, default=164, help="only the first N problems")
    parser.add_argument("--at-once", type=int, default=4, help="programs at once, for the rate")
    parser.add_argument("--rounds", type=int, default=3, help="how often all, for the rate")
    options = parser.parse_args()
    work = programs(options.problems)
    state = local.state_dir()
    local.up(state, progress=lambda line: None)
    try:
        ways = asyncio.run(all_ways(state, work, options.at_once, options.rounds))
    finally:
        local.down(state, progress=lambda line: None)
    wrong = disagreements(ways, work)
    figures = figures_of(ways)
    figures |= {
        "programs": len(work), "disagreements": len(wrong),
        "at_once": options.at_once, "rounds": options.rounds,
    }  # fmt: skip
    version = subprocess.run([PLAIN_PYTHON, "-V"], capture_output=True, text=True, check=True)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    notes = [
        f"subprocess is {version.stdout.strip()} of this host, {PLAIN_PYTHON}, without isolation",
        "empty: a program that does nothing; latencies are of one program after the other",
        f"load average at the end: {load}",
        *wrong[:20],
    ]
    report.write("function", figures, notes)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
