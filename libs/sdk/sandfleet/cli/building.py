"""env build, env import: environments from what people have."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from sandfleet.building.builder import Builder, Source
from sandfleet.building.importing import Importer
from sandfleet.building.toolkits import Addition, Kit, stacked
from sandfleet.building.workshop import BuildFailed, Means, Workshop
from sandfleet.client import AsyncClient
from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import EnvironmentInfo, Network, Resources

from . import options, session, text
from .buildview import Progress, view

PROGRESS = click.Choice(["auto", "plain", "quiet"])


def means_options(function: options.F) -> options.F:
    """Add the options that say what the sandboxes of a build get."""
    for option in reversed(
        (
            click.option("--cpu", type=float, default=2.0, show_default=True, help="Cores."),
            click.option("--memory", type=options.SIZE, default="2g", show_default=True),
            click.option("--disk", type=options.SIZE, default="16g", show_default=True),
            click.option(
                "--timeout", type=options.DURATION, default="1h", show_default=True,
                help="The whole build ends after so long.",
            ),
            click.option(
                "--network",
                type=click.Choice([network.value for network in Network]),
                default=Network.BUILD.value,
                show_default=True,
                help="What its steps may reach.",
            ),
            click.option("--keep", is_flag=True, help="Keep the sandbox of a step that failed."),
            click.option("--no-cache", is_flag=True, help="Build every layer anew."),
            click.option(
                "--helper", default="debian", show_default=True,
                help="Environment with python3 and tar, to unpack images in.",
            ),
            click.option("--progress", type=PROGRESS, default="auto", show_default=True),
            options.json_option,
        )
    ):  # fmt: skip
        function = option(function)
    return function


@click.command(cls=session.Taught)
@click.argument(
    "directory", required=False, type=click.Path(exists=True, file_okay=False, path_type=Path)
)
@click.option("--name", "-n", required=True, help="Of the environment: name or name:version.")
@click.option("--file", "-f", "dockerfile", type=click.Path(path_type=Path), help="The Dockerfile.")
@click.option("--build-arg", type=options.ASSIGNMENT, multiple=True, help="Value of an ARG.")
@click.option("--target", help="Stage to build.")
@click.option("--on", help="Without a Dockerfile: the environment to build on.")
@click.option("--add", multiple=True, metavar="DIR[:/DEST]", help="Add a directory.")
@click.option("--tar", multiple=True, metavar="FILE[:/DEST]", help="Unpack an archive.")
@click.option("--apt", multiple=True, metavar="PACKAGE", help="Install Debian packages.")
@click.option("--npm", multiple=True, metavar="PACKAGE", help="Install packages of npm.")
@click.option("--pip", multiple=True, metavar="PACKAGE", help="Install Python packages.")
@means_options
@session.command()
async def build(
    client: AsyncClient, *, directory: Path | None, on: str | None, name: str, **values: Any
) -> None:
    """Build an environment from a Dockerfile, or put things on one that exists.

    Every step runs in a sandbox and becomes a layer; a step whose ground and files
    are as before is not run again. Packages (--apt, --npm, --pip) are one layer each,
    on top.

      sandfleet env build . --name project
      sandfleet env build . -f ci/Dockerfile --target test --build-arg PY=3.12 --name ci
      sandfleet env build --on debian --apt gcc --pip numpy==2.1.0 --name science
      sandfleet env build --on debian --add src:/work --name work
      sandfleet run -e project -- make test
    """
    show = view(values["progress"], as_json=values["as_json"])
    with show:
        try:
            info = await _Order(name, on, directory, values).carry_out(client, show)
        except BuildFailed as problem:
            if values["progress"] == "quiet":
                for line in problem.fields.get("output", []):
                    session.tell(text.safe_line(line))
            raise
    _tell(info, as_json=values["as_json"])


@click.command("import", cls=session.Taught)
@click.argument("source")
@click.option("--name", "-n", required=True, help="Of the environment: name or name:version.")
@means_options
@session.command()
async def import_image(client: AsyncClient, *, source: str, name: str, **values: Any) -> None:
    """Make an environment of an image; skopeo fetches it.

    SOURCE is docker://HOST/NAME:TAG, docker-archive:FILE, oci-archive:FILE,
    docker-daemon:NAME, or oci:DIRECTORY.

      sandfleet env import docker://python:3.12-slim --name python
      docker save project | cat > project.tar
      sandfleet env import docker-archive:project.tar --name project
    """
    show = view(values["progress"], as_json=values["as_json"])
    with show:
        means = _means(values)
        importer = Importer(
            Workshop(client, means, show.report),
            helper=values["helper"],
            use_cache=not values["no_cache"],
        )
        info = await importer.load(source, name)
    _tell(info, as_json=values["as_json"])


@dataclass(slots=True)
class _Order:
    """What `env build` was asked for."""

    name: str
    on: str | None
    directory: Path | None
    values: dict[str, Any]

    async def carry_out(self, client: AsyncClient, show: Progress) -> EnvironmentInfo:
        """Build it."""
        means = _means(self.values)
        use_cache = not self.values["no_cache"]
        helper = self.values["helper"]
        importer = Importer(
            Workshop(client, means, show.report), helper=helper, use_cache=use_cache
        )
        builder = Builder(
            client,
            means=means,
            report=show.report,
            use_cache=use_cache,
            helper=helper,
            importer=importer.ground,
        )
        kit = self._kit()
        source = self._source()
        async with builder.limited():
            if source is None:
                ground = await builder.from_name(kit.on)
                origin = kit.source
            else:
                ground = await builder.carry_out(source)
                origin = f"{source.file} in {source.context.root.resolve().name}"
            ground = await stacked(builder, ground, kit)
            return await builder.workshop.offer(self.name, ground, source=origin)

    def _source(self) -> Source | None:
        dockerfile = self.values["dockerfile"]
        if self.on is not None:
            if dockerfile is not None or self.directory is not None:
                raise session.WrongUsage("--on is for builds without a Dockerfile: leave one out")
            return None
        if self.directory is None and dockerfile is None:
            raise session.WrongUsage("name a directory with a Dockerfile, or an environment: --on")
        return Source.of_directory(
            self.directory or Path(),
            dockerfile=dockerfile,
            target=self.values["target"],
            arguments=dict(self.values["build_arg"]),
        )

    def _kit(self) -> Kit:
        return Kit(
            on=self.on or "",
            apt=_words(self.values["apt"]),
            npm=_words(self.values["npm"]),
            pip=_words(self.values["pip"]),
            additions=[
                *(_addition(place, is_archive=False) for place in self.values["add"]),
                *(_addition(place, is_archive=True) for place in self.values["tar"]),
            ],
        )


def _means(values: dict[str, Any]) -> Means:
    with options.named(_MEANS_NAMES):
        resources = Resources.of(
            cpu=values["cpu"],
            memory_bytes=values["memory"],
            disk_bytes=values["disk"],
            pids=4096,
        )
    return Means(resources, Network(values["network"]), values["timeout"], values["keep"])


_MEANS_NAMES = {"cpu": "--cpu", "memory_bytes": "--memory", "disk_bytes": "--disk"}


def _words(given: tuple[str, ...]) -> list[str]:
    """Return packages, given one by one or several in one word."""
    return [name for words in given for name in words.split()]


def _addition(place: str, *, is_archive: bool) -> Addition:
    path, colon, target = place.rpartition(":")
    if not colon or not target.startswith("/"):
        path, target = place, "/"
    found = Path(path)
    option = "--tar" if is_archive else "--add"
    is_there: Callable[[], bool] = found.is_file if is_archive else found.is_dir
    if not is_there():
        kind = "file" if is_archive else "directory"
        raise BadRequest(f"{option} {text.safe_line(path)}: there is no such {kind}")
    return Addition(found, target, is_archive)


def _tell(info: EnvironmentInfo, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"event": "environment", **info.model_dump(mode="json")}))
        return
    size = sum(layer.size_bytes for layer in info.layers)
    for warning in info.warnings:
        session.tell(f"warning: {text.safe_line(warning)}")
    click.echo(f"{info.name}:{info.version}  {len(info.layers)} layers, {text.size(size)}")
