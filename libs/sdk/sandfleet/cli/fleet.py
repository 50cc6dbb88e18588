"""nodes, alerts: what the fleet as a whole has to say."""

from __future__ import annotations

import time

import click

from sandfleet import local
from sandfleet.client import AsyncClient
from sandfleet_common.messages import NodeBeat, Pressure, Severity

from . import options, session, text

_TOLD_PERCENT = 10
"""Work that waits less of the time is not worth a note."""


@click.command(cls=session.Taught)
@options.json_option
@session.command()
async def nodes(client: AsyncClient, *, as_json: bool) -> None:
    """List the nodes that are alive, and what each has left.

    sandfleet nodes
    sandfleet nodes --json | jq '.[].sandboxes'
    """
    found = await client.nodes()
    if as_json:
        return session.show_json(found)
    made = session.table(
        "NODE", "STATE", "SANDBOXES", "CPU", "MEMORY", "LOAD", "DISK FREE", "NOTE",
        spare=("CPU", "LOAD"),
    )  # fmt: skip
    for node in found:
        session.row(made, *_cells(node))
    session.show_table(made)
    return None


@click.command(cls=session.Taught)
@click.argument("sandbox", required=False, shell_complete=options.known_sandboxes)
@click.option(
    "--severity", type=click.Choice([s.value for s in Severity]), help="Only this or worse."
)
@click.option("-n", "--limit", type=click.IntRange(1, 1000), default=100, show_default=True)
@options.json_option
@session.command()
async def alerts(
    client: AsyncClient, *, sandbox: str | None, severity: str | None, limit: int, as_json: bool
) -> None:
    """List what the security monitor has noticed, newest first.

    sandfleet alerts
    sandfleet alerts --severity high 7k2m9qzx
    """
    wanted = None if sandbox is None else (await session.resolve(client, sandbox)).id
    least = None if severity is None else Severity(severity)
    found = await client.alerts(wanted, severity=least, limit=limit)
    if as_json:
        return session.show_json(found)
    made = session.table("AGO", "SEVERITY", "SANDBOX", "RULE", "SCORE", "WHAT")
    for alert in found:
        session.row(
            made,
            text.duration(time.time() - alert.at),
            alert.severity,
            text.short_id(alert.sandbox_id),
            alert.rule,
            f"{alert.score:g}",
            alert.message,
        )
    session.show_table(made)
    return None


@click.command(cls=session.Taught)
@click.argument("node")
@click.option("--undo", is_flag=True, help="Let it take sandboxes again.")
def drain(*, node: str, undo: bool) -> None:
    """Let a node take no new sandboxes; those it has live on.

    Only NATS's user "admin" may do it: give its address with --nats, or use the
    platform on this machine, whose state directory holds the password.

    sandfleet drain node-7
    sandfleet drain node-7 --undo
    """
    given = session.current()

    async def ask() -> None:
        address = given.nats or local.administration(given.state)
        async with AsyncClient.connect(nats=address, name="cli") as client:
            await client.drain(node, undo=undo)

    session.run(ask())


def _cells(node: NodeBeat) -> list[str]:
    used, has = node.requested, node.capacity
    paused = f"{node.paused} paused" if node.paused else ""
    notes = (paused, _pressure(node.pressure), node.refusing)
    return [
        node.node,
        node.state,
        f"{used.sandboxes}/{has.sandboxes}",
        f"{used.cpu:g}/{has.cpu:g}",
        f"{text.size(used.memory_bytes)}/{text.size(has.memory_bytes)}",
        f"{node.load_per_core:.2f}",
        text.size(node.disk_free_bytes),
        ", ".join(told for told in notes if told),
    ]


def _pressure(measured: Pressure) -> str:
    """Return what much of the work waits for; empty on a machine that is well."""
    waits = (
        ("a core", measured.cpu_some),
        ("memory", measured.memory_some),
        ("its disk", measured.io_some),
    )
    told = [f"{share:.0f}% for {what}" for what, share in waits if share and share >= _TOLD_PERCENT]
    return f"work waits {', '.join(told)}" if told else ""
