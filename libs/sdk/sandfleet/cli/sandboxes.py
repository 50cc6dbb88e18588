"""ps, inspect, logs, extend, rm: sandboxes that exist."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import Any

import click

from sandfleet.client import AsyncClient
from sandfleet.sandbox import AsyncSandbox
from sandfleet_common.errors import BadRequest, NotFound, SandfleetError
from sandfleet_common.messages import (
    ROLE_LABEL,
    ActOutcome,
    ExecState,
    Failure,
    SandboxesActed,
    SandboxInfo,
)
from sandfleet_common.states import TERMINAL, State

from . import acting, live, options, session, terminal, text

AT_ONCE = 16
"""Sandboxes that are ended at the same time."""


@click.command(cls=session.Taught)
@click.option("-a", "--all", "ended", is_flag=True, help="Also those that have ended.")
@click.option("-q", "--quiet", is_flag=True, help="Only ids, in full.")
@click.option("--full", is_flag=True, help="Ids in full.")
@click.option("--job", help="Only those of this job.")
@click.option("--label", type=options.ASSIGNMENT, multiple=True, help="Only those with this label.")
@options.all_kinds_option
@options.json_option
@session.command()
async def ps(
    client: AsyncClient,
    *,
    ended: bool,
    quiet: bool,
    full: bool,
    job: str | None,
    label: tuple[tuple[str, str], ...],
    all_kinds: bool,
    as_json: bool,
) -> None:
    """List sandboxes, newest first.

    Not those that are kept warm for function calls, unless --all-kinds.

    sandfleet ps
    sandfleet ps -a --label run=7
    sandfleet rm $(sandfleet ps -q --job job-1)
    """
    found = client.list(ended=ended, job_id=job, labels=dict(label))
    infos = [s.info_now async for s in found if all_kinds or label or _is_somebodys(s)]
    if as_json:
        return session.show_json(infos)
    if quiet:
        for info in infos:
            click.echo(info.sandbox_id)
        return None
    made = session.table(
        "SANDBOX", "ENVIRONMENT", "STATE", "AGE", "ENDS IN", "NODE", "JOB", "WHY",
        spare=("NODE", "ENVIRONMENT"),
    )  # fmt: skip
    for info in infos:
        session.row(made, *_cells(info, time.time(), full=full))
    session.show_table(made)
    return None


@click.command(cls=session.Taught)
@click.argument("sandboxes", nargs=-1, required=True, shell_complete=options.known_sandboxes)
@session.command()
async def inspect(client: AsyncClient, *, sandboxes: tuple[str, ...]) -> None:
    """Print all that is known of sandboxes, as JSON.

    With what they use, and with their commands and processes while they run; a paused
    one stays paused.

    sandfleet inspect 7k2m9qzx | jq .[0].commands
    """
    found: list[dict[str, Any]] = []
    for reference in sandboxes:
        sandbox = await session.resolve(client, reference)
        known: dict[str, Any] = sandbox.info_now.model_dump(mode="json")
        if sandbox.info_now.state not in TERMINAL:
            known["usage"] = (await sandbox.usage()).model_dump(mode="json")
        if sandbox.info_now.state not in TERMINAL | {State.PAUSED}:
            commands = await sandbox.commands()
            known["commands"] = [c.model_dump(mode="json", exclude={"output"}) for c in commands]
            known["processes"] = [p.model_dump(mode="json") for p in await sandbox.processes()]
        found.append(known)
    session.show_data(found)


@click.command(cls=session.Taught)
@click.option("-f", "--follow", is_flag=True, help="Go on until the command ends.")
@options.sandbox_argument
@click.argument("exec_id", required=False, metavar="[EXEC]")
@session.command()
async def logs(client: AsyncClient, *, sandbox: str, exec_id: str | None, follow: bool) -> None:
    """Print the output of a sandbox's commands.

    One command's, or that of all in turn.

    On a terminal, control characters and escape sequences in the output are shown
    as text, so that a sandbox cannot steer your terminal; into a file or a pipe
    the bytes go as they are.

      sandfleet logs 7k2m9qzx
      sandfleet logs -f 7k2m9qzx ex-01k...
      sandfleet logs 7k2m9qzx | less -R
    """
    found = await session.resolve(client, sandbox)
    commands = await found.commands()
    if exec_id is not None:
        commands = [_one(commands, exec_id)]
    for command in commands:
        if len(commands) > 1:
            session.tell(f"==> {_title(command)} <==")
        reader = await found.attach(command.exec_id)
        screen = terminal.Screen()
        if follow:
            async with reader:
                await live.follow(reader, screen)
        else:
            for chunk in await reader.output():
                await screen.show(chunk.stream, chunk.data)
            await screen.end()


@click.command(cls=session.Taught)
@options.sandbox_argument
@click.argument("ttl", type=options.DURATION)
@options.json_option
@session.command()
async def extend(client: AsyncClient, *, sandbox: str, ttl: float, as_json: bool) -> None:
    """Let a sandbox live for TTL from now on.

    sandfleet extend 7k2m9qzx 2h
    """
    info = await (await session.resolve(client, sandbox)).extend(ttl)
    if as_json:
        session.show_json(info)
    else:
        click.echo(
            f"{info.sandbox_id} ends in {text.duration((info.expires_at or 0) - time.time())}"
        )


@click.command(cls=session.Taught)
@click.argument("sandboxes", nargs=-1, shell_complete=options.known_sandboxes)
@click.option("--all", "everything", is_flag=True, help="All that are alive.")
@click.option("--job", help="All of this job, which places no more.")
@click.option("--label", type=options.ASSIGNMENT, multiple=True, help="All with this label.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask before ending all.")
@options.all_kinds_option
@options.json_option
@session.command()
async def rm(
    client: AsyncClient,
    *,
    sandboxes: tuple[str, ...],
    everything: bool,
    job: str | None,
    label: tuple[tuple[str, str], ...],
    yes: bool,
    all_kinds: bool,
    as_json: bool,
) -> int:
    """End sandboxes, and print the id of each that was ended.

    --all leaves those alone that are kept warm for function calls, unless --all-kinds.

    sandfleet rm 7k2m9qzx 9x81kd03
    sandfleet rm --job job-01k...
    sandfleet rm --label run=7
    sandfleet rm --all
    sandfleet rm --json 7k2m9qzx | jq .failures
    """
    if sum((bool(sandboxes), everything, job is not None or bool(label))) != 1:
        raise click.UsageError("name sandboxes, or give --all, or give --job or --label")
    if label:
        acted = await client.stop(job_id=job, labels=dict(label))
        return acting.report("ended", acted, acting.Chosen((), job, label), as_json=as_json)
    if job is not None:
        info = await (await client.get_job(job)).cancel()
        if as_json:
            session.show_json(info)
        else:
            click.echo(info.job_id)
        return 0
    if everything:
        found = [s async for s in client.list() if all_kinds or _is_somebodys(s)]
        if found and not yes and terminal.is_terminal(0):
            click.confirm(f"End {len(found)} sandboxes?", abort=True, err=True)
        return await _end(found, [], as_json=as_json)
    named: list[AsyncSandbox] = []
    missing: list[ActOutcome] = []
    for reference in sandboxes:
        try:
            named.append(await session.resolve(client, reference))
        except (NotFound, BadRequest) as problem:
            missing.append(_failed(reference, problem, as_json=as_json))
    return await _end(named, missing, as_json=as_json)


async def _end(
    sandboxes: Sequence[AsyncSandbox], failures: list[ActOutcome], *, as_json: bool
) -> int:
    """End sandboxes, of which some were not found; return the exit status."""
    gate = asyncio.Semaphore(AT_ONCE)
    matched = len(sandboxes) + len(failures)

    async def end(sandbox: AsyncSandbox) -> None:
        async with gate:
            try:
                await sandbox.stop()
            except SandfleetError as problem:
                failures.append(_failed(sandbox.id, problem, as_json=as_json))
            else:
                if not as_json:
                    click.echo(sandbox.id)

    async with asyncio.TaskGroup() as group:
        for sandbox in sandboxes:
            group.create_task(end(sandbox))
    if as_json:
        done = matched - len(failures)
        session.show_json(SandboxesActed(matched=matched, done=done, failures=failures))
    return 1 if failures else 0


def _failed(name: str, problem: SandfleetError, *, as_json: bool) -> ActOutcome:
    if not as_json:
        session.fail(problem, 1)
    return ActOutcome(sandbox_id=name, failure=Failure.from_error(problem))


def _is_somebodys(sandbox: AsyncSandbox) -> bool:
    """Whether it was made for somebody, and not by the platform for itself."""
    return ROLE_LABEL not in sandbox.info_now.spec.labels


def _cells(info: SandboxInfo, now: float, *, full: bool) -> list[str]:
    ends = "" if info.expires_at is None else text.duration(info.expires_at - now)
    return [
        info.sandbox_id if full else text.short_id(info.sandbox_id),
        info.spec.environment,
        info.state,
        text.duration((info.ended_at or now) - info.created_at),
        "" if info.state in TERMINAL else ends,
        info.node,
        info.job_id or "",
        info.reason or "",
    ]


def _one(commands: Sequence[ExecState], reference: str) -> ExecState:
    found = [c for c in commands if c.exec_id == reference] or [
        c for c in commands if c.exec_id.startswith(reference) or c.exec_id.endswith(reference)
    ]
    if not found:
        raise NotFound(f"this sandbox has no command {text.safe_line(reference)!r}")
    if len(found) > 1:
        raise BadRequest(f"{text.safe_line(reference)!r} may be several commands: say more")
    return found[0]


def _title(command: ExecState) -> str:
    how = command.state
    if command.signal is not None:
        how = f"signal {command.signal}"
    elif command.exit_code is not None:
        how = f"exit {command.exit_code}"
    words = text.safe_line(" ".join(command.argv))[:80]
    return f"{command.exec_id} ({how}): {words}"
