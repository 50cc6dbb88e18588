"""usage, top: what sandboxes use, once and live."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Sequence
from typing import get_args

import click
from rich.console import Console
from rich.live import Live

from sandfleet.client import AsyncClient
from sandfleet.usage import FleetUsage
from sandfleet_common.errors import SandfleetError
from sandfleet_common.messages import SandboxUsage, UsageOrder
from sandfleet_common.ranking import most
from sandfleet_common.states import TERMINAL

from . import options, session, terminal, text, topview

LIMIT = 500
WIDTH_OF_PIPES = 160
INTERVAL_SECONDS = 2.0
_UP, _DOWN, _PAGE_UP, _PAGE_DOWN = b"\x1b[A", b"\x1b[B", b"\x1b[5~", b"\x1b[6~"
_STEPS = {_UP: -1, _DOWN: 1, _PAGE_UP: -20, _PAGE_DOWN: 20, b"k": -1, b"j": 1}
_QUIT = frozenset({b"q", b"Q", b"\x04"})


@click.command(cls=session.Taught)
@click.argument("sandboxes", nargs=-1, required=True, shell_complete=options.known_sandboxes)
@options.json_option
@session.command()
async def usage(client: AsyncClient, *, sandboxes: tuple[str, ...], as_json: bool) -> None:
    """Say what sandboxes have used: CPU, memory, swap, disk, processes, bytes sent.

    Asking is no activity and resumes nothing. A sandbox that has ended is remembered
    for a while.

      sandfleet usage 7k2m9qzx
      sandfleet usage --json 7k2m9qzx | jq .[0].memory_peak_bytes
    """
    found = [await (await session.resolve(client, name)).usage() for name in sandboxes]
    if as_json:
        return session.show_json(found)
    for used in found:
        _describe(used)
    return None


def _describe(used: SandboxUsage) -> None:
    disk = f"{text.size(used.disk_bytes)} of {text.size(used.disk_limit_bytes)}"
    has_ended = used.state in TERMINAL
    idle = "" if has_ended else f", idle for {text.duration(used.idle_seconds)}"
    cores = "" if has_ended else f", now {used.cpu_cores:.2f} cores"
    lines = (
        ("state", f"{used.state}{idle}"),
        ("cpu", f"{used.cpu_seconds:.2f} s{cores}"),
        ("memory", f"{text.size(used.memory_bytes)} of {text.size(used.memory_limit_bytes)}"),
        ("peak", text.size(used.memory_peak_bytes)),
        ("swap", text.size(used.swap_bytes)),
        ("disk", disk),
        ("processes", str(used.processes)),
        ("sent", text.size(used.egress_bytes)),
    )
    click.echo(used.sandbox_id)
    for name, value in lines:
        click.echo(f"  {name:<10} {value}")


@click.command(cls=session.Taught)
@click.option(
    "--order",
    type=click.Choice(get_args(UsageOrder)),
    default="cpu",
    show_default=True,
    help="What to sort by.",
)
@click.option(
    "-n", "--limit", type=click.IntRange(1, 4000), default=LIMIT, show_default=True, help="Rows."
)
@click.option("--node", help="Only this node.")
@click.option("--once", is_flag=True, help="Print once, and end; so it is in a pipe, too.")
@click.option(
    "-d",
    "--interval",
    type=options.DURATION,
    default=INTERVAL_SECONDS,
    show_default=False,
    help="Look again after so long.  [default: 2s]",
)
@options.json_option
@session.command()
async def top(
    client: AsyncClient,
    *,
    order: UsageOrder,
    limit: int,
    node: str | None,
    once: bool,
    interval: float,
    as_json: bool,
) -> None:
    """Show live which sandboxes use most, sorted like top.

    Above them stands for each node: sandboxes alive and paused, cores and memory they
    use, the machine's load, memory and disk that are free, swap in use, and how much
    work stood still for want of CPU, memory or disk, in percent.

    Keys: q ends it; c, t, m, d, e, p, i sort by CPU, CPU time, memory, disk, bytes sent
    (egress), processes, idleness; arrows and page keys scroll.

      sandfleet top
      sandfleet top --order memory --node node-a
      sandfleet top --once -n 10
      sandfleet top --json | jq -r '.sandboxes[] | [.sandbox_id, .cpu_cores] | @tsv'
    """
    found = await client.usage(node=node, order=order, limit=limit)
    view = topview.View(order=order)
    if as_json:
        session.show_data(_as_data(found))
    elif once or not terminal.is_terminal(1):
        _print(found, view)
    else:
        await Screen(client, found, view, node, limit, interval).run()


def _as_data(found: FleetUsage) -> dict[str, object]:
    return {
        "sandboxes": [used.model_dump(mode="json") for used in found.sandboxes],
        "nodes": [one.model_dump(mode="json", exclude={"sandboxes"}) for one in found.nodes],
        "silent": found.silent,
    }


def _print(found: FleetUsage, view: topview.View) -> None:
    is_pipe = not terminal.is_terminal(1)
    width = WIDTH_OF_PIPES if is_pipe and "COLUMNS" not in os.environ else None
    console = Console(highlight=False, width=width)
    console.print(topview.screen(found, view, width=console.width))


class Screen:
    """The live screen: looks again and again, and minds the keys."""

    def __init__(
        self,
        client: AsyncClient,
        found: FleetUsage,
        view: topview.View,
        node: str | None,
        limit: int,
        interval_seconds: float,
    ) -> None:
        self._client = client
        self._found = found
        self._view = view
        self._node = node
        self._limit = limit
        self._interval_seconds = max(0.1, interval_seconds)
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, screen=True, auto_refresh=False)
        self._again = asyncio.Event()
        """Look now; somebody wants another order."""

    async def run(self) -> None:
        """Show it until a key ends it."""
        if not terminal.is_terminal(0):
            with self._live:
                return await self._follow()
        self._view.help = topview.HELP
        resized = (signal.SIGWINCH,)
        with terminal.key_mode(), self._live, terminal.on_signals(resized, lambda _: self._show()):
            async with asyncio.TaskGroup() as group:
                following = group.create_task(self._follow())
                try:
                    await self._mind_keys()
                finally:
                    following.cancel()
        return None

    def _show(self) -> None:
        size = self._console.size
        view = topview.screen(self._found, self._view, width=size.width, height=size.height)
        self._live.update(view, refresh=True)

    async def _follow(self) -> None:
        self._show()
        while True:
            try:
                async with asyncio.timeout(self._interval_seconds):
                    await self._again.wait()
            except TimeoutError:
                pass
            self._again.clear()
            await self._look()
            self._show()

    async def _look(self) -> None:
        order = self._view.order
        try:
            found = await self._client.usage(node=self._node, order=order, limit=self._limit)
        except SandfleetError as problem:
            since = time.strftime("%H:%M:%S")
            self._view.note = f"{since} {problem.message}"
            return
        self._view.note = ""
        if order == self._view.order:
            self._found = found

    async def _mind_keys(self) -> None:
        async for data in terminal.read_input():
            for key in split_keys(data):
                if key in _QUIT:
                    return
                self._on_key(key)
            self._show()

    def _on_key(self, key: bytes) -> None:
        order = topview.KEYS.get(key.decode("ascii", "replace").lower())
        if order is not None and order != self._view.order:
            self._view.order, self._view.offset = order, 0
            # What is known is sorted at once; the nodes may know of others that use more.
            sandboxes = most(self._found.sandboxes, order, self._limit)
            found = self._found
            self._found = FleetUsage(sandboxes, found.nodes, found.beats, found.silent)
            self._again.set()
        step = _STEPS.get(key, 0)
        last = max(0, len(self._found.sandboxes) - 1)
        self._view.offset = min(last, max(0, self._view.offset + step))


def split_keys(data: bytes) -> Sequence[bytes]:
    """Return the keys that were pressed: a letter each, or a whole escape sequence."""
    keys: list[bytes] = []
    while data:
        known = next((k for k in _STEPS if len(k) > 1 and data.startswith(k)), data[:1])
        keys.append(known)
        data = data[len(known) :]
    return keys
