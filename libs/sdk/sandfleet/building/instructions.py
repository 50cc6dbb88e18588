"""What the instructions of a Dockerfile mean, one class per kind. Pure.

Values are kept as they stand; `stages` fills in their variables when their turn comes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from sandfleet_common.errors import BadRequest

from . import words
from .dockerfile import HEREDOC, Heredoc, Line

_FLAG = re.compile(r"--([a-z][a-z-]*)(?:=(\S*))?(?:\s+|$)")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_STAGE = re.compile(r"[a-z][a-z0-9_.-]*")
NOTED = ("CMD", "ENTRYPOINT", "EXPOSE", "STOPSIGNAL", "VOLUME", "HEALTHCHECK", "MAINTAINER")
"""Kept as notes, or read over: they say how to run an image, not what is in it."""


@dataclass(frozen=True, slots=True)
class From:
    """A stage begins."""

    line: Line
    image: str
    name: str | None


@dataclass(frozen=True, slots=True)
class Run:
    """Run a command."""

    line: Line
    argv: tuple[str, ...] | None
    """Of the JSON form; None: `text` goes to the shell."""
    text: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Copy:
    """Copy files; from the context, or from a stage or environment."""

    line: Line
    sources: tuple[str, ...]
    heredocs: tuple[Heredoc, ...]
    target: str
    is_add: bool
    from_: str | None = None
    chown: str | None = None
    chmod: str | None = None


@dataclass(frozen=True, slots=True)
class Env:
    """Set environment variables."""

    line: Line
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Arg:
    """Declare build arguments, with a default or without."""

    line: Line
    pairs: tuple[tuple[str, str | None], ...]


@dataclass(frozen=True, slots=True)
class Workdir:
    """Go to a directory, made when it is not there."""

    line: Line
    path: str


@dataclass(frozen=True, slots=True)
class User:
    """Go on as a user."""

    line: Line
    user: str


@dataclass(frozen=True, slots=True)
class Shell:
    """Use another shell."""

    line: Line
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """Labels."""

    line: Line
    pairs: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Noted:
    """What is kept as a note at most."""

    line: Line
    value: str


Instruction = From | Run | Copy | Env | Arg | Workdir | User | Shell | Label | Noted


def read(line: Line) -> Instruction:
    """Return what an instruction means.

    Raises:
        BadRequest: it cannot be understood or is not supported; names file and line.
    """
    reader = _READERS.get(line.keyword)
    if reader is None:
        hint = "remove it" if line.keyword == "ONBUILD" else "is it misspelt?"
        raise line.problem(f"{line.keyword} is not supported: {hint}")
    if not line.rest:
        raise line.problem(f"{line.keyword} needs a value")
    try:
        return reader(line)
    except BadRequest as problem:
        if "line" in problem.fields:
            raise
        raise line.problem(problem.message) from None


def json_words(text: str) -> tuple[str, ...] | None:
    """Return the words of the JSON form `["a", "b"]`, or None when it is not that."""
    if not text.startswith("["):
        return None
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, list):
        return None
    found = cast("list[object]", value)
    if not all(isinstance(word, str) for word in found):
        return None
    return tuple(cast("list[str]", found))


def _flags(line: Line, allowed: tuple[str, ...]) -> tuple[list[tuple[str, str]], str]:
    """Return the flags in front, and what follows them."""
    rest = line.rest
    flags: list[tuple[str, str]] = []
    while (found := _FLAG.match(rest)) is not None:
        if found[1] not in allowed:
            known = ", ".join(f"--{name}" for name in allowed) or "none"
            raise line.problem(f"{line.keyword} --{found[1]} is not supported (only {known})")
        if found[2] is None and found[1] not in ("link", "keep-git-dir"):
            raise line.problem(f"{line.keyword} --{found[1]} needs a value, --{found[1]}=...")
        flags.append((found[1], found[2] or "true"))
        rest = rest[found.end() :]
    return flags, rest


def _from(line: Line) -> From:
    flags, rest = _flags(line, ("platform",))
    del flags  # every sandbox runs on the machine's own processor
    parts = rest.split()
    if len(parts) == 1:
        return From(line, parts[0], None)
    if len(parts) == 3 and parts[1].upper() == "AS":
        name = parts[2].lower()
        if _STAGE.fullmatch(name) is None:
            raise line.problem(f"{parts[2]!r} is no name for a stage: use a-z, 0-9, _, . and -")
        return From(line, parts[0], name)
    raise line.problem("write FROM image, or FROM image AS name")


def _run(line: Line) -> Run:
    flags, rest = _flags(line, ("mount", "network", "security"))
    warnings: list[str] = []
    for name, value in flags:
        if name == "mount" and "type=cache" in value.split(","):
            warnings.append("RUN --mount=type=cache: there is no such cache, it starts empty")
        elif name != "network" or value != "default":
            raise line.problem(
                f"RUN --{name}={value} is not supported: copy what it needs into the image"
            )
    if not rest:
        raise line.problem("RUN needs a command")
    argv = json_words(rest)
    if argv is not None and not argv:
        raise line.problem("RUN [] names no command")
    return Run(line, argv, _script(rest, line.heredocs), tuple(warnings))


def _script(rest: str, heredocs: tuple[Heredoc, ...]) -> str:
    """Return what the shell is given: a here-document alone is the script itself."""
    alone = HEREDOC.fullmatch(rest)
    if alone is not None and len(heredocs) == 1:
        return heredocs[0].body
    return rest + "".join(f"\n{found.body}{found.name}" for found in heredocs)


def _copy(line: Line) -> Copy:
    allowed = ("from", "chown", "chmod", "link", "keep-git-dir", "checksum")
    flags, rest = _flags(line, allowed)
    given = dict(flags)
    is_add = line.keyword == "ADD"
    if is_add and "from" in given:
        raise line.problem("ADD takes no --from: use COPY --from")
    found = json_words(rest)
    parts = list(found) if found is not None else words.split(rest, line.escape)
    if len(parts) < 2:
        raise line.problem(f"{line.keyword} needs what to copy and where to")
    sources = tuple(
        part for part in parts[:-1] if found is not None or HEREDOC.fullmatch(part) is None
    )
    for source in sources:
        if re.match(r"[a-z][a-z0-9+.-]*://|git@", source):
            raise line.problem(
                f"{line.keyword} of {source[:80]} is not supported: "
                "download it with RUN, or before the build"
            )
    return Copy(
        line,
        sources,
        line.heredocs,
        parts[-1],
        is_add,
        given.get("from"),
        given.get("chown"),
        given.get("chmod"),
    )


def _pairs(line: Line) -> tuple[tuple[str, str], ...]:
    parts = words.split(line.rest, line.escape)
    if "=" not in parts[0]:  # the old form, ENV NAME value
        head = line.rest.split(None, 1)
        if len(head) != 2:
            raise line.problem(f"{line.keyword} {head[0]} has no value: write {head[0]}=value")
        return ((head[0], head[1]),)
    pairs: list[tuple[str, str]] = []
    for part in parts:
        name, equals, value = part.partition("=")
        if not equals or not name:
            raise line.problem(f"{part[:80]!r} is not NAME=value")
        pairs.append((name, value))
    return tuple(pairs)


def _env(line: Line) -> Env:
    return Env(line, _pairs(line))


def _label(line: Line) -> Label:
    return Label(line, _pairs(line))


def _arg(line: Line) -> Arg:
    pairs: list[tuple[str, str | None]] = []
    for part in words.split(line.rest, line.escape):
        name, equals, value = part.partition("=")
        if _VARIABLE.fullmatch(name) is None:
            raise line.problem(f"{name[:80]!r} cannot be the name of an argument")
        pairs.append((name, value if equals else None))
    return Arg(line, tuple(pairs))


def _shell(line: Line) -> Shell:
    argv = json_words(line.rest)
    if not argv:
        raise line.problem('SHELL is written as JSON: SHELL ["/bin/bash", "-c"]')
    return Shell(line, argv)


def _workdir(line: Line) -> Workdir:
    return Workdir(line, line.rest)


def _user(line: Line) -> User:
    return User(line, line.rest)


def _noted(line: Line) -> Noted:
    return Noted(line, line.rest)


_READERS: dict[str, Callable[[Line], Instruction]] = {
    "FROM": _from,
    "RUN": _run,
    "COPY": _copy,
    "ADD": _copy,
    "ENV": _env,
    "ARG": _arg,
    "LABEL": _label,
    "WORKDIR": _workdir,
    "USER": _user,
    "SHELL": _shell,
    **dict.fromkeys(NOTED, _noted),
}
