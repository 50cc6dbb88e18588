"""Environments on record: named, versioned stacks of layers.

A record is an `EnvironmentInfo`, without warnings: those are computed when it is read, so that a
better comparison speaks of old environments, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from pydantic import ValidationError

from sandfleet_common.errors import BadRequest, Broken, Busy, Conflict, NotFound
from sandfleet_common.ids import is_snapshot_id
from sandfleet_common.messages import (
    EnvironmentInfo,
    EnvironmentList,
    EnvironmentPage,
    EnvironmentPublish,
    EnvironmentSummary,
    Layer,
    SnapshotInfo,
)

from .catalog import Catalog
from .compatibility import warnings
from .leases import Leases
from .reading import mapped
from .store import Store
from .versions import next_version, parse_reference, version_key

KIND = "environments"
_TRIES = 20
"""To find a version that no other publisher took meanwhile."""
_PAGE_MAX = 2000
_SNAPSHOT_NAME = "snapshot"
_LAYERS_KEPT = 8192


class Environments:
    """Reads and publishes environments."""

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self._leases = Leases(store)
        self._layers: dict[str, Layer] = {}
        """Manifests, which never change."""

    # --------------------------------------------------------------- reading

    async def get(self, reference: str) -> EnvironmentInfo:
        """Return an environment, or a snapshot as if it were one, with its warnings.

        Raises:
            NotFound: there is none, or a layer of it has gone.
            Unreachable: the store does not answer.
        """
        known = await self._catalog.resolve(reference)
        if is_snapshot_id(known.reference):
            info = await self._of_snapshot(known.reference)
        else:
            name, _, version = known.reference.partition(":")
            info = await self._read(name, version)
        if info is None:
            self._catalog.forget(known.reference)
            raise NotFound(f"environment {known.reference} was removed")
        return with_warnings(info)

    async def _of_snapshot(self, snapshot_id: str) -> EnvironmentInfo:
        known = await self._catalog.resolve(snapshot_id)
        content = await self._store.record("snapshots", snapshot_id)
        created_at = 0.0 if content is None else SnapshotInfo.decode(content).created_at
        return EnvironmentInfo(
            name=_SNAPSHOT_NAME,
            version="0",
            layers=await self._manifests(known.layers),
            env=known.env,
            user=known.user,
            workdir=known.workdir,
            created_at=created_at,
            source=f"snapshot {snapshot_id}",
        )

    async def _read(self, name: str, version: str) -> EnvironmentInfo | None:
        content = await self._store.record(KIND, f"{name}/{version}")
        if content is None:
            return None
        try:
            return EnvironmentInfo.model_validate_json(content)
        except ValidationError:
            raise Broken(f"the record of environment {name}:{version} is damaged") from None

    async def _manifests(self, digests: Iterable[str]) -> list[Layer]:
        found = await mapped(self._manifest, list(digests))
        while len(self._layers) > _LAYERS_KEPT:
            self._layers.pop(next(iter(self._layers)))
        return found

    async def _manifest(self, digest: str) -> Layer:
        known = self._layers.get(digest)
        if known is None:
            known = self._layers[digest] = await self._store.layer(digest)
        return known

    async def page(self, body: EnvironmentList) -> EnvironmentPage:
        """Return environments by name and version, from a place on.

        Raises:
            BadRequest: `after` is no name with a version.
            Unreachable: the store does not answer.
        """
        is_name = "/" not in body.prefix
        entries = _sorted(await self._store.names(KIND, body.prefix)) if is_name else []
        if not body.versions:
            entries = list(dict(entries).items())  # the last of a name is the newest
        if body.after is not None:
            start = parse_reference(body.after)
            if start is None or start[1] is None:
                raise BadRequest(f"after={body.after[:80]!r} is not a name:version")
            behind = (start[0], version_key(start[1]))
            entries = [e for e in entries if (e[0], version_key(e[1])) > behind]
        limit = min(body.limit, _PAGE_MAX)
        shown = entries[:limit]
        found = await mapped(lambda entry: self._summary(*entry), shown)
        more = f"{shown[-1][0]}:{shown[-1][1]}" if len(entries) > limit else None
        return EnvironmentPage(environments=[s for s in found if s is not None], next=more)

    async def _summary(self, name: str, version: str) -> EnvironmentSummary | None:
        try:
            info = await self._read(name, version)
        except Broken:
            return None  # it hides only itself
        if info is None:
            return None
        return EnvironmentSummary(
            name=info.name,
            version=info.version,
            layers=len(info.layers),
            size_bytes=sum(layer.size_bytes for layer in info.layers),
            created_at=info.created_at,
            source=info.source,
        )

    # --------------------------------------------------------------- writing

    async def publish(self, body: EnvironmentPublish) -> EnvironmentInfo:
        """Name a stack of layers, and return it with its version.

        What is the same as the newest version is that version. Two who publish at once get two
        versions, or, for the same stack, one.

        Raises:
            NotFound: a layer is not in the store.
            Conflict: the version that was asked for is something else already.
            Busy: layers of it are being removed, or too many publish this name at once.
            Unreachable: the store does not answer.
        """
        async with self._leases.held(body.layers):
            self._layers = {d: v for d, v in self._layers.items() if d not in body.layers}
            layers = await self._manifests(body.layers)
            info = await self._put(body, layers)
        self._catalog.forget(info.name)
        self._catalog.learn(info.name)
        return with_warnings(info)

    async def _put(self, body: EnvironmentPublish, layers: list[Layer]) -> EnvironmentInfo:
        for _ in range(_TRIES):
            versions = await self._catalog.versions(body.name)
            same = await self._same(body, versions)
            if same is not None:
                return same
            newest = versions[-1] if versions else None
            version = body.version or next_version(newest)
            info = EnvironmentInfo(
                **body.model_dump(include={"name", "env", "user", "workdir", "notes", "source"}),
                version=version,
                layers=layers,
                created_at=time.time(),
            )
            data = info.model_dump_json(indent=2, exclude={"warnings"}).encode()
            if await self._store.put_record(KIND, f"{body.name}/{version}", data, new=True):
                return info
            if body.version is not None and await self._same(body, [version]) is None:
                raise Conflict(f"environment {body.name}:{version} exists already, and differs")
        raise Busy(f"too many publish environment {body.name} at once", retry_after_seconds=1)

    async def _same(self, body: EnvironmentPublish, versions: list[str]) -> EnvironmentInfo | None:
        """Return what is published already: the version that was asked for, or the newest."""
        if not versions or (body.version is not None and body.version not in versions):
            return None
        info = await self._read(body.name, body.version or versions[-1])
        if info is None:
            return None
        asked = (body.layers, body.env, body.user, body.workdir)
        there = ([layer.digest for layer in info.layers], info.env, info.user, info.workdir)
        if asked == there:
            return info
        if body.version is not None:
            raise Conflict(f"environment {body.name}:{body.version} exists already, and differs")
        return None

    async def remove(self, reference: str) -> None:
        """Forget one version, or with a name alone all of them.

        Raises:
            NotFound: there is none.
            Unreachable: the store does not answer.
        """
        parsed = parse_reference(reference)
        versions = [] if parsed is None else await self._catalog.versions(parsed[0])
        if parsed is not None and parsed[1] is not None:
            versions = [version for version in versions if version == parsed[1]]
        if parsed is None or not versions:
            raise NotFound(f"there is no environment {reference[:80]!r}")
        async with asyncio.TaskGroup() as group:
            for version in versions:
                group.create_task(self._store.remove_record(KIND, f"{parsed[0]}/{version}"))
        for version in versions:
            self._catalog.forget(f"{parsed[0]}:{version}")
        self._catalog.forget(parsed[0])


def with_warnings(info: EnvironmentInfo) -> EnvironmentInfo:
    """Return an environment with what does not fit in it."""
    return info.model_copy(update={"warnings": warnings(info.layers)})


def _sorted(names: Iterable[str]) -> list[tuple[str, str]]:
    """Return names and versions in order; what is no such pair is left out."""
    entries: list[tuple[str, str]] = []
    for entry in names:
        name, _, version = entry.partition("/")
        if parse_reference(f"{name}:{version}") is not None:
            entries.append((name, version))
    return sorted(entries, key=lambda e: (e[0], version_key(e[1])))
