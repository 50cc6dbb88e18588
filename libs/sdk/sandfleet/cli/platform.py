"""up, down, status, doctor: the platform on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import cast

import click
from rich.console import Console

from sandfleet import local
from sandfleet_common.errors import SandfleetError

from . import options, session
from .session import Session


def state_dir() -> Path:
    """Return the state directory that the options or the environment name."""
    given = cast(Session, click.get_current_context().find_object(Session)).state
    return given or local.state_dir()


@contextmanager
def _progress() -> Generator[Callable[[str], None]]:
    """Show what is going on: on one line of a terminal, else line by line."""
    if not sys.stderr.isatty():
        yield session.tell
        return
    with Console(stderr=True).status("") as shown:
        yield lambda line: shown.update(line.replace("[", "\\["))


@click.command(cls=session.Taught)
def up() -> None:
    """Start the platform on this machine.

    That is NATS, Redis and every service.

    Starting it when it is up starts only what has died. Everything it keeps is in
    the state directory (--state, SANDFLEET_STATE_DIR, /var/lib/sandfleet).
    """
    try:
        with _progress() as progress:
            endpoints = local.up(state_dir(), progress=progress)
    except SandfleetError as problem:
        sys.exit(session.fail(problem, session.EXIT_ERROR))
    session.tell(f"Sandfleet is up: {endpoints.nats}, {endpoints.gateway}")
    session.tell("try: sandfleet run -- python3 -c 'print(1)'")


@click.command(cls=session.Taught)
def down() -> None:
    """Stop the platform on this machine.

    Its sandboxes end; its state stays.
    """
    try:
        with _progress() as progress:
            local.down(state_dir(), progress=progress)
    except SandfleetError as problem:
        sys.exit(session.fail(problem, session.EXIT_ERROR))
    session.tell("Sandfleet is down")


@click.command(cls=session.Taught)
@options.json_option
def status(*, as_json: bool) -> None:
    """Say which parts of the platform run here.

    Exit status 1 when any does not.
    """
    parts = local.status(state_dir())
    if as_json:
        session.show_data([asdict(part) | {"log": str(part.log)} for part in parts])
    elif not parts:
        session.tell(f"no platform is up in {state_dir()}: `sandfleet up` starts it")
    else:
        made = session.table(
            "PART", "STATE", "PID", "PORT", "METRICS", "LOG", spare=("METRICS", "PID")
        )
        for part in parts:
            numbers = [str(n or "") for n in (part.pid, part.port, part.metrics_port)]
            session.row(made, part.name, part.condition, *numbers, str(part.log))
        session.show_table(made)
    sys.exit(0 if parts and all(part.condition == "ready" for part in parts) else 1)


@click.command(
    cls=session.Taught,
    context_settings={"ignore_unknown_options": True, "help_option_names": ["--no-such-help"]},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def doctor(arguments: tuple[str, ...]) -> None:
    """Say what this machine has and lacks.

    Each line that is not fine says how to mend it.
    """
    command = [sys.executable, "-m", "sandfleet_node.doctor", *arguments]
    sys.exit(subprocess.run(command, check=False).returncode)
