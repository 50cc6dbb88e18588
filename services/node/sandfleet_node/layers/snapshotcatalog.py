"""Snapshots on record: found, listed, named, pruned. Whoever makes one writes its record."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable

from pydantic import ValidationError

from sandfleet_common.errors import BadRequest, Broken, Conflict, NotFound
from sandfleet_common.ids import is_snapshot_id
from sandfleet_common.messages import (
    SnapshotInfo,
    SnapshotList,
    SnapshotPage,
    SnapshotsRemoved,
    SnapshotState,
    SnapshotUpdate,
)

from .catalog import Catalog
from .reading import mapped
from .store import Store

KIND = "snapshots"
_PAGE_BYTES = 1024 * 1024
"""Of a reply; the bus takes four times that."""
_READ_MAX = 2000
"""Records looked at for one page."""
_STEP = 200
_ABANDONED_SECONDS = 6 * 3600.0
"""One that is not ready after so long has lost its node."""
_UNFINISHED = (SnapshotState.PACKING, SnapshotState.STORING)


class SnapshotCatalog:
    """Reads, changes and removes records of snapshots."""

    def __init__(self, store: Store, catalog: Catalog) -> None:
        self._store = store
        self._catalog = catalog
        self.local: Callable[[str], SnapshotInfo | None] = lambda _: None
        """Finds snapshots that only this node has."""

    async def get(self, snapshot_id: str) -> SnapshotInfo:
        """Return what is on record of a snapshot.

        Raises:
            NotFound: nothing is.
            Unreachable: the store does not answer.
        """
        found = self.local(snapshot_id) or await self._read(snapshot_id)
        if found is None:
            raise NotFound(f"there is no snapshot {snapshot_id}")
        return found

    async def _read(self, snapshot_id: str) -> SnapshotInfo | None:
        content = await self._store.record(KIND, snapshot_id)
        if content is None:
            return None
        try:
            return SnapshotInfo.model_validate_json(content)
        except ValidationError:
            raise Broken(f"the record of snapshot {snapshot_id} is damaged") from None

    async def _read_or_skip(self, snapshot_id: str) -> SnapshotInfo | None:
        try:
            return await self._read(snapshot_id)
        except Broken:
            return None  # it hides only itself

    async def page(self, body: SnapshotList) -> SnapshotPage:
        """Return snapshots that fit, newest first. A page may be empty and have a next one.

        Raises:
            BadRequest: `after` is no snapshot's id.
            Unreachable: the store does not answer.
        """
        ids = _newest_first(await self._store.names(KIND))
        if body.after is not None:
            if not is_snapshot_id(body.after):
                raise BadRequest(f"after={body.after[:80]!r} is not the id of a snapshot")
            ids = [i for i in ids if _age_key(i) < _age_key(body.after)]
        found: list[SnapshotInfo] = []
        size = seen = 0
        for start in range(0, min(len(ids), _READ_MAX), _STEP):
            part = ids[start : start + _STEP]
            for snapshot_id, info in zip(part, await mapped(self._read_or_skip, part), strict=True):
                seen += 1
                if info is None or not _fits(info, body):
                    continue
                found.append(info)
                size += len(info.model_dump_json())
                if len(found) == body.limit or size > _PAGE_BYTES:
                    is_last = seen == len(ids)
                    return SnapshotPage(snapshots=found, next=None if is_last else snapshot_id)
        more = ids[seen - 1] if seen < len(ids) else None
        return SnapshotPage(snapshots=found, next=more)

    async def update(self, body: SnapshotUpdate) -> SnapshotInfo:
        """Name a snapshot, or label it anew; what is None stays as it is.

        Raises:
            NotFound: there is none.
            Conflict: it is not ready: its node is about to write its record.
            Unreachable: the store does not answer.
        """
        info = await self.get(body.snapshot_id)
        if info.state in _UNFINISHED:
            raise Conflict(f"snapshot {body.snapshot_id} is not ready yet, it is {info.state}")
        wanted = {"name": body.name, "labels": body.labels}
        changed = info.model_copy(update={k: v for k, v in wanted.items() if v is not None})
        await self._store.put_record(KIND, body.snapshot_id, changed.encode())
        return changed

    async def remove(self, snapshot_id: str, *, descendants: bool) -> SnapshotsRemoved:
        """Forget a snapshot, and with `descendants` those made from it, children first.

        Sandboxes made from them go on; layers go with the next collection. Interrupted and
        asked again it goes on.

        Raises:
            NotFound: there is none.
            Conflict: one of them is being made.
            Unreachable: the store does not answer.
        """
        info = await self._read(snapshot_id)
        if info is None:
            raise NotFound(f"there is no snapshot {snapshot_id}")
        going = [info]
        if descendants:
            every = await mapped(self._read_or_skip, await self._store.names(KIND))
            going += _descendants(snapshot_id, [i for i in every if i is not None])
        for one in going:
            if one.state in _UNFINISHED and time.time() - one.created_at < _ABANDONED_SECONDS:
                raise Conflict(f"snapshot {one.snapshot_id} is being made, it is {one.state}")
        for one in reversed(going):
            await self._store.remove_record(KIND, one.snapshot_id)
            self._catalog.forget(one.snapshot_id)
        return SnapshotsRemoved(snapshot_ids=[one.snapshot_id for one in going])


def _age_key(snapshot_id: str) -> tuple[str, str]:
    """Return what ids sort by: their time, which ends them."""
    return snapshot_id[-26:], snapshot_id


def _newest_first(names: Iterable[str]) -> list[str]:
    return sorted((name for name in names if is_snapshot_id(name)), key=_age_key, reverse=True)


def _fits(info: SnapshotInfo, body: SnapshotList) -> bool:
    pairs = (
        (body.sandbox_id, info.sandbox_id),
        (body.name, info.name),
        (body.parent, info.parent),
    )
    return all(wanted in (None, there) for wanted, there in pairs) and (
        body.labels.items() <= info.labels.items()
    )


def _descendants(snapshot_id: str, every: Iterable[SnapshotInfo]) -> list[SnapshotInfo]:
    """Return what was made from a snapshot, parents before their children."""
    children: dict[str, list[SnapshotInfo]] = defaultdict(list)
    for info in every:
        if info.parent is not None and info.parent != info.snapshot_id:
            children[info.parent].append(info)
    found: list[SnapshotInfo] = []
    left, seen = [snapshot_id], {snapshot_id}
    while left:
        for child in children[left.pop()]:
            if child.snapshot_id not in seen:
                seen.add(child.snapshot_id)
                found.append(child)
                left.append(child.snapshot_id)
    return found
