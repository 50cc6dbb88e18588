"""The group of all commands, and the options that stand before them."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import click

from . import session
from .acting import pause, resume
from .calling import call
from .completion import PROGRAM, VARIABLE, completion
from .copying import cp
from .environments import env
from .fleet import alerts, drain, nodes
from .jobs import job, jobs
from .platform import doctor, down, status, up
from .running import create, execute, run
from .sandboxes import extend, inspect, logs, ps, rm
from .snapshots import fork, migrate, snapshot
from .top import top, usage


@click.group(
    cls=session.TaughtGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option("--nats", metavar="URL", help="NATS: nats://user:password@host:4222.")
@click.option("--url", metavar="URL", help="Gateway: http://host:port.")
@click.option("--api-key", metavar="KEY", help="Key for the gateway; better in SANDFLEET_API_KEY.")
@click.option(
    "--state",
    type=click.Path(file_okay=False, path_type=Path),
    help="State directory of the platform on this machine.",
)
@click.pass_context
def cli(
    ctx: click.Context, nats: str | None, url: str | None, api_key: str | None, state: Path | None
) -> None:
    """Sandboxes for agents: start the platform, run commands in sandboxes, look after them.

      sandfleet doctor                          what this machine has and lacks
      sandfleet up                              start the platform here
      sandfleet run -- python3 -c 'print(1)'    one command in a sandbox of its own
      sandfleet ps                              what is running
      sandfleet down                            stop the platform

    The platform is the one that --nats or --url name, else the one in SANDFLEET_NATS,
    else in SANDFLEET_URL (with SANDFLEET_API_KEY), else the one on this machine.

    Exit status: 0 fine, 1 an error, 2 wrong usage; `run` and `exec` end as their
    command does, and with 125 when it was the platform that failed.
    """
    ctx.obj = session.Session(nats, url, api_key, state)


@click.command(cls=session.Taught)
def version() -> None:
    """Print the version."""
    click.echo(f"{PROGRAM} {importlib.metadata.version('sandfleet')}")


for _command in (
    up, down, status, doctor, run, call, create, ps, execute, logs, cp, rm, extend, inspect,
    pause, resume, usage, top, nodes, drain, job, jobs, alerts, env, snapshot, fork, migrate,
    completion, version,
):  # fmt: skip
    cli.add_command(_command)
cli.add_command(rm, "stop")
cli.add_command(ps, "ls")


def main() -> None:
    """Run the command line."""
    cli(prog_name=PROGRAM, complete_var=VARIABLE)
