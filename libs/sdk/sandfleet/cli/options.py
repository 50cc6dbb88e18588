"""Arguments and options that several commands share."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Generator, Mapping
from contextlib import contextmanager
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from sandfleet.client import AsyncClient
from sandfleet_common.errors import BadRequest, SandfleetError
from sandfleet_common.messages import IdleAction, Qos, Resources, SandboxSpec

from . import text
from .session import Session, WrongUsage

F = TypeVar("F", bound=Callable[..., Any])

COMPLETION_SECONDS = 2.0


class Size(click.ParamType[int]):
    """Bytes: 512m, 1.5g."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse a size."""
        try:
            return value if isinstance(value, int) else text.parse_size(str(value))
        except SandfleetError as problem:
            self.fail(problem.message, param, ctx)


class Duration(click.ParamType[float]):
    """Seconds: 90, 15m, 2h."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse a duration."""
        try:
            return value if isinstance(value, float) else text.parse_duration(str(value))
        except SandfleetError as problem:
            self.fail(problem.message, param, ctx)


class Assignment(click.ParamType[tuple[str, str]]):
    """NAME=value."""

    name = "NAME=value"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str]:
        """Parse an assignment."""
        try:
            return text.parse_assignment(str(value))
        except SandfleetError as problem:
            self.fail(problem.message, param, ctx)


SIZE = Size()
DURATION = Duration()
ASSIGNMENT = Assignment()


def known_sandboxes(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the live sandboxes; silent when the platform does not answer quickly."""

    async def find(client: AsyncClient) -> list[CompletionItem]:
        return [
            CompletionItem(_completed(sandbox.id, incomplete), help=str(sandbox.info_now.state))
            async for sandbox in client.list()
            if text.matches(sandbox.id, incomplete) or not incomplete
        ]

    return _offered(ctx, find)


def _offered(
    ctx: click.Context, find: Callable[[AsyncClient], Awaitable[list[CompletionItem]]]
) -> list[CompletionItem]:
    """Ask the platform for what can be offered; nothing when it does not answer quickly."""

    async def ask() -> list[CompletionItem]:
        async with asyncio.timeout(COMPLETION_SECONDS), _client(ctx) as client:
            return await find(client)

    try:
        return asyncio.run(ask())
    except (SandfleetError, TimeoutError, OSError):
        return []


async def _environments(client: AsyncClient, incomplete: str) -> list[CompletionItem]:
    prefix, colon, _ = incomplete.partition(":")
    nodes = await client.nodes()
    if not colon and all(node.environments_complete for node in nodes):
        told = sorted({name for node in nodes for name in node.environments})
        return [CompletionItem(name) for name in told if name.startswith(incomplete)]
    found = client.environments.list(prefix=prefix, versions=bool(colon))
    names = [f"{e.name}:{e.version}" if colon else e.name async for e in found]
    return [CompletionItem(name) for name in names if name.startswith(incomplete)]


async def _snapshots(client: AsyncClient, incomplete: str) -> list[CompletionItem]:
    infos = [snapshot.info_now async for snapshot in client.snapshots.list()]
    return [
        CompletionItem(info.snapshot_id, help=info.name or info.environment)
        for info in infos
        if info.snapshot_id.startswith(incomplete)
    ]


def known_environments(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer environments, and their versions behind a colon."""
    return _offered(ctx, lambda client: _environments(client, incomplete))


def known_snapshots(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer snapshots."""
    return _offered(ctx, lambda client: _snapshots(client, incomplete))


def known_nodes(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer the nodes that are alive."""

    async def find(client: AsyncClient) -> list[CompletionItem]:
        beats = await client.nodes()
        return [
            CompletionItem(beat.node, help=str(beat.state))
            for beat in beats
            if beat.node.startswith(incomplete)
        ]

    return _offered(ctx, find)


def known_references(
    ctx: click.Context, param: click.Parameter, incomplete: str
) -> list[CompletionItem]:
    """Offer whatever sandboxes can be created from."""

    async def find(client: AsyncClient) -> list[CompletionItem]:
        if incomplete.startswith("sn-"):
            return await _snapshots(client, incomplete)
        return await _environments(client, incomplete)

    return _offered(ctx, find)


def _client(ctx: click.Context) -> AsyncClient:
    root = ctx.find_root().params
    session = Session(root.get("nats"), root.get("url"), root.get("api_key"), root.get("state"))
    return session.client()


def _completed(sandbox_id: str, incomplete: str) -> str:
    """Return the full id, or its short form when that is what is being typed."""
    short = text.short_id(sandbox_id)
    return short if incomplete and short.startswith(incomplete) else sandbox_id


def sandbox_argument(function: F) -> F:
    """Add the argument SANDBOX."""
    return click.argument("sandbox", shell_complete=known_sandboxes)(function)


def json_option(function: F) -> F:
    """Add --json."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, for programs.")(
        function
    )


def all_kinds_option(function: F) -> F:
    """Add --all-kinds."""
    text = "Also those that the platform keeps for itself."
    return click.option("--all-kinds", is_flag=True, help=text)(function)


def spec_options(function: F) -> F:
    """Add the options that say what sandbox is wanted."""
    for option in reversed(_SPEC_OPTIONS):
        function = option(function)
    return function


_SPEC_OPTIONS = (
    click.option(
        "-e",
        "--environment",
        default="debian",
        show_default=True,
        shell_complete=known_references,
        help="Environment, name[:version], or a snapshot's id.",
    ),
    click.option("--cpu", type=float, default=1.0, show_default=True, help="Cores."),
    click.option("--memory", type=SIZE, default="512m", show_default=True, help="Memory."),
    click.option("--disk", type=SIZE, default="4g", show_default=True, help="Writable disk."),
    click.option("--pids", type=int, default=512, show_default=True, help="Processes, threads."),
    click.option(
        "--open-files", type=int, default=65_536, show_default=True, help="Of one process."
    ),
    click.option("--env", type=ASSIGNMENT, multiple=True, help="Environment variable."),
    click.option("--workdir", "-w", help="Working directory of its commands."),
    click.option("--user", "-u", help="User its commands run as."),
    click.option(
        "--ttl", type=DURATION, default="1h", show_default=True, help="Lifetime; ends it."
    ),
    click.option("--idle", type=DURATION, help="Idle: unused for so long."),
    click.option(
        "--idle-action",
        type=click.Choice([action.value for action in IdleAction]),
        default=IdleAction.STOP.value,
        show_default=True,
        help="When idle: end it, or pause it until it is used again.",
    ),
    click.option(
        "--paused-ttl",
        type=DURATION,
        default="1d",
        show_default=True,
        help="Ends it when paused for so long; --ttl does not count meanwhile.",
    ),
    click.option(
        "--qos",
        type=click.Choice([qos.value for qos in Qos]),
        default=Qos.LATENCY.value,
        show_default=True,
        help="Who goes first where the CPU is scarce.",
    ),
    click.option("--label", type=ASSIGNMENT, multiple=True, help="Label, to find it by."),
)


@contextmanager
def named(names: Mapping[str, str]) -> Generator[None]:
    """Say of a value that does not fit which option it came from, and with people's units.

    `names` has the option of each field that one sets.

    Raises:
        WrongUsage: instead of BadRequest, when it names one of these fields.
    """
    try:
        yield
    except BadRequest as problem:
        field = str(problem.fields.get("field", ""))
        option = names.get(re.split(r"[.\[]", field)[0]) or names.get(field.rpartition(".")[2])
        if option is None:
            raise
        reason = problem.message.removeprefix(f"{field}: ")
        unit = _UNITS.get(field.rpartition("_")[2])
        if unit is not None:
            reason = _NUMBER.sub(lambda found: unit(float(found[0])), reason)
        raise WrongUsage(f"{option}: {reason}") from None


_UNITS = {"bytes": text.size, "seconds": text.duration}
_NUMBER = re.compile(r"(?<= than )\d[\d.]*|(?<= equal to )\d[\d.]*")
_SPEC_NAMES = {
    "environment": "--environment",
    "cpu": "--cpu",
    "memory_bytes": "--memory",
    "disk_bytes": "--disk",
    "pids": "--pids",
    "open_files": "--open-files",
    "env": "--env",
    "workdir": "--workdir",
    "user": "--user",
    "ttl_seconds": "--ttl",
    "idle_seconds": "--idle",
    "paused_ttl_seconds": "--paused-ttl",
    "labels": "--label",
}


def spec_of(values: dict[str, Any]) -> SandboxSpec:
    """Take the options of `spec_options` out of a command's values, as a specification.

    Raises:
        WrongUsage: one does not fit.
    """
    if values["idle_action"] != IdleAction.STOP.value and values["idle"] is None:
        raise WrongUsage("--idle-action needs --idle, which says after how long")
    with named(_SPEC_NAMES):
        return _spec_of(values)


def _spec_of(values: dict[str, Any]) -> SandboxSpec:
    return SandboxSpec.of(
        environment=values.pop("environment"),
        resources=Resources.of(
            cpu=values.pop("cpu"),
            memory_bytes=values.pop("memory"),
            disk_bytes=values.pop("disk"),
            pids=values.pop("pids"),
            open_files=values.pop("open_files"),
        ),
        env=dict(values.pop("env")),
        workdir=values.pop("workdir"),
        user=values.pop("user"),
        ttl_seconds=values.pop("ttl"),
        idle_seconds=values.pop("idle"),
        idle_action=values.pop("idle_action"),
        paused_ttl_seconds=values.pop("paused_ttl"),
        qos=values.pop("qos"),
        labels=dict(values.pop("label")),
    )
