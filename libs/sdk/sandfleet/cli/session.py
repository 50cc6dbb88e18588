"""What all commands of the command line share: where the platform is, errors, output."""

from __future__ import annotations

import asyncio
import inspect
import json
import shutil
import sys
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass
from functools import update_wrapper
from pathlib import Path
from typing import IO, Any, Concatenate, ParamSpec, TypeVar, cast

import click

from sandfleet.client import AsyncClient
from sandfleet.sandbox import AsyncSandbox
from sandfleet_common.errors import (
    BadRequest,
    Denied,
    NoCapacity,
    NotFound,
    SandfleetError,
    Unreachable,
)
from sandfleet_common.ids import node_of
from sandfleet_common.messages import Message

from . import terminal, text
from .listing import Listing

P = ParamSpec("P")
T = TypeVar("T")

EXIT_ERROR = 1
EXIT_PLATFORM = 125
"""Of run and exec when it is the platform that failed, not the command."""
EXIT_NO_PROGRAM = 127
EXIT_SIGNAL = 128
"""Plus the signal's number."""
EXIT_INTERRUPTED = 130

HINTS: dict[type[SandfleetError], str] = {
    Unreachable: "`sandfleet status` says what runs here, `sandfleet doctor` what is missing",
    NoCapacity: "`sandfleet nodes` shows what each node has left",
    Denied: "check SANDFLEET_NATS or SANDFLEET_API_KEY",
}


class WrongUsage(click.ClickException):
    """Wrong usage that one sentence explains: status 2."""

    exit_code = 2

    def show(self, file: IO[Any] | None = None) -> None:
        """Say it as every other error is said."""
        click.echo(f"sandfleet: {text.safe_line(self.message)}", file=file, err=True)


class Taught(click.Command):
    """A command whose help is its docstring, line by line as written."""

    def format_help_text(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the docstring as it is."""
        formatter.write("\n")
        for line in inspect.cleandoc(self.help or "").splitlines():
            formatter.write(f"  {line}".rstrip() + "\n")


class TaughtGroup(Taught, click.Group):
    """A group whose help is its docstring, line by line as written."""


@dataclass(slots=True)
class Session:
    """The options that stand before the command."""

    nats: str | None
    url: str | None
    api_key: str | None
    state: Path | None

    def client(self) -> AsyncClient:
        """Return a client of the platform that the options or the environment name."""
        return AsyncClient.connect(
            nats=self.nats, url=self.url, api_key=self.api_key, state=self.state, name="cli"
        )


def current() -> Session:
    """Return the options that stand before the command that runs."""
    return cast(Session, click.get_current_context().find_object(Session))


def tell(line: str) -> None:
    """Say something on stderr."""
    click.echo(line, err=True)


def fail(problem: SandfleetError, status: int) -> int:
    """Say what went wrong and how to mend it; return the exit status."""
    tell(f"sandfleet: {text.safe_line(problem.message)}")
    hint = HINTS.get(type(problem))
    if hint is not None:
        tell(f"  hint: {hint}")
    return status


def errors_of(group: BaseExceptionGroup[BaseException]) -> SandfleetError | None:
    """Return the first of our own errors in a group."""
    found = group.subgroup(SandfleetError)
    while found is not None:
        first = found.exceptions[0]
        if isinstance(first, SandfleetError):
            return first
        found = cast("BaseExceptionGroup[SandfleetError]", first)
    return None


def run(work: Coroutine[Any, Any, int | None], *, platform_status: int = EXIT_ERROR) -> None:
    """Run a command to its end and leave with its exit status."""
    try:
        status = asyncio.run(work) or 0
    except SandfleetError as problem:
        status = fail(problem, platform_status)
    except BaseExceptionGroup as group:
        own = errors_of(group)
        if own is None:
            raise
        status = fail(own, platform_status)
    except KeyboardInterrupt:
        status = EXIT_INTERRUPTED
    sys.exit(status)


def command(
    platform_status: int = EXIT_ERROR,
) -> Callable[[Callable[Concatenate[AsyncClient, P], Awaitable[int | None]]], Callable[P, None]]:
    """Make a coroutine that takes an open client into the body of a click command."""

    def decorate(
        body: Callable[Concatenate[AsyncClient, P], Awaitable[int | None]],
    ) -> Callable[P, None]:
        def start(*args: P.args, **kwargs: P.kwargs) -> None:
            session = current()

            async def connected() -> int | None:
                async with session.client() as client:
                    return await body(client, *args, **kwargs)

            run(connected(), platform_status=platform_status)

        return cast(Callable[P, None], update_wrapper(start, body))

    return decorate


async def resolve(client: AsyncClient, reference: str) -> AsyncSandbox:
    """Return the sandbox that a person means: by its id, its beginning or its short end.

    Raises:
        NotFound: none fits.
        BadRequest: several do; names them.
    """
    try:
        node_of(reference)
    except BadRequest:
        pass
    else:
        return await client.get(reference)
    known = client.list(ended=True)
    found = [sandbox async for sandbox in known if text.matches(sandbox.id, reference)]
    live = [s for s in found if s.info_now.ended_at is None]
    if len(live or found) == 1:
        return (live or found)[0]
    if not found:
        raise NotFound(
            f"no sandbox is called {text.safe_line(reference)!r}; `sandfleet ps -a` lists them"
        )
    names = ", ".join(s.id for s in (live or found)[:5])
    raise BadRequest(f"{text.safe_line(reference)!r} may be any of {names}: give more letters")


def show_json(value: Message | Sequence[Message]) -> None:
    """Print messages as JSON."""
    if isinstance(value, Message):
        show_data(value.model_dump(mode="json"))
    else:
        show_data([item.model_dump(mode="json") for item in value])


def show_data(data: Any) -> None:
    """Print data as JSON, which holds no control characters."""
    click.echo(json.dumps(data, indent=2))


def table(*columns: str, spare: Sequence[str] = ()) -> Listing:
    """Return an empty table; a narrow terminal does without the columns in `spare`."""
    return Listing(columns, spare)


def row(made: Listing, *cells: str) -> None:
    """Add a row of cells that cannot steer the terminal."""
    made.rows.append([text.safe_line(cell) for cell in cells])


def show_table(made: Listing) -> None:
    """Print a table: on a terminal so that it fits, else whole."""
    width = shutil.get_terminal_size().columns if terminal.is_terminal(1) else None
    title, *lines = made.lines(width)
    click.echo("\n".join([click.style(title, bold=True), *lines]))
