"""snapshot, fork, migrate: what a sandbox has written, kept, multiplied and moved."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import click
from rich.console import Console
from rich.status import Status
from rich.tree import Tree

from sandfleet.client import AsyncClient
from sandfleet.snapshot import AsyncSnapshot
from sandfleet_common.messages import SnapshotInfo, SnapshotsRemoved, SnapshotState

from . import options, session, terminal, text

LOOK_SECONDS = 0.2
"""Between two looks at a snapshot that somebody watches."""
PIPE_WIDTH = 10_000
"""No line of a tree is broken for a program that reads it."""


@click.group(cls=session.TaughtGroup)
def snapshot() -> None:
    """Keep what sandboxes have written, and create others from it.

    sandfleet snapshot create 7k2m9qzx --name before-tests
    sandfleet create -e sn-node1-01k...
    """


@click.command("create", cls=session.Taught)
@options.sandbox_argument
@click.option("-n", "--name", help="To find it by.")
@click.option("--label", type=options.ASSIGNMENT, multiple=True, help="NAME=VALUE.")
@click.option("--no-scrub", is_flag=True, help="Keep secrets and build residue, too.")
@click.option("--no-wait", is_flag=True, help="Return before it is ready.")
@options.json_option
@session.command()
async def create_snapshot(
    client: AsyncClient,
    *,
    sandbox: str,
    name: str | None,
    label: tuple[tuple[str, str], ...],
    no_scrub: bool,
    no_wait: bool,
    as_json: bool,
) -> None:
    """Keep what a sandbox has written so far; it goes on. Prints the snapshot's id.

    Files are kept, processes and memory are not.

      sandfleet snapshot create 7k2m9qzx --name before-tests --label run=7
    """
    found = await session.resolve(client, sandbox)
    is_watched = terminal.is_terminal(2) and not no_wait
    taken = await found.snapshot(
        name=name, labels=dict(label), scrub=not no_scrub, wait=not no_wait and not is_watched
    )
    if is_watched:
        await _watch(taken, text.short_id(found.id))
    info = taken.info_now
    if as_json:
        return session.show_json(info)
    click.echo(info.snapshot_id)
    if info.scrubbed:
        some = ", ".join(text.safe_line(path) for path in info.scrubbed[:5])
        more = f" and {len(info.scrubbed) - 5} more" if len(info.scrubbed) > 5 else ""
        session.tell(f"left out: {some}{more}")
    return None


async def _watch(taken: AsyncSnapshot, of: str) -> None:
    """Show how far a snapshot is until it is over.

    Raises:
        SandfleetError: it failed.
    """
    with _waiting("") as shown:
        while taken.state in (SnapshotState.PACKING, SnapshotState.STORING):
            shown.update(f"{taken.state} what {of} has written")
            await asyncio.sleep(LOOK_SECONDS)
            await taken.info()
    await taken.wait()


def _waiting(what: str) -> Status:
    """Return a block that shows on a terminal what is waited for."""
    return Console(stderr=True, quiet=not terminal.is_terminal(2)).status(what)


@click.command("list", cls=session.Taught)
@click.option("-n", "--name", help="Only those of this name.")
@click.option("--sandbox", shell_complete=options.known_sandboxes, help="Only of this sandbox.")
@click.option("--label", type=options.ASSIGNMENT, multiple=True, help="Only with this label.")
@click.option("-q", "--quiet", is_flag=True, help="Only ids.")
@options.json_option
@session.command()
async def list_snapshots(
    client: AsyncClient,
    *,
    name: str | None,
    sandbox: str | None,
    label: tuple[tuple[str, str], ...],
    quiet: bool,
    as_json: bool,
) -> None:
    """List snapshots, newest first.

    sandfleet snapshot list
    sandfleet snapshot rm $(sandfleet snapshot list -q --label run=7)
    """
    found = client.snapshots.list(name=name, sandbox_id=sandbox, labels=dict(label))
    infos = [one.info_now async for one in found]
    if as_json:
        return session.show_json(infos)
    if quiet:
        for info in infos:
            click.echo(info.snapshot_id)
        return None
    made = session.table(
        "SNAPSHOT", "NAME", "STATE", "SIZE", "AGE", "ENVIRONMENT", "SANDBOX", "WHY",
        spare=("SANDBOX", "ENVIRONMENT"),
    )  # fmt: skip
    for info in infos:
        session.row(made, *_cells(info))
    session.show_table(made)
    return None


def _cells(info: SnapshotInfo) -> list[str]:
    return [
        info.snapshot_id,
        info.name or "",
        str(info.state),
        "" if info.layer is None else text.size(info.layer.size_bytes),
        text.duration(time.time() - info.created_at),
        info.environment,
        text.short_id(info.sandbox_id),
        "" if info.failure is None else info.failure.message,
    ]


@click.command("tree", cls=session.Taught)
@options.json_option
@session.command()
async def tree_of_snapshots(client: AsyncClient, *, as_json: bool) -> None:
    """Show which snapshots were made from which.

    sandfleet snapshot tree
    """
    infos = [one.info_now async for one in client.snapshots.list()]
    if as_json:
        return session.show_json(infos)
    width = None if terminal.is_terminal(1) else PIPE_WIDTH
    console = Console(highlight=False, markup=False, width=width)
    for root in grown(infos):
        console.print(root)
    return None


def grown(infos: Sequence[SnapshotInfo]) -> list[Tree]:
    """Return the trees that snapshots make by their parents, oldest first."""
    known = {info.snapshot_id for info in infos}
    children: dict[str | None, list[SnapshotInfo]] = {}
    for info in sorted(infos, key=lambda one: one.created_at):
        parent = info.parent if info.parent in known else None
        children.setdefault(parent, []).append(info)
    trees: list[Tree] = []
    # Grown without recursion: a line of snapshots may be long.
    rising: list[tuple[SnapshotInfo, Tree | None]] = [(i, None) for i in children.get(None, [])]
    while rising:
        info, below = rising.pop(0)
        words = (info.snapshot_id, info.name or "", info.environment, _unready(info))
        label = text.safe_line("  ".join(word for word in words if word))
        node = Tree(label) if below is None else below.add(label)
        if below is None:
            trees.append(node)
        rising += [(child, node) for child in children.get(info.snapshot_id, [])]
    return trees


def _unready(info: SnapshotInfo) -> str:
    return "" if info.state is SnapshotState.READY else f"({info.state})"


@click.command("name", cls=session.Taught)
@click.argument("snapshot_id", metavar="SNAPSHOT", shell_complete=options.known_snapshots)
@click.argument("name")
@options.json_option
@session.command()
async def name_snapshot(client: AsyncClient, *, snapshot_id: str, name: str, as_json: bool) -> None:
    """Give a snapshot a name.

    sandfleet snapshot name sn-node1-01k... before-tests
    """
    info = await (await client.snapshots.get(snapshot_id)).update(name=name)
    if as_json:
        return session.show_json(info)
    click.echo(f"{info.snapshot_id} {info.name}")
    return None


@click.command("rm", cls=session.Taught)
@click.argument(
    "snapshot_ids", metavar="SNAPSHOTS...", nargs=-1, required=True,
    shell_complete=options.known_snapshots,
)  # fmt: skip
@click.option("--descendants", is_flag=True, help="And all that were made from them.")
@options.json_option
@session.command()
async def remove_snapshots(
    client: AsyncClient, *, snapshot_ids: tuple[str, ...], descendants: bool, as_json: bool
) -> None:
    """Forget snapshots; sandboxes that stand on them go on.

    sandfleet snapshot rm --descendants sn-node1-01k...
    """
    gone: list[str] = []
    for snapshot_id in snapshot_ids:
        if snapshot_id in gone:
            continue
        found = await client.snapshots.get(snapshot_id)
        for one in await found.remove(descendants=descendants):
            gone.append(one)
            if not as_json:
                click.echo(one)
    if as_json:
        session.show_json(SnapshotsRemoved(snapshot_ids=gone))


for _command in (
    create_snapshot, list_snapshots, tree_of_snapshots, name_snapshot, remove_snapshots,
):  # fmt: skip
    snapshot.add_command(_command)
snapshot.add_command(list_snapshots, "ls")


@click.command(cls=session.Taught)
@options.sandbox_argument
@click.argument("count", type=click.IntRange(1, 10_000), default=1)
@click.option("--label", type=options.ASSIGNMENT, multiple=True, help="NAME=VALUE of the children.")
@click.option("--ttl", type=options.DURATION, help="How long they live; as their parent else.")
@options.json_option
@session.command()
async def fork(
    client: AsyncClient,
    *,
    sandbox: str,
    count: int,
    label: tuple[tuple[str, str], ...],
    ttl: float | None,
    as_json: bool,
) -> int:
    """Create COUNT sandboxes that begin with the files of this one. Prints their ids.

    All begin with the files of the same moment, and do not see each other's writes.

      sandfleet fork 7k2m9qzx 8 --label branch=b
    """
    parent = await session.resolve(client, sandbox)
    labels = dict(label) if label else None
    with _waiting(f"forking {text.short_id(parent.id)}"):
        made = await parent.fork(count, labels=labels, ttl_seconds=ttl)
    if as_json:
        session.show_json(made.outcomes)
    else:
        for child in made.children:
            click.echo(child.id)
    status = 0
    for problem in made.failures:
        status = session.fail(problem, 1)
    return status


@click.command(cls=session.Taught)
@options.sandbox_argument
@click.option(
    "--to",
    "node",
    metavar="NODE",
    shell_complete=options.known_nodes,
    help="Where to; else where there is most room.",
)
@click.option("--deadline", type=options.DURATION, default="2m", show_default=True)
@options.json_option
@session.command()
async def migrate(
    client: AsyncClient, *, sandbox: str, node: str | None, deadline: float, as_json: bool
) -> None:
    """Move a sandbox to another node. It keeps its id and files; its processes end.

    sandfleet migrate 7k2m9qzx --to node2
    """
    found = await session.resolve(client, sandbox)
    with _waiting(f"moving {text.short_id(found.id)}"):
        info = await found.migrate(node, deadline=deadline)
    if as_json:
        return session.show_json(info)
    click.echo(f"{info.sandbox_id} is on {info.node}")
    return None
