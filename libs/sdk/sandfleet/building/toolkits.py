"""Layers on top of an environment: packages of apt, npm and pip, directories and archives.

    kit = Kit(on="debian", apt=["gcc"], pip=["numpy==2.1.0"])
    info = await assemble(builder, kit, "science")

Each kind of package is a layer of its own, always in the same order, above what is added: so
replacing the topmost builds one layer anew. npm and pip lie in one below their packages when
the environment does not have them.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import EnvironmentInfo, LayerKind

from .builder import Builder
from .context import Context
from .dockerfile import Line
from .stages import Command, Files, Ground, Group

_APT = re.compile(r"[a-z0-9][a-z0-9+.-]*(?::[a-z0-9]+)?(?:=[A-Za-z0-9.+:~-]+)?(?:/[a-z0-9-]+)?")
_PIP = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(?:\[[A-Za-z0-9._,-]+\])?(?:[=<>!~]=?=?[^;\s]*)?")
_NPM = re.compile(r"(?:@[a-z0-9._-]+/)?[a-z0-9._-]+(?:@[A-Za-z0-9.^~<>=*-]+)?")
_APT_GET = "apt-get -o APT::Sandbox::User=root"
_FETCH_APT = f"{_APT_GET} update -qq && {_APT_GET} install -y -qq --no-install-recommends"
_TIDY_APT = "rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin /var/cache/apt/archives/*.deb"
_MOST_PACKAGES = 500


@dataclass(frozen=True, slots=True)
class Addition:
    """A directory or archive of this machine, and where it goes."""

    path: Path
    target: str
    is_archive: bool = False


@dataclass(frozen=True, slots=True)
class Kit:
    """What is put on top of an environment."""

    on: str = "debian"
    apt: Sequence[str] = ()
    npm: Sequence[str] = ()
    pip: Sequence[str] = ()
    additions: Sequence[Addition] = ()

    @property
    def source(self) -> str:
        """What it is made from, in one line."""
        kinds = (("apt", self.apt), ("npm", self.npm), ("pip", self.pip))
        parts = [f"{name} {' '.join(sorted(set(words)))}" for name, words in kinds if words]
        parts += [f"{addition.path.name}:{addition.target}" for addition in self.additions]
        return "; ".join([f"on {self.on}", *parts])[:500]


async def assemble(builder: Builder, kit: Kit, name: str) -> EnvironmentInfo:
    """Put a kit on its environment and name the outcome, `name` or `name:version`.

    Raises:
        NotFound: there is no such environment or directory.
        BadRequest: a package's name cannot be one.
        BuildFailed: a package could not be installed; has the last output.
    """
    async with builder.limited():
        ground = await builder.from_name(kit.on)
        ground = await stacked(builder, ground, kit)
        return await builder.workshop.offer(name, ground, source=kit.source)


async def stacked(builder: Builder, ground: Ground, kit: Kit) -> Ground:
    """Put a kit on a ground: what is added first, then packages."""
    packages = package_groups(kit, ground)
    builder.expect(len(packages) + len(kit.additions))
    for addition in kit.additions:
        group, context = addition_group(addition)
        ground = await builder.layer(ground, group, context)
    for group in packages:
        ground = await builder.layer(ground, group, Context(Path()))
    return ground


def package_groups(kit: Kit, ground: Ground) -> list[Group]:
    """Return a group for each kind of package, lowest first.

    Raises:
        BadRequest: a package's name cannot be one.
    """
    made: list[Group] = []
    for kind, words in (("apt", kit.apt), ("npm", kit.npm), ("pip", kit.pip)):
        if not words:
            continue
        names = sorted(set(words))
        for name in names:
            if _NAMES[kind].fullmatch(name) is None or len(name) > 200:
                raise BadRequest(f"--{kind} {name[:80]!r} is not the name of a package")
        if len(names) > _MOST_PACKAGES:
            raise BadRequest(f"--{kind} names more than {_MOST_PACKAGES} packages")
        if kind in _ITSELF:
            made.append(_group(ground, kind, "itself, if it is not there", _ITSELF[kind]))
        made.append(_group(ground, kind, " ".join(names), _INSTALL[kind](shlex.join(names))))
    return made


def _group(ground: Ground, kind: str, what: str, script: str) -> Group:
    line = Line(f"--{kind}", 1, kind, what)
    env = {**ground.env, "DEBIAN_FRONTEND": "noninteractive"}
    argv = ("/bin/sh", "-ec", script)
    command = Command(line, argv, tuple(sorted(env.items())), None, "/")
    return Group((command,), LayerKind.TOOLKIT)


def addition_group(addition: Addition) -> tuple[Group, Context]:
    """Return the group that copies a directory or archive, and what it copies from."""
    path = addition.path
    target = "/" + addition.target.strip("/")
    if addition.is_archive:
        context, source = Context(path.parent), path.name
    else:
        context, source = Context(path), "."
    option = "--tar" if addition.is_archive else "--add"
    line = Line(option, 1, option, f"{path.name}:{target}")
    folder = target.rstrip("/") + "/"
    files = Files(line, (source,), (), folder, addition.is_archive, None, None, None)
    return Group((files,), LayerKind.WORKSPACE), context


def _apt(names: str) -> str:
    return f"{_FETCH_APT} -- {names}\n{_TIDY_APT}"


def _npm(names: str) -> str:
    return (
        f"npm install --global --no-audit --no-fund --no-update-notifier -- {names}\n"
        "rm -rf /root/.npm"
    )


def _pip(names: str) -> str:
    return (
        "free=''\n"
        "if python3 -m pip install --help | grep -q break-system-packages; then\n"
        "  free=--break-system-packages\n"
        "fi\n"
        "python3 -m pip install --no-cache-dir --disable-pip-version-check "
        f"--root-user-action=ignore $free -- {names}"
    )


_INSTALL: dict[str, Callable[[str], str]] = {"apt": _apt, "npm": _npm, "pip": _pip}
_NAMES = {"apt": _APT, "npm": _NPM, "pip": _PIP}
_ITSELF = {
    "npm": f"command -v npm >/dev/null || {{ {_FETCH_APT} npm; {_TIDY_APT}; }}",
    "pip": "python3 -m pip --version >/dev/null 2>&1 || "
    f"{{ {_FETCH_APT} python3-pip; {_TIDY_APT}; }}",
}
"""A layer below the packages, so that other packages do not fetch it again."""
