"""pause, resume: many sandboxes at once, or some by name."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import click
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from sandfleet.client import AsyncClient
from sandfleet.sandbox import AsyncSandbox
from sandfleet_common.errors import SandfleetError
from sandfleet_common.messages import ActOutcome, Failure, SandboxesActed, SandboxInfo

from . import options, session, text

AT_ONCE = 16
"""Sandboxes named one by one that are asked at the same time."""
FAILURES_SHOWN = 10

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Chosen:
    """Which sandboxes a person means: some by name, or those of a job, with labels."""

    sandboxes: Sequence[str]
    job: str | None
    labels: Labels

    def check(self) -> None:
        """Fail unless it is one or the other.

        Raises:
            UsageError: it is neither or both.
        """
        if bool(self.sandboxes) == (self.job is not None or bool(self.labels)):
            raise click.UsageError("name sandboxes, or give --job or --label")

    def __str__(self) -> str:
        job = "" if self.job is None else f" of job {self.job}"
        labels = ", ".join(f"{name}={value}" for name, value in self.labels)
        return f"there is no live sandbox{job}{f' with {labels}' if labels else ''}"


def choice(function: options.F) -> options.F:
    """Add what says which sandboxes: names, --job, --label."""
    for option in reversed(
        (
            click.argument("sandboxes", nargs=-1, shell_complete=options.known_sandboxes),
            click.option("--job", help="All of this job."),
            click.option(
                "--label", type=options.ASSIGNMENT, multiple=True, help="All with this label."
            ),
        )
    ):
        function = option(function)
    return function


@click.command(cls=session.Taught)
@choice
@click.option(
    "--wait",
    type=options.DURATION,
    default=0.0,
    help="Wait so long for the memory of named ones to be given back.",
)
@options.json_option
@session.command()
async def pause(
    client: AsyncClient,
    *,
    sandboxes: tuple[str, ...],
    job: str | None,
    label: Labels,
    wait: float,
    as_json: bool,
) -> int:
    """Freeze sandboxes and give their memory back.

    Processes, open files and terminals stay as they are; the time to live stands
    still. Whatever is done to one of them (exec, files, a shell) resumes it by itself;
    `ps`, `usage` and `top` do not.

      sandfleet pause 7k2m9qzx 9x81kd03
      sandfleet pause --wait 10s 7k2m9qzx       until its memory has been given back
      sandfleet pause --job job-01k...
      sandfleet pause --label run=7 --json
    """
    chosen = Chosen(sandboxes, job, label)
    chosen.check()
    if wait and not sandboxes:
        raise session.WrongUsage("--wait is for sandboxes that are named, not for --job or --label")
    if not sandboxes:
        acted = await client.pause(job_id=job, labels=dict(label))
    else:
        acted = await each(client, sandboxes, lambda sandbox: sandbox.pause(wait=wait))
    return report("paused", acted, chosen, as_json=as_json)


@click.command(cls=session.Taught)
@choice
@options.json_option
@session.command()
async def resume(
    client: AsyncClient,
    *,
    sandboxes: tuple[str, ...],
    job: str | None,
    label: Labels,
    as_json: bool,
) -> int:
    """Let paused sandboxes go on where they stopped.

    sandfleet resume 7k2m9qzx
    sandfleet resume --job job-01k...
    sandfleet resume --label run=7
    """
    chosen = Chosen(sandboxes, job, label)
    chosen.check()
    if not sandboxes:
        acted = await client.resume(job_id=job, labels=dict(label))
    else:
        acted = await each(client, sandboxes, lambda sandbox: sandbox.resume())
    return report("resumed", acted, chosen, as_json=as_json)


async def each(
    client: AsyncClient,
    references: Sequence[str],
    do: Callable[[AsyncSandbox], Awaitable[SandboxInfo]],
) -> SandboxesActed:
    """Do one thing to sandboxes that a person named, some at a time, and say what came of it."""
    gate = asyncio.Semaphore(AT_ONCE)
    failures: list[ActOutcome] = []
    columns = (TextColumn("sandboxes"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    is_shown = sys.stderr.isatty() and len(references) > 1

    async def one(reference: str) -> None:
        name = reference
        async with gate:
            try:
                sandbox = await session.resolve(client, reference)
                name = sandbox.id
                await do(sandbox)
            except SandfleetError as problem:
                failure = Failure.from_error(problem)
                failures.append(ActOutcome(sandbox_id=name, failure=failure))
        shown.advance(task)

    with Progress(
        *columns, console=Console(stderr=True), disable=not is_shown, transient=True
    ) as shown:
        task = shown.add_task("", total=len(references))
        async with asyncio.TaskGroup() as group:
            for reference in references:
                group.create_task(one(reference))
    matched = len(references)
    return SandboxesActed(matched=matched, done=matched - len(failures), failures=failures)


def report(done: str, acted: SandboxesActed, chosen: Chosen, *, as_json: bool = False) -> int:
    """Say what came of it; return 1 if anything failed or nothing was there, else 0."""
    missed = acted.matched - acted.done
    if as_json:
        session.show_json(acted)
    else:
        of = f" of {acted.matched}" if missed else ""
        plural = "" if (acted.matched or acted.done) == 1 else "es"
        click.echo(f"{done} {acted.done}{of} sandbox{plural}")
        for outcome in acted.failures[:FAILURES_SHOWN]:
            why = "no reason is known" if outcome.failure is None else outcome.failure.message
            session.tell(f"sandfleet: {text.safe_line(outcome.sandbox_id)}: {text.safe_line(why)}")
        if not acted.matched:
            session.tell(f"sandfleet: {text.safe_line(str(chosen))}")
        if missed > FAILURES_SHOWN:
            session.tell(f"sandfleet: {missed - FAILURES_SHOWN} more failed")
    return 1 if missed or not acted.matched else 0
