"""run, create, exec: commands in sandboxes."""

from __future__ import annotations

from typing import Any

import click

from sandfleet.client import AsyncClient
from sandfleet_common.messages import OUTPUT_LIMIT_BYTES

from . import live, options, session

TAIL = {"allow_interspersed_args": False}
"""What follows the first word that is no option belongs to the command."""


def order_options(function: options.F) -> options.F:
    """Add the options that say how a command runs."""
    for option in reversed(
        (
            click.option("--timeout", type=options.DURATION, help="Kill it after so long."),
            click.option("-t", "--tty", is_flag=True, help="Give it a terminal, and it ours, raw."),
            click.option("-i", "--interactive", is_flag=True, help="Pass our input on."),
            click.option(
                "--output-limit",
                type=options.SIZE,
                default=OUTPUT_LIMIT_BYTES,
                show_default=False,
                help="Output beyond it is dropped and counted.  [default: 16m]",
            ),
        )
    ):
        function = option(function)
    return function


@click.command(cls=session.Taught, context_settings=TAIL)
@options.spec_options
@order_options
@click.option("--keep", is_flag=True, help="Do not end the sandbox; print its id.")
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@session.command(session.EXIT_PLATFORM)
async def run(client: AsyncClient, *, argv: tuple[str, ...], keep: bool, **values: Any) -> int:
    """Run a command in a sandbox of its own, which ends with it.

    Input that is piped in goes to the command, signals go to it, and its exit code
    is ours: 128 and the signal's number when a signal ended it, 127 when there is
    no such program, 125 when it was the platform that failed.

      sandfleet run -- python3 -c 'print(1)'
      sandfleet run --memory 1g --timeout 5m -- sh -c 'make && make test'
      tar c src | sandfleet run -- sh -c 'tar x && ls src'
      sandfleet run -it -- bash
    """
    order = _order(argv, values)
    sandbox = await client.create(options.spec_of(values))
    if keep:
        session.tell(sandbox.id)
        return await live.carry_out(sandbox, order)
    async with sandbox:
        return await live.carry_out(sandbox, order)


@click.command(cls=session.Taught)
@options.spec_options
@options.json_option
@session.command()
async def create(client: AsyncClient, *, as_json: bool, **values: Any) -> None:
    """Create a sandbox that lives on, and print its id.

    id=$(sandfleet create --ttl 2h --label run=7)
    sandfleet exec $id -- ls /
    sandfleet rm $id
    """
    sandbox = await client.create(options.spec_of(values))
    if as_json:
        session.show_json(sandbox.info_now)
    else:
        click.echo(sandbox.id)


@click.command("exec", cls=session.Taught, context_settings=TAIL)
@order_options
@click.option("--env", type=options.ASSIGNMENT, multiple=True, help="Environment variable.")
@click.option("--workdir", "-w", "cwd", help="Working directory.")
@click.option("--user", "-u", help="User it runs as.")
@options.sandbox_argument
@click.argument("argv", nargs=-1, required=True, type=click.UNPROCESSED, metavar="[--] COMMAND...")
@session.command(session.EXIT_PLATFORM)
async def execute(
    client: AsyncClient,
    *,
    sandbox: str,
    argv: tuple[str, ...],
    env: tuple[tuple[str, str], ...],
    user: str | None,
    **values: Any,
) -> int:
    """Run a command in a sandbox that exists.

    SANDBOX is an id, its beginning, or the short form that `sandfleet ps` shows.

      sandfleet exec 7k2m9qzx -- cat /etc/os-release
      sandfleet exec -it 7k2m9qzx -- bash
      echo 'print(1)' | sandfleet exec 7k2m9qzx -- python3 -
    """
    found = await session.resolve(client, sandbox)
    order = _order(argv, values, env=dict(env), user=user)
    return await live.carry_out(found, order)


def _order(
    argv: tuple[str, ...],
    values: dict[str, Any],
    *,
    env: dict[str, str] | None = None,
    user: str | None = None,
) -> live.Order:
    words = argv[1:] if argv[0] == "--" else argv
    if not words:
        raise click.UsageError("name a command after --")
    return live.Order(
        argv=words,
        env=env or {},
        cwd=values.get("cwd"),
        user=user,
        timeout=values.pop("timeout"),
        tty=values.pop("tty"),
        interactive=values.pop("interactive"),
        output_limit=values.pop("output_limit"),
    )
