"""What references stand for, kept in memory: a batch of creations must not wait for a store.

A version of an environment never changes, and neither does a finished snapshot; that one was
removed is noticed some seconds later. Which version is the newest is believed for two seconds.
While the store does not answer, what is known goes on being believed, and what is not known is
refused in bounded time.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import ValidationError

from sandfleet_common.errors import Broken, Conflict, NotFound, SandfleetError, Unreachable
from sandfleet_common.ids import is_snapshot_id
from sandfleet_common.logs import Logger
from sandfleet_common.messages import EnvironmentInfo, SnapshotInfo, SnapshotState

from .compatibility import warnings
from .store import Store
from .versions import parse_reference, version_key

NEWEST_SECONDS = 2.0
NAMES_SECONDS = 5.0
NAMES_MAX = 256
"""In a heartbeat."""
ANSWER_SECONDS = 5.0
"""Whoever wants a sandbox waits for the store so long."""
LIST_SECONDS = 30.0
"""A list of all environments may take longer; nobody waits for it."""
_AGAIN_SECONDS = 1.0
"""After the store did not answer it is left alone for so long: else each of many askers waits."""
_SNAPSHOT_SECONDS = 60.0
_KEPT = 8192


@dataclass(frozen=True, slots=True)
class Resolved:
    """What a reference stands for."""

    reference: str
    """`name:version`, or a snapshot's id."""
    layers: tuple[str, ...]
    """Digests, top first."""
    env: dict[str, str] = field(default_factory=dict[str, str])
    user: str | None = None
    workdir: str | None = None
    notes: dict[str, str] = field(default_factory=dict[str, str])
    warnings: tuple[str, ...] = ()
    """Layers that were built on something else than what lies below them here."""


_AWAY = "the store of layers does not answer"
ResultT = TypeVar("ResultT")
LocalSnapshots = Callable[[str], SnapshotInfo | None]


class Catalog:
    """Answers what environments and snapshots are. `run` keeps the list of names fresh."""

    def __init__(self, store: Store, log: Logger) -> None:
        self._store = store
        self._log = log
        self._known: OrderedDict[str, Resolved] = OrderedDict()
        self._known_at: dict[str, float] = {}
        self._newest: OrderedDict[str, tuple[float, Resolved]] = OrderedDict()
        self._asking: dict[str, asyncio.Future[Resolved | SandfleetError | None]] = {}
        self._failed_at = float("-inf")
        self._warned: set[str] = set()
        self._names: list[str] = []
        self._names_at = float("-inf")
        self.failing_since: float | None = None
        """Since when the store does not answer; seconds since 1970."""
        self.local_snapshots: LocalSnapshots | None = None
        """Finds snapshots that only this node has."""

    # ---------------------------------------------------------------- names

    def names(self) -> list[str]:
        """Return the names of environments, as of some seconds ago, at most NAMES_MAX."""
        return self._names[:NAMES_MAX]

    def learn(self, name: str) -> None:
        """Take note of an environment that was just published: the next heartbeat tells of it."""
        if name not in self._names:
            self._names = sorted([*self._names, name])

    def followed(self) -> list[str] | None:
        """Return the names of all environments; None when they are more than NAMES_MAX."""
        return self._names if self.is_complete else None

    @property
    def is_complete(self) -> bool:
        """Whether `names` has all there are."""
        return len(self._names) <= NAMES_MAX

    async def refresh(self) -> None:
        """Read the names of all environments, and forget those that were removed.

        Raises:
            Unreachable: the store does not answer.
        """
        began = time.monotonic()
        found = await self._asked(self._store.names("environments"), LIST_SECONDS)
        self._names = sorted({name.partition("/")[0] for name in found})
        self._names_at = began
        there = {name.replace("/", ":") for name in found}
        for known, at in list(self._known_at.items()):
            is_old = at + _SNAPSHOT_SECONDS < began
            if at < began and (is_old if is_snapshot_id(known) else known not in there):
                self.forget(known)

    async def run(self) -> None:
        """Keep the names fresh until cancelled; a list that takes long is read less often."""
        while True:
            began = time.monotonic()
            try:
                await self.refresh()
            except SandfleetError as problem:
                self._log.warning("store.unread", error=problem.message)
            spent = time.monotonic() - began
            await asyncio.sleep(max(NAMES_SECONDS, 10 * spent))

    # -------------------------------------------------------------- resolve

    def recall(self, reference: str) -> Resolved | None:
        """Return what a reference stands for if that is known, without waiting."""
        known = self._known.get(reference)
        if known is not None:
            self._known.move_to_end(reference)
            return known
        newest = self._newest.get(reference)
        if newest is not None and (self.failing_since is not None or newest[0] > time.monotonic()):
            return newest[1]
        return None

    @property
    def _is_failing(self) -> bool:
        """Whether the store did not answer a moment ago."""
        return time.monotonic() - self._failed_at < _AGAIN_SECONDS

    async def resolve(self, reference: str) -> Resolved:
        """Return what a reference stands for; many who ask at once share one look.

        Raises:
            NotFound: there is no such environment or snapshot, or it failed; says which there
                are, or why.
            Conflict: the snapshot is not ready.
            Unreachable: the store does not answer, and this was not known.
        """
        while True:
            found = self.recall(reference)
            if found is not None:
                return found
            asking = self._asking.get(reference)
            if asking is None:
                return await self._ask(reference)
            told = await asyncio.shield(asking)
            if isinstance(told, SandfleetError):
                raise type(told)(told.message, **told.fields)
            if told is not None:
                return told

    async def _ask(self, reference: str) -> Resolved:
        """Look for all who want to know; should this one be cancelled, another takes over."""
        asking = asyncio.get_running_loop().create_future()
        self._asking[reference] = asking
        told: Resolved | SandfleetError | None = None
        try:
            told = await self._look(reference)
            return told
        except SandfleetError as problem:
            told = problem
            raise
        finally:
            del self._asking[reference]
            asking.set_result(told)

    async def _look(self, reference: str) -> Resolved:
        if is_snapshot_id(reference):
            found = await self._snapshot(reference)
        else:
            found = await self._environment(reference)
        self._known[found.reference] = found
        self._known_at[found.reference] = time.monotonic()
        while len(self._known) > _KEPT:
            oldest, _ = self._known.popitem(last=False)
            self._known_at.pop(oldest, None)
            self._warned.discard(oldest)
        while len(self._newest) > _KEPT:
            self._newest.popitem(last=False)
        if found.warnings and found.reference not in self._warned:
            self._warned.add(found.reference)
            self._log.warning(
                "environment.warnings", environment=found.reference, warnings=found.warnings
            )
        return found

    async def _environment(self, reference: str) -> Resolved:
        parsed = parse_reference(reference)
        if parsed is None:
            raise NotFound(await self._unknown(reference))
        name, wanted = parsed
        if wanted is not None:
            return await self._version(reference, name, wanted)
        try:
            versions = await self.versions(name)
        except Unreachable:
            stale = self._newest.get(name)
            if stale is None:
                raise
            return stale[1]
        if not versions:
            self._newest.pop(name, None)
            raise NotFound(await self._unknown(reference))
        newest = f"{name}:{versions[-1]}"
        found = self._known.get(newest) or await self._version(reference, name, versions[-1])
        self._newest[name] = (time.monotonic() + NEWEST_SECONDS, found)
        return found

    async def versions(self, name: str) -> list[str]:
        """Return the versions of an environment, oldest first; none: there is no such one.

        Raises:
            Unreachable: the store does not answer.
        """
        found = await self._asked(self._store.names("environments", f"{name}/"))
        return sorted((entry.partition("/")[2] for entry in found), key=version_key)

    async def _version(self, reference: str, name: str, version: str) -> Resolved:
        content = await self._asked(self._store.record("environments", f"{name}/{version}"))
        if content is None:
            known = ", ".join(await self.versions(name))
            if not known:
                raise NotFound(await self._unknown(reference))
            raise NotFound(f"environment {reference!r} has no such version; there are: {known}")
        try:
            info = EnvironmentInfo.model_validate_json(content)
        except ValidationError:
            raise Broken(f"the record of environment {reference!r} is damaged") from None
        return resolved(info)

    async def _snapshot(self, snapshot_id: str) -> Resolved:
        info = self.local_snapshots(snapshot_id) if self.local_snapshots is not None else None
        if info is None:
            content = await self._asked(self._store.record("snapshots", snapshot_id))
            if content is None:
                raise NotFound(f"there is no snapshot {snapshot_id}")
            try:
                info = SnapshotInfo.model_validate_json(content)
            except ValidationError:
                raise Broken(f"the record of snapshot {snapshot_id} is damaged") from None
        if info.state is SnapshotState.FAILED:
            why = "" if info.failure is None else f": {info.failure.message}"
            raise NotFound(f"snapshot {snapshot_id} failed{why}")
        if info.state is not SnapshotState.READY:
            raise Conflict(f"snapshot {snapshot_id} is not ready, it is {info.state}")
        return Resolved(snapshot_id, tuple(info.layers), info.env, info.user, info.workdir)

    async def _unknown(self, reference: str) -> str:
        try:
            if time.monotonic() - self._names_at > NEWEST_SECONDS:
                await self.refresh()
        except Unreachable:
            return f"there is no environment {reference[:80]!r}"
        some = ", ".join(self._names[:20]) or "none yet (build one)"
        more = f" and {len(self._names) - 20} more" if len(self._names) > 20 else ""
        return f"there is no environment {reference[:80]!r}; there are: {some}{more}"

    def forget(self, reference: str) -> None:
        """Believe nothing about an environment or snapshot any more: it was changed or removed."""
        name = reference.partition(":")[0]
        self._newest.pop(name, None)
        is_all = name == reference
        for known in [k for k in self._known if k == reference or (is_all and _is_of(k, name))]:
            del self._known[known]
            self._known_at.pop(known, None)

    async def _asked(
        self, answer: Coroutine[Any, Any, ResultT], seconds: float = ANSWER_SECONDS
    ) -> ResultT:
        if self._is_failing:
            answer.close()
            raise Unreachable(_AWAY)
        try:
            async with asyncio.timeout(seconds):
                found = await answer
        except (Unreachable, TimeoutError, OSError) as problem:
            self._failed_at = time.monotonic()
            if self.failing_since is None:
                self.failing_since = time.time()
                self._log.error("store.failing", error=str(problem))
            raise Unreachable(_AWAY) from problem
        if self.failing_since is not None:
            self._log.info("store.back", seconds=round(time.time() - self.failing_since))
            self.failing_since = None
        return found


def resolved(info: EnvironmentInfo) -> Resolved:
    """Return what creating a sandbox needs of an environment."""
    return Resolved(
        f"{info.name}:{info.version}",
        tuple(layer.digest for layer in info.layers),
        info.env,
        info.user,
        info.workdir,
        info.notes,
        tuple(warnings(info.layers)),
    )


def _is_of(reference: str, name: str) -> bool:
    return reference.partition(":")[0] == name
