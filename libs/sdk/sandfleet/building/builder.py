"""Builds environments from Dockerfiles: every step in a sandbox, every layer found again.

builder = Builder(client, report=print)
info = await builder.build(Source.of_directory("."), "project")
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

from sandfleet.client import AsyncClient
from sandfleet.sandbox import AsyncSandbox
from sandfleet_common.errors import BadRequest, NotFound, SandfleetError, TimedOut
from sandfleet_common.messages import EnvironmentInfo, Layer, LayerKind

from . import instructions as i
from . import planning
from . import stages as st
from .context import Context, open_context
from .copying import Copier, matches
from .events import Report, Said, Step, unheard
from .keys import group_key
from .stages import Command, Files, Ground, Group, MakeDir
from .workshop import ROOT, Means, Workshop, built_on

SCRATCH = "scratch"
ROOT_FOLDER = "/image"
"""In a helper sandbox: the tree of an environment that begins from nothing."""
Importer = Callable[[str], Awaitable[Ground]]
"""Brings an image from elsewhere into the store."""


@dataclass(frozen=True, slots=True)
class Source:
    """A Dockerfile, the directory it copies from, and what its arguments are."""

    text: str
    context: Context
    file: str = "Dockerfile"
    target: str | None = None
    arguments: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of_directory(
        cls,
        directory: str | Path,
        *,
        dockerfile: str | Path | None = None,
        target: str | None = None,
        arguments: Mapping[str, str] | None = None,
    ) -> Self:
        """Read the Dockerfile, or Containerfile, of a directory.

        Raises:
            NotFound: there is none.
            BadRequest: it is no text.
        """
        root = Path(directory)
        places = [root / "Dockerfile", root / "Containerfile"]
        if dockerfile is not None:
            places = [Path(dockerfile)]
        for place in places:
            if place.is_file():
                break
        else:
            raise NotFound(f"there is no {' or '.join(str(p) for p in places)}")
        try:
            text = place.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as problem:
            raise BadRequest(f"{str(place)!r} cannot be read: {problem}") from None
        return cls(text, open_context(root, place), place.name, target, dict(arguments or {}))


class Builder:
    """Builds in sandboxes of one platform."""

    def __init__(
        self,
        client: AsyncClient,
        *,
        means: Means | None = None,
        report: Report = unheard,
        use_cache: bool = True,
        helper: str = "debian",
        importer: Importer | None = None,
    ) -> None:
        """Make a builder.

        Args:
            client: an open client.
            means: what the sandboxes get.
            report: is told how the build goes on.
            use_cache: take layers that were built before.
            helper: the environment in which a tree from scratch is put together.
            importer: fetches an image that the store has no environment of.
        """
        self.workshop = Workshop(client, means, report)
        self._report = report
        self._use_cache = use_cache
        self._helper = helper
        self._importer = importer
        self._number = 0
        self._total = 0
        self._done: dict[int, Ground] = {}

    async def build(self, source: Source, name: str) -> EnvironmentInfo:
        """Build a Dockerfile and name the outcome, `name` or `name:version`.

        Raises:
            BadRequest: the Dockerfile cannot be carried out; names file and line.
            BuildFailed: a step failed; has its last output.
            TimedOut: the build took longer than it may.
        """
        async with self.limited():
            ground = await self.carry_out(source)
            if not ground.layers:
                raise BadRequest(f"{source.file}: nothing is in it: FROM scratch needs a COPY")
            return await self.workshop.offer(name, ground, source=f"{source.file}")

    async def carry_out(self, source: Source) -> Ground:
        """Build the stages that the target needs, and return what it comes to."""
        recipe = st.recipe(source.text, source.file)
        known = st.global_arguments(recipe, source.arguments)
        for argument in recipe.unclaimed(source.arguments):
            self._report(Said("warning", f"no ARG declares {argument!r}, so it has no effect"))
        target = recipe.target(source.target)
        wanted = needed(recipe, target, known)
        self._number, self._done = 0, {}
        self._total = sum(_about(stage) for stage in wanted)
        for stage in wanted:
            self._done[stage.number] = await self._stage(recipe, stage, source, known)
        return self._done[target.number]

    async def layer(
        self,
        ground: Ground,
        group: Group,
        context: Context,
        origins: Mapping[str, Ground] | None = None,
    ) -> Ground:
        """Have one more layer on a ground: found, or built and packed.

        Raises:
            SandfleetError: it could not be built; says why.
        """
        began = time.monotonic()
        self._number += 1
        self._total = max(self._total, self._number)
        step = Step(self._number, self._total, group.title, "started")
        self._report(step)
        try:
            contents = await self._contents(group, context, origins or {})
            key = group_key(ground.layers, group, contents)
            layer = await self.workshop.find(key) if self._use_cache else None
            state = "cached"
            if layer is None:
                state = "done"
                layer = await self._built(ground, group, key, context, origins or {}, step)
        except SandfleetError:
            seconds = time.monotonic() - began
            self._report(dataclasses.replace(step, state="failed", seconds=seconds))
            raise
        self._report(
            dataclasses.replace(
                step,
                state=state,
                seconds=time.monotonic() - began,
                size_bytes=layer.size_bytes,
                digest=layer.digest,
            )
        )
        return dataclasses.replace(ground, layers=(layer.digest, *ground.layers), reference=None)

    def expect(self, layers: int) -> None:
        """Say that so many more layers will come, for progress."""
        self._total = self._number + layers

    def limited(self) -> _Limited:
        """Return a block that raises TimedOut when the build has taken as long as it may."""
        return _Limited(self.workshop.means.timeout_seconds)

    async def _stage(
        self, recipe: st.Recipe, stage: st.Stage, source: Source, known: Mapping[str, str]
    ) -> Ground:
        ground = await self._ground(recipe, stage, known)
        plan = planning.plan(stage, ground, known, source.arguments)
        for warning in plan.warnings:
            self._report(Said("warning", f"{source.file}: {warning}"))
        for group in plan.groups:
            origins = await self._origins(recipe, stage, group)
            ground = await self.layer(ground, group, source.context, origins)
        return dataclasses.replace(
            ground, env=plan.env, user=plan.user, workdir=plan.workdir, notes=plan.notes
        )

    async def _ground(self, recipe: st.Recipe, stage: st.Stage, known: Mapping[str, str]) -> Ground:
        image = st.image_of(stage, known)
        former = recipe.stage(image, stage.number)
        if former is not None:
            return self._done[former.number]
        if image == SCRATCH:
            return Ground()
        try:
            return await self.from_name(image)
        except NotFound as problem:
            raise stage.begin.line.problem(f"FROM {image}: {problem.message}") from None

    async def from_name(self, image: str) -> Ground:
        """Return an environment of the store, or import the image of that name.

        Raises:
            NotFound: there is neither.
        """
        try:
            return await self.workshop.ground(image)
        except (NotFound, BadRequest):
            if self._importer is None:
                raise
        try:
            return await self._importer(image)
        except NotFound as problem:
            raise NotFound(f"there is no environment {image!r}, and {problem.message}") from None

    async def _origins(self, recipe: st.Recipe, stage: st.Stage, group: Group) -> dict[str, Ground]:
        found: dict[str, Ground] = {}
        for action in group.actions:
            if isinstance(action, Files) and action.from_ is not None:
                former = recipe.stage(action.from_, stage.number)
                if former is not None:
                    found[action.from_] = self._done[former.number]
                    continue
                try:
                    found[action.from_] = await self.from_name(action.from_)
                except NotFound as problem:
                    raise action.line.problem(
                        f"COPY --from={action.from_}: {problem.message}"
                    ) from None
        return found

    async def _contents(
        self, group: Group, context: Context, origins: Mapping[str, Ground]
    ) -> dict[int, str]:
        """Return hashes of what a group copies, by the position of the action."""
        found: dict[int, str] = {}
        for number, action in enumerate(group.actions):
            if not isinstance(action, Files):
                continue
            if action.from_ is not None:
                found[number] = " ".join(origins[action.from_].layers)
                continue
            try:
                found[number] = await asyncio.to_thread(_hash_of, context, action)
            except (NotFound, BadRequest) as problem:
                raise action.line.problem(problem.message) from None
        return found

    async def _built(
        self,
        ground: Ground,
        group: Group,
        key: str,
        context: Context,
        origins: Mapping[str, Ground],
        step: Step,
    ) -> Layer:
        is_empty = not ground.layers
        place = await self.workshop.ground(self._helper) if is_empty else ground
        async with self.workshop.sandbox(place) as sandbox:
            root = ROOT_FOLDER if is_empty else ""
            copier = Copier(self.workshop, sandbox, root)
            if is_empty:
                await copier.make_folder("/")
            for action in group.actions:
                match action:
                    case MakeDir():
                        await copier.make_folder(action.path)
                    case Files():
                        origin = origins[action.from_] if action.from_ is not None else None
                        await copier.copy(action, context, origin)
                    case Command():
                        if is_empty:
                            raise action.line.problem("RUN needs something to run: COPY it first")
                        await self._run(sandbox, action)
            self._report(dataclasses.replace(step, state="packing"))
            return await self.workshop.pack(
                sandbox,
                key,
                group.kind if not is_empty else LayerKind.BASE,
                description=group.title,
                notes=built_on(ground),
                root=root or "/",
            )

    async def _run(self, sandbox: AsyncSandbox, action: Command) -> None:
        await self.workshop.run(
            sandbox,
            action.argv,
            what=f"{action.line.file}:{action.line.number}: RUN failed",
            env=dict(action.env),
            user=action.user or ROOT,
            cwd=action.workdir,
        )


class _Limited:
    """A block that may take so many seconds; then TimedOut says so."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, value, traceback)
        except TimeoutError:
            raise TimedOut(
                f"the build took longer than {self._seconds:g} s: give it more with --timeout"
            ) from None


def needed(recipe: st.Recipe, target: st.Stage, known: Mapping[str, str]) -> list[st.Stage]:
    """Return the stages that a target needs, itself last."""
    wanted: set[int] = set()
    waiting = [target]
    while waiting:
        stage = waiting.pop()
        if stage.number in wanted:
            continue
        wanted.add(stage.number)
        names = [st.image_of(stage, known)]
        names += [step.from_ for step in stage.steps if isinstance(step, i.Copy) and step.from_]
        found = [recipe.stage(name, stage.number) for name in names]
        waiting += [one for one in found if one is not None]
    return [stage for stage in recipe.stages if stage.number in wanted]


def _about(stage: st.Stage) -> int:
    """Return how many layers a stage will have, for progress."""
    steps = [type(step) for step in stage.steps if isinstance(step, i.Run | i.Copy)]
    follows = zip(steps[1:], steps, strict=False)
    return len(steps) - sum(step is before is i.Copy for step, before in follows)


def _hash_of(context: Context, files: Files) -> str:
    found = [(e.path, context.content_hash(e)) for e in matches(context, files.sources)]
    return repr(found)
