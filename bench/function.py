"""How fast code is graded by function calls: Sandfleet and plain subprocess, in one run.

The work is HumanEval: each problem's canonical solution and a broken one, judged by the
problem's own tests. It is done three ways, with the same programs and as many at once:
by `client.call` over NATS, by POST /run_code through the gateway, as SandboxFusion's
clients ask, and by a Python process of this host for each, which isolates nothing.
First one after the other, which gives the latency, then several at once, which gives
the rate. The verdicts are compared problem by problem.

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
    """What one way gave."""

    each_ms: list[float] = field(default_factory=list[float])
    """One after the other."""
    empty_ms: list[float] = field(default_factory=list[float])
    """The same with a program that does nothing."""
    per_s: float = 0.0
    verdicts: list[bool] = field(default_factory=list[bool])


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


async def one_by_one(grade: Grade, work: Sequence[Program]) -> list[float]:
    """Grade one after the other; return how long each took, in ms."""
    taken: list[float] = []
    for program in work:
        began = time.perf_counter()
        await grade(program)
        taken.append((time.perf_counter() - began) * 1000)
    return taken


async def together(
    grade: Grade, work: Sequence[Program], at_once: int, rounds: int
) -> tuple[float, list[bool]]:
    """Grade all, `at_once` at a time, `rounds` times; return how many a second, and verdicts.

    A program that did not end alike in all rounds counts as one that failed.
    """
    verdicts = [True] * len(work)
    left = iter([*range(len(work))] * rounds)

    async def worker() -> None:
        for number in left:
            verdicts[number] &= await grade(work[number])

    began = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return len(work) * rounds / (time.perf_counter() - began), verdicts


async def measure(grade: Grade, work: Sequence[Program], at_once: int, rounds: int) -> Way:
    """Measure one way."""
    await together(grade, [NOTHING] * WARM_UP, at_once, 1)
    way = Way()
    way.empty_ms = await one_by_one(grade, [NOTHING] * len(work))
    way.each_ms = await one_by_one(grade, work)
    way.per_s, way.verdicts = await together(grade, work, at_once, rounds)
    return way


async def all_ways(
    state: Path, work: Sequence[Program], at_once: int, rounds: int
) -> dict[str, Way]:
    """Measure the three ways, one after the other."""
    ways: dict[str, Way] = {}
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(AsyncClient.connect(state=state))
        for name, opened in (
            ("call", by_call(client)),
            ("run_code", by_run_code(state)),
            ("subprocess", by_subprocess(at_once)),
        ):
            async with opened as grade:
                ways[name] = await measure(grade, work, at_once, rounds)
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
