"""What references stand for, kept in memory: a batch of creations must not wait for a store.

A version of an environment never changes, and neither does a finished snapshot. Which version
is the newest is believed for two seconds. While the store does not answer, what is known goes
on being believed.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import ValidationError

from sandfleet_common.errors import Broken, Conflict, NotFound, Unreachable
from sandfleet_common.ids import is_snapshot_id
from sandfleet_common.logs import Logger
from sandfleet_common.messages import EnvironmentInfo, SnapshotInfo, SnapshotState

from .store import Store
from .versions import parse_reference, version_key

NEWEST_SECONDS = 2.0
NAMES_SECONDS = 5.0
NAMES_MAX = 256
"""In a heartbeat."""
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


ResultT = TypeVar("ResultT")
LocalSnapshots = Callable[[str], SnapshotInfo | None]


class Catalog:
    """Answers what environments and snapshots are. `run` keeps the list of names fresh."""

    def __init__(self, store: Store, log: Logger) -> None:
        self._store = store
        self._log = log
        self._known: OrderedDict[str, Resolved] = OrderedDict()
        self._newest: dict[str, tuple[float, Resolved]] = {}
        self._asking: dict[str, asyncio.Task[Resolved]] = {}
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

    @property
    def is_complete(self) -> bool:
        """Whether `names` has all there are."""
        return len(self._names) <= NAMES_MAX

    async def refresh(self) -> None:
        """Read the names of all environments.

        Raises:
            Unreachable: the store does not answer.
        """
        found = await self._asked(self._store.names("environments"))
        self._names = sorted({name.partition("/")[0] for name in found})
        self._names_at = time.monotonic()

    async def run(self) -> None:
        """Keep the names fresh until cancelled."""
        while True:
            try:
                await self.refresh()
            except (Unreachable, OSError) as problem:
                self._log.warning("store.unreachable", error=str(problem))
            await asyncio.sleep(NAMES_SECONDS)

    # -------------------------------------------------------------- resolve

    def recall(self, reference: str) -> Resolved | None:
        """Return what a reference stands for if that is known, without waiting."""
        known = self._known.get(reference)
        if known is not None:
            self._known.move_to_end(reference)
            return known
        newest = self._newest.get(reference)
        if newest is not None and newest[0] > time.monotonic():
            return newest[1]
        return None

    async def resolve(self, reference: str) -> Resolved:
        """Return what a reference stands for; many who ask at once share one look.

        Raises:
            NotFound: there is no such environment or snapshot; the message says which there are.
            Conflict: the snapshot is not ready.
            Unreachable: the store does not answer, and this was not known.
        """
        found = self.recall(reference)
        if found is not None:
            return found
        task = self._asking.get(reference)
        if task is None:
            task = asyncio.create_task(self._look(reference), name=f"resolve {reference[:60]}")
            self._asking[reference] = task
            task.add_done_callback(lambda _: self._asking.pop(reference, None))
        return await asyncio.shield(task)

    async def _look(self, reference: str) -> Resolved:
        if is_snapshot_id(reference):
            found = await self._snapshot(reference)
        else:
            found = await self._environment(reference)
        self._known[found.reference] = found
        while len(self._known) > _KEPT:
            self._known.popitem(last=False)
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
        if info.state is not SnapshotState.READY:
            raise Conflict(f"snapshot {snapshot_id} is not ready, it is {info.state}")
        return Resolved(snapshot_id, tuple(info.layers), info.env, info.user, info.workdir)

    async def _unknown(self, reference: str) -> str:
        try:
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
        for known in [k for k in self._known if k == reference or k.startswith(f"{name}:")]:
            del self._known[known]

    async def _asked(self, answer: Awaitable[ResultT]) -> ResultT:
        try:
            found = await answer
        except Unreachable:
            if self.failing_since is None:
                self.failing_since = time.time()
                self._log.error("store.failing")
            raise
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
        tuple(info.warnings),
    )
