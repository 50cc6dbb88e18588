"""What has to be done for a stage of a Dockerfile: steps in groups, each a layer. Pure."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import LayerKind

from . import instructions as i
from . import words
from .dockerfile import Line
from .stages import MOST_LAYERS, Action, Command, Files, Ground, Group, MakeDir, Stage, expanded

NOTE_LETTERS = 2000
MOST_LABELS = 32
_DEFAULT_SHELL = ("/bin/sh", "-c")


@dataclass(slots=True)
class Plan:
    """What a stage comes to."""

    groups: list[Group]
    env: dict[str, str]
    user: str | None
    workdir: str | None
    notes: dict[str, str]
    warnings: list[str]


def plan(stage: Stage, ground: Ground, known: Mapping[str, str], given: Mapping[str, str]) -> Plan:
    """Return what has to be done for a stage.

    Args:
        stage: the stage.
        ground: what it begins from.
        known: arguments before the first FROM.
        given: build arguments of the caller.

    Raises:
        BadRequest: a value does not fit; names file and line.
    """
    return _Planner(ground, known, given).all(stage)


class _Planner:
    def __init__(self, ground: Ground, known: Mapping[str, str], given: Mapping[str, str]) -> None:
        self._ground = ground
        self._known = known
        self._given = given
        self._env = dict(ground.env)
        self._arguments: dict[str, str] = {}
        self._user = ground.user
        self._workdir = ground.workdir
        self._shell = _DEFAULT_SHELL
        self._notes = dict(ground.notes)
        self._warnings: list[str] = []
        self._groups: list[Group] = []
        self._waiting: list[Action] = []
        self._kind = LayerKind.WORKSPACE

    def all(self, stage: Stage) -> Plan:
        for step in stage.steps:
            self._kind = self._kind_of(step.line)
            self._take(step)
        self._close()
        room = MOST_LAYERS - len(self._ground.layers)
        return Plan(
            merged(self._groups, room),
            self._env,
            self._user,
            self._workdir,
            self._notes,
            self._warnings,
        )

    def _kind_of(self, line: Line) -> LayerKind:
        if not line.hint:
            return LayerKind.WORKSPACE
        if line.hint not in ("toolkit", "workspace"):
            raise line.problem(f"# sandfleet: {line.hint[:40]}: it may be toolkit or workspace")
        if line.keyword not in ("RUN", "COPY", "ADD"):
            raise line.problem(f"# sandfleet: {line.hint} goes right above RUN, COPY or ADD")
        return LayerKind(line.hint)

    def _take(self, step: i.Instruction) -> None:
        match step:
            case i.Run():
                self._run(step)
            case i.Copy():
                self._copy(step)
            case i.Workdir():
                self._go(step)
            case i.User():
                self._become(step)
            case i.Shell():
                self._shell = step.argv
            case i.Noted() | i.Label():
                self._note(step)
            case i.Env() | i.Arg():
                self._set(step)
            case i.From():
                raise step.line.problem("FROM begins another stage")

    def _expand(self, line: Line, text: str) -> str:
        return expanded(line, text, {**self._arguments, **self._env})

    def _set(self, step: i.Env | i.Arg) -> None:
        if isinstance(step, i.Env):
            values = [(name, self._expand(step.line, value)) for name, value in step.pairs]
            self._env.update((self._expand(step.line, name), value) for name, value in values)
            return
        for name, default in step.pairs:
            value = self._given.get(name)
            if value is None and default is not None:
                value = self._expand(step.line, default)
            if value is None:
                value = self._known.get(name)
            if value is not None:
                self._arguments[name] = value

    def _run(self, step: i.Run) -> None:
        self._warnings += [f"line {step.line.number}: {warning}" for warning in step.warnings]
        argv = step.argv or (*self._shell, step.text)
        if step.argv is None and step.text.startswith("#!"):
            raise step.line.problem("a script with #! is not supported here: COPY it, then RUN it")
        env = {**self._arguments, **self._env}
        where = self._workdir or "/"
        made = Command(step.line, argv, tuple(sorted(env.items())), self._user, where)
        before = tuple(a for a in self._waiting if isinstance(a, MakeDir))
        if len(before) < len(self._waiting):
            self._close()
            before = ()
        self._waiting = []
        self._groups.append(Group((*before, made), self._kind))

    def _copy(self, step: i.Copy) -> None:
        line = step.line
        target = self._expand(line, step.target)
        if not target:
            raise line.problem(f"{line.keyword} has no target: {step.target} is empty")
        is_folder = target.endswith(("/", "/.", "/..")) or target in (".", "..")
        place = posixpath.normpath(posixpath.join("/", self._workdir or "/", target))
        inline = tuple(
            (d.name, d.body if d.is_literal else self._expand_document(line, d.body))
            for d in step.heredocs
        )
        sources = tuple(self._expand(line, source) for source in step.sources)
        if len(sources) + len(inline) > 1 and not is_folder:
            raise line.problem(f"several files go to a directory: write its name as {target}/")
        chown = self._expand(line, step.chown) if step.chown else None
        made = Files(
            line,
            sources,
            inline,
            place.rstrip("/") + "/" if is_folder else place,
            step.is_add,
            self._expand(line, step.from_) if step.from_ else None,
            chown,
            _mode(line, self._expand(line, step.chmod)) if step.chmod else None,
        )
        if self._kind is LayerKind.WORKSPACE:
            self._waiting.append(made)
            return
        self._close()
        self._waiting.append(made)
        self._close(self._kind)

    def _expand_document(self, line: Line, body: str) -> str:
        try:
            return words.fill(body, {**self._arguments, **self._env}, line.escape)
        except BadRequest as problem:
            raise line.problem(problem.message) from None

    def _go(self, step: i.Workdir) -> None:
        path = self._expand(step.line, step.path)
        if not path:
            raise step.line.problem(f"WORKDIR {step.path} is empty")
        self._workdir = posixpath.normpath(posixpath.join("/", self._workdir or "/", path))
        if self._workdir.startswith("//"):
            self._workdir = self._workdir[1:]
        if len(self._workdir) > 4096:
            raise step.line.problem("WORKDIR is longer than 4096 letters")
        if self._workdir != "/":
            self._waiting.append(MakeDir(step.line, self._workdir))

    def _become(self, step: i.User) -> None:
        user, colon, group = self._expand(step.line, step.user).partition(":")
        if not user or len(user) > 64:
            raise step.line.problem(f"USER {step.user} names no user")
        if colon:
            self._warnings.append(
                f"line {step.line.number}: the group {group!r} is left out: "
                "commands have the groups of their user"
            )
        self._user = user

    def _note(self, step: i.Noted | i.Label) -> None:
        if isinstance(step, i.Label):
            for name, value in step.pairs:
                label = f"label.{self._expand(step.line, name)}"
                many = sum(key.startswith("label.") for key in self._notes)
                if label in self._notes or many < MOST_LABELS:
                    self._notes[label] = self._expand(step.line, value)[:NOTE_LETTERS]
            return
        keyword = step.line.keyword
        if keyword in ("HEALTHCHECK", "VOLUME", "MAINTAINER"):
            self._warnings.append(f"line {step.line.number}: {keyword} has no effect here")
            return
        self._notes[keyword.lower()] = step.value[:NOTE_LETTERS]

    def _close(self, kind: LayerKind = LayerKind.WORKSPACE) -> None:
        """Make a layer of the files that are waiting."""
        if self._waiting:
            self._groups.append(Group(tuple(self._waiting), kind))
            self._waiting = []


def merged(groups: Sequence[Group], room: int) -> list[Group]:
    """Return the groups, neighbours put together so that there are at most `room`.

    Raises:
        BadRequest: there is no room for a single one.
    """
    if groups and room < 1:
        raise BadRequest(f"what it stands on has {MOST_LAYERS} layers already: merge them first")
    if len(groups) <= room:
        return list(groups)
    size = -(-len(groups) // room)
    made: list[Group] = []
    for at in range(0, len(groups), size):
        part = groups[at : at + size]
        made.append(Group(tuple(a for g in part for a in g.actions), part[0].kind))
    return made


def _mode(line: Line, text: str) -> int:
    try:
        mode = int(text, 8)
    except ValueError:
        mode = -1
    if not 0 <= mode <= 0o7777:
        raise line.problem(f"--chmod={text[:40]} is no mode: write 644 or 0755")
    return mode
