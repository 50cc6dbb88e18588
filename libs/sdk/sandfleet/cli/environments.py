"""env: environments."""

from __future__ import annotations

import time

import click

from sandfleet.client import AsyncClient
from sandfleet_common.messages import EnvironmentInfo, StoreCollected

from . import options, session, terminal, text
from .building import build, import_image


@click.group(cls=session.TaughtGroup)
def env() -> None:
    """Build environments, list them, look into them.

    An environment is a named stack of layers that sandboxes are created from.
    """


@click.command("list", cls=session.Taught)
@click.argument("prefix", default="", shell_complete=options.known_environments)
@click.option("-a", "--all", "versions", is_flag=True, help="All versions, not only the newest.")
@click.option("-q", "--quiet", is_flag=True, help="Only names.")
@options.json_option
@session.command()
async def list_environments(
    client: AsyncClient, *, prefix: str, versions: bool, quiet: bool, as_json: bool
) -> None:
    """List environments, those whose names begin with PREFIX.

    sandfleet env list
    sandfleet env list --all debian
    """
    found = [e async for e in client.environments.list(prefix=prefix, versions=versions)]
    if as_json:
        return session.show_json(found)
    if quiet:
        for one in found:
            click.echo(f"{one.name}:{one.version}" if versions else one.name)
        return None
    made = session.table("ENVIRONMENT", "VERSION", "LAYERS", "SIZE", "AGE", "SOURCE")
    now = time.time()
    for one in found:
        age = text.duration(now - one.created_at) if one.created_at else ""
        size = text.size(one.size_bytes)
        session.row(made, one.name, one.version, str(one.layers), size, age, one.source)
    session.show_table(made)
    return None


@click.command("inspect", cls=session.Taught)
@click.argument("environment", shell_complete=options.known_references)
@options.json_option
@session.command()
async def inspect_environment(client: AsyncClient, *, environment: str, as_json: bool) -> None:
    """Show an environment, its layers and what does not fit; with --json as its lock.

    ENVIRONMENT is a name, name:version, or the id of a snapshot.

    sandfleet env inspect debian
    sandfleet env inspect --json project:3 | jq -r '.layers[].digest'
    """
    info = await client.environments.get(environment)
    if as_json:
        return session.show_json(info)
    for line in _described(info):
        click.echo(line)
    made = session.table("LAYER", "KIND", "SIZE", "NAMES", "DESCRIPTION")
    for layer in info.layers:
        digest = layer.digest.removeprefix("sha256:")[:12]
        sizes = text.size(layer.size_bytes), text.size(layer.meta_bytes)
        session.row(made, digest, str(layer.kind), *sizes, layer.description)
    session.show_table(made)
    for warning in info.warnings:
        session.tell(f"warning: {text.safe_line(warning)}")
    return None


def _described(info: EnvironmentInfo) -> list[str]:
    facts = {
        "environment": f"{info.name}:{info.version}",
        "source": info.source,
        "user": info.user or "",
        "workdir": info.workdir or "",
        "env": " ".join(f"{name}={value}" for name, value in info.env.items()),
        "notes": " ".join(f"{name}={value}" for name, value in info.notes.items()),
    }
    return [f"{name:12} {text.safe_line(value)}" for name, value in facts.items() if value]


@click.command("publish", cls=session.Taught)
@click.argument("name")
@click.argument("source", shell_complete=options.known_references)
@options.json_option
@session.command()
async def publish_environment(
    client: AsyncClient, *, name: str, source: str, as_json: bool
) -> None:
    """Give a snapshot, or another environment, a NAME[:VERSION] of its own.

    sandfleet env publish prepared sn-node1-01k...
    sandfleet env publish stable:2 project:17
    """
    known = await client.environments.get(source)
    info = await client.environments.publish(
        name,
        [layer.digest for layer in known.layers],
        env=known.env,
        user=known.user,
        workdir=known.workdir,
        notes=known.notes,
        source=source,
    )
    if as_json:
        return session.show_json(info)
    click.echo(f"{info.name}:{info.version}")
    return None


@click.command("rm", cls=session.Taught)
@click.argument("environments", nargs=-1, required=True, shell_complete=options.known_environments)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before removing all versions.")
@options.json_option
@session.command()
async def remove_environments(
    client: AsyncClient, *, environments: tuple[str, ...], yes: bool, as_json: bool
) -> None:
    """Forget environments: name:version, or name for all its versions.

    Sandboxes go on. Layers that nobody needs any more go with `sandfleet env gc`.

    sandfleet env rm project:3
    sandfleet env rm -y project
    """
    for environment in environments:
        if ":" not in environment and not yes and terminal.is_terminal(0):
            click.confirm(f"Forget all versions of {environment}?", abort=True, err=True)
        await client.environments.remove(environment)
        if not as_json:
            click.echo(environment)
    if as_json:
        session.show_data({"removed": list(environments)})


@click.command("gc", cls=session.Taught)
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option(
    "--keep", type=options.DURATION, default="1d", show_default=True,
    help="Layers that came so lately stay.",
)  # fmt: skip
@options.json_option
@session.command()
async def collect_layers(client: AsyncClient, *, dry_run: bool, keep: float, as_json: bool) -> None:
    """Remove layers that no environment, snapshot or live sandbox needs.

    sandfleet env gc --dry-run
    sandfleet env gc --keep 1h
    """
    found = await client.environments.collect(dry_run=dry_run, keep_seconds=keep)
    if as_json:
        return session.show_json(found)
    click.echo(_collected(found, dry_run=dry_run))
    return None


def _collected(found: StoreCollected, *, dry_run: bool) -> str:
    verb = "would be removed" if dry_run else "removed"
    went = f"{found.removed} layers {verb}, {text.size(found.freed_bytes)}"
    return f"{went}; {found.kept} stay, {text.size(found.kept_bytes)}"


for _command in (
    build, import_image, list_environments, inspect_environment, publish_environment,
    remove_environments, collect_layers,
):  # fmt: skip
    env.add_command(_command)
env.add_command(list_environments, "ls")
