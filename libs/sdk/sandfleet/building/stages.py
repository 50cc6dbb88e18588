"""From a Dockerfile's instructions to stages, and from a stage to what has to be done. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import Digest, LayerKind

from . import instructions as i
from . import words
from .dockerfile import Line, parse

MOST_LAYERS = 64
"""Of an environment."""


@dataclass(frozen=True, slots=True)
class Ground:
    """What a stage, or a layer, stands on."""

    layers: tuple[Digest, ...] = ()
    """Top first; none: nothing at all, as FROM scratch says."""
    env: Mapping[str, str] = field(default_factory=dict[str, str])
    user: str | None = None
    workdir: str | None = None
    notes: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the environment: how to run it."""
    facts: Mapping[str, str] = field(default_factory=dict[str, str])
    """Of the lowest layer: distribution, libc, python."""
    reference: str | None = None
    """An environment that is exactly these layers."""


@dataclass(frozen=True, slots=True)
class MakeDir:
    """Have a directory."""

    line: Line
    path: str


@dataclass(frozen=True, slots=True)
class Files:
    """Copy files."""

    line: Line
    sources: tuple[str, ...]
    inline: tuple[tuple[str, str], ...]
    """Names and contents of files that the Dockerfile itself holds."""
    target: str
    """Absolute; ends with a slash when it is a directory."""
    unpacks: bool
    from_: str | None
    chown: str | None
    chmod: int | None


@dataclass(frozen=True, slots=True)
class Command:
    """Run a command."""

    line: Line
    argv: tuple[str, ...]
    env: tuple[tuple[str, str], ...]
    user: str | None
    workdir: str


Action = MakeDir | Files | Command


@dataclass(frozen=True, slots=True)
class Group:
    """What becomes one layer."""

    actions: tuple[Action, ...]
    kind: LayerKind = LayerKind.WORKSPACE

    @property
    def title(self) -> str:
        """What it does, as the Dockerfile says it."""
        shown = [a for a in self.actions if not isinstance(a, MakeDir)] or self.actions
        return "; ".join(" ".join(f"{a.line.keyword} {a.line.rest}".split()) for a in shown)[:500]


@dataclass(frozen=True, slots=True)
class Stage:
    """One FROM and what follows it."""

    number: int
    begin: i.From
    steps: tuple[i.Instruction, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """By what other stages may call it."""
        return tuple(n for n in (self.begin.name, str(self.number)) if n is not None)


@dataclass(frozen=True, slots=True)
class Recipe:
    """A Dockerfile that has been read."""

    stages: tuple[Stage, ...]
    arguments: tuple[i.Arg, ...]
    """Those before the first FROM."""

    def target(self, name: str | None) -> Stage:
        """Return the stage to build: the last one unless named.

        Raises:
            BadRequest: there is no such stage; names those there are.
        """
        if name is None:
            return self.stages[-1]
        for stage in self.stages:
            if name.lower() in stage.names:
                return stage
        known = ", ".join(s.begin.name or str(s.number) for s in self.stages)
        raise BadRequest(f"there is no stage {name!r} in the Dockerfile, only {known}")

    def stage(self, name: str, before: int) -> Stage | None:
        """Return the stage that stage number `before` means by `name`."""
        fitting = [s for s in self.stages[:before] if name.lower() in s.names]
        return fitting[-1] if fitting else None

    def unclaimed(self, given: Mapping[str, str]) -> list[str]:
        """Return build arguments that nothing in the file declares."""
        steps = [step for stage in self.stages for step in stage.steps]
        args = [a for a in (*self.arguments, *steps) if isinstance(a, i.Arg)]
        known = {name for arg in args for name, _ in arg.pairs}
        return sorted(set(given) - known)


def recipe(text: str, file: str = "Dockerfile") -> Recipe:
    """Read a Dockerfile.

    Raises:
        BadRequest: it cannot be understood, or asks for what is not supported.
    """
    arguments: list[i.Arg] = []
    begins: list[i.From] = []
    steps: list[list[i.Instruction]] = []
    for line in parse(text, file):
        step = i.read(line)
        if isinstance(step, i.From):
            begins.append(step)
            steps.append([])
        elif begins:
            steps[-1].append(step)
        elif isinstance(step, i.Arg):
            arguments.append(step)
        else:
            raise line.problem("the first instruction is FROM; only ARG may stand before it")
    if not begins:
        raise BadRequest(f"{file}: there is no FROM in it: begin with FROM debian, for instance")
    stages = [
        Stage(n, begin, tuple(s)) for n, (begin, s) in enumerate(zip(begins, steps, strict=True))
    ]
    return Recipe(tuple(stages), tuple(arguments))


def global_arguments(found: Recipe, given: Mapping[str, str]) -> dict[str, str]:
    """Return the arguments before the first FROM, with the values given for them."""
    known: dict[str, str] = {}
    for arg in found.arguments:
        for name, default in arg.pairs:
            value = given.get(name)
            if value is None and default is not None:
                value = expanded(arg.line, default, known)
            if value is not None:
                known[name] = value
    return known


def image_of(stage: Stage, known: Mapping[str, str]) -> str:
    """Return what a stage begins from, its variables filled in.

    Raises:
        BadRequest: nothing is left of it.
    """
    image = expanded(stage.begin.line, stage.begin.image, known)
    if not image:
        raise stage.begin.line.problem(
            f"FROM {stage.begin.image} is empty: give its variable a value with --build-arg"
        )
    return image


def expanded(line: Line, text: str, variables: Mapping[str, str]) -> str:
    """Return a line's text with its variables filled in.

    Raises:
        BadRequest: it cannot be read; names file and line.
    """
    try:
        return words.expand(text, variables, line.escape)
    except BadRequest as problem:
        raise line.problem(problem.message) from None
