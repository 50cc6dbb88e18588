"""job submit, get, cancel: many sandboxes from one request."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from sandfleet.client import AsyncClient
from sandfleet.job import AsyncJob
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Level, Logger
from sandfleet_common.messages import JobInfo

from . import options, session, text

_NAMES = {"count": "--count", "deadline_seconds": "--deadline", "job_id": "--id"}


@click.group(cls=session.TaughtGroup)
def job() -> None:
    """Have many sandboxes from one request.

    job=$(sandfleet job submit -n 100 --wait)
    sandfleet ps --job $job
    sandfleet job cancel $job
    """


@job.command(cls=session.Taught)
@click.option("-n", "--count", type=int, required=True, help="How many sandboxes.")
@click.option(
    "--deadline",
    type=options.DURATION,
    default="2m",
    show_default=True,
    help="Give up on those not ready.",
)
@click.option("--id", "job_id", help="Name it yourself; the same name again changes nothing.")
@click.option("--wait", is_flag=True, help="Wait until all are ready or have failed.")
@options.spec_options
@options.json_option
@session.command()
async def submit(
    client: AsyncClient,
    *,
    count: int,
    deadline: float,
    job_id: str | None,
    wait: bool,
    as_json: bool,
    **values: Any,
) -> int:
    """Submit a job, and print its id. Its sandboxes live until they are ended.

    With --wait the exit status is 1 if any of them could not be had.

      job=$(sandfleet job submit -n 100 --memory 1g --label run=7 --wait)
      sandfleet job submit -n 8 --id job-eval-7 --idle 5m --idle-action pause
    """
    spec = options.spec_of(values)
    with options.named(_NAMES):
        made = client.job(spec, count, deadline_seconds=deadline, job_id=job_id, keep=True)
    async with made:
        if wait:
            await _wait(made)
        if as_json:
            session.show_json(await made.info()) if wait else session.show_data({"job_id": made.id})
        else:
            click.echo(made.id)
        for failure in made.failures[:10]:
            session.tell(f"slot {failure.slot}: {text.safe_line(failure.message)}")
        return 1 if made.failures else 0


@job.command(cls=session.Taught)
@click.argument("job_id", metavar="JOB")
@options.json_option
@session.command()
async def get(client: AsyncClient, *, job_id: str, as_json: bool) -> None:
    """Say where a job is.

    sandfleet job get job-01k...
    sandfleet job get --json job-01k... | jq .ready
    """
    _show(await AsyncJob.info(await client.get_job(job_id)), as_json=as_json)


@job.command(cls=session.Taught)
@click.argument("job_id", metavar="JOB")
@options.json_option
@session.command()
async def cancel(client: AsyncClient, *, job_id: str, as_json: bool) -> None:
    """Stop placing a job, and end its sandboxes.

    sandfleet job cancel job-01k...
    """
    _show(await (await client.get_job(job_id)).cancel(), as_json=as_json)


async def _wait(made: AsyncJob) -> None:
    columns = (
        TextColumn("ready"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}"),
    )
    console = Console(stderr=True)
    async with Tasks(Logger("cli", level=Level.ERROR)) as tasks:
        with Progress(*columns, console=console, disable=not sys.stderr.isatty()) as shown:
            task = shown.add_task("", total=made.count)
            tasks.start(_show_waiting(made, shown, task), "show")
            async for _ in made.ready():
                shown.advance(task)


async def _show_waiting(made: AsyncJob, shown: Progress, task: TaskID) -> None:
    while True:
        shown.update(task, description=waiting(made.progress) if made.progress else "")
        await asyncio.sleep(0.25)


def waiting(info: JobInfo) -> str:
    """Return what a job waits for, and for how long, as far as it is known."""
    said: list[str] = []
    if info.ahead is not None:
        said.append(f"waits for room, {info.ahead} ahead" if info.ahead else "waits for room")
    if info.expected_wait_seconds:
        said.append(f"about {text.duration(max(1, info.expected_wait_seconds))} left")
    return ", ".join(said)


def _show(info: JobInfo, *, as_json: bool) -> None:
    if as_json:
        return session.show_json(info)
    click.echo(
        f"{info.job_id} {info.state}: {info.ready} ready, {info.failed} failed of {info.count}"
    )
    if said := waiting(info):
        click.echo(f"  {said}")
    for failure in info.failures[:10]:
        click.echo(f"  slot {failure.slot}: {text.safe_line(failure.message)} ({failure.code})")
    return None


jobs = click.Group("jobs", dict(job.commands), help="The same as job.", hidden=True)
