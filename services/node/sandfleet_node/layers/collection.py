"""Removing layers that nobody needs: no environment, no snapshot, no key and no lease names them.

A crash at any point leaves a valid store: layers are removed one by one, each at once and whole,
and only after they were looked for everywhere a second time with their removal announced (see
`leases`).
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from sandfleet_common.logs import Logger
from sandfleet_common.messages import EnvironmentInfo, SnapshotInfo, SnapshotState, StoreCollected

from .leases import Leases
from .reading import AT_ONCE, mapped
from .store import Store, StoredLayer

_DIGEST = re.compile(rb"sha256:[0-9a-f]{64}")
_LEFT_SECONDS = 86_400.0
"""What a writer left that was not seen for so long is rubbish."""
_FINAL = (SnapshotState.READY, SnapshotState.FAILED)


@dataclass(frozen=True, slots=True)
class Wish:
    """What a collection is to do."""

    keep_seconds: float
    """Layers that came into the store less than this ago stay."""
    need_bytes: int | None = None
    """Stop when so much was freed; None: remove all that nobody needs."""
    is_dry: bool = False
    """Only say what would be removed."""


def doomed(
    layers: Iterable[StoredLayer],
    needed: Collection[str],
    wish: Wish,
    now: float,
    used_at: Mapping[str, float],
) -> list[StoredLayer]:
    """Return which layers go, those that were used longest ago first.

    Args:
        layers: all of a store.
        needed: digests that somebody needs.
        wish: how old a layer must be, and how much is to be freed.
        now: seconds since 1970.
        used_at: when layers were last used, by digest, as far as that is known here.
    """

    def last(layer: StoredLayer) -> float:
        return max(layer.stored_at, used_at.get(layer.digest, 0.0))

    old = [x for x in layers if x.digest not in needed and now - x.stored_at >= wish.keep_seconds]
    old.sort(key=lambda x: (last(x), x.digest))
    if wish.need_bytes is None:
        return old
    chosen: list[StoredLayer] = []
    freed = 0
    for layer in old:
        if freed >= wish.need_bytes:
            break
        chosen.append(layer)
        freed += layer.size_bytes
    return chosen


class Collector:
    """Finds out what is needed, and removes the rest."""

    def __init__(
        self, store: Store, log: Logger, used_at: Callable[[], Mapping[str, float]] = dict
    ) -> None:
        self._store = store
        self._log = log
        self._used_at = used_at
        self._leases = Leases(store)

    async def collect(self, wish: Wish) -> StoreCollected:
        """Remove what nobody needs, and say how much that was.

        Raises:
            Busy: another collection is under way.
            Unreachable: the store does not answer; what was removed so far was not needed.
        """
        if not wish.is_dry:
            await self._store.sweep(_LEFT_SECONDS)
        survey = _Survey(self._store, self._leases)
        layers = await self._store.layers()
        chosen = self._doomed(layers, await survey.needed(), wish)
        if wish.is_dry or not chosen:
            return _told(layers, chosen)
        async with self._leases.condemned(x.digest for x in chosen):
            # Asked anew: what was added again in the meantime is young now.
            again = {x.digest: x for x in await self._store.layers()}
            needed = await survey.needed()
            current = [again[x.digest] for x in chosen if x.digest in again]
            chosen = self._doomed(current, needed, wish)
            await self._remove(chosen)
        told = _told(layers, chosen)
        self._log.info("store.collected", layers=told.removed, bytes=told.freed_bytes)
        return told

    def _doomed(
        self, layers: Iterable[StoredLayer], needed: Collection[str], wish: Wish
    ) -> list[StoredLayer]:
        return doomed(layers, needed, wish, time.time(), self._used_at())

    async def _remove(self, chosen: Sequence[StoredLayer]) -> None:
        for start in range(0, len(chosen), AT_ONCE):
            if start:
                await self._leases.renew(x.digest for x in chosen[start:])
            part = [x.digest for x in chosen[start : start + AT_ONCE]]
            await mapped(self._store.remove_layer, part)


class _Survey:
    """Looks everywhere for layers that are needed; what cannot have changed is read once."""

    def __init__(self, store: Store, leases: Leases) -> None:
        self._store = store
        self._leases = leases
        self._settled: dict[tuple[str, str], tuple[str, ...]] = {}

    async def needed(self) -> set[str]:
        """Return the digests of all layers that somebody needs."""
        found = await self._leases.live(time.time())
        for kind in ("environments", "snapshots", "keys"):
            entries = [(kind, name) for name in await self._store.names(kind)]
            for digests in await mapped(self._named, entries):
                found.update(digests)
        return found

    async def _named(self, entry: tuple[str, str]) -> tuple[str, ...]:
        known = self._settled.get(entry)
        if known is not None:
            return known
        content = await self._store.record(*entry)
        if content is None:
            return ()
        named, is_final = _layers_in(entry[0], content)
        if is_final:
            self._settled[entry] = named
        return named


def _layers_in(kind: str, content: bytes) -> tuple[tuple[str, ...], bool]:
    """Return the layers that a record names, and whether it stays like that.

    A record that cannot be understood (of a later version, or damaged) names whatever in it
    looks like a digest.
    """
    try:
        if kind == "environments":
            info = EnvironmentInfo.model_validate_json(content)
            return tuple(layer.digest for layer in info.layers), True
        if kind == "snapshots":
            snapshot = SnapshotInfo.model_validate_json(content)
            own = () if snapshot.layer is None else (snapshot.layer.digest,)
            return (*snapshot.layers, *own), snapshot.state in _FINAL
    except ValidationError:
        pass
    return tuple(match.decode() for match in _DIGEST.findall(content)), False


def _told(layers: Sequence[StoredLayer], gone: Sequence[StoredLayer]) -> StoreCollected:
    freed = sum(layer.size_bytes for layer in gone)
    return StoreCollected(
        removed=len(gone),
        freed_bytes=freed,
        kept=len(layers) - len(gone),
        kept_bytes=sum(layer.size_bytes for layer in layers) - freed,
    )
