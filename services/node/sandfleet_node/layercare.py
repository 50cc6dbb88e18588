"""What the node does about layers beside requests: leases, unmounting, and room on its disk."""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import cast

from sandfleet_common.errors import NotFound, SandfleetError
from sandfleet_common.logs import Logger

from .config import NodeSettings
from .keeper import Keeper
from .launcher import LauncherRefused
from .layers import DirectoryStore, Store
from .layers.collection import Collector, Wish, doomed
from .layers.inuse import InUse, idle
from .layers.leases import RENEW_SECONDS, Leases
from .metrics import NodeMetrics
from .places import write_whole

MOUNTED_MAX = 3500
"""The launcher holds 4,096 layers; a burst of new ones finds room."""
_LOOK_SECONDS = 5.0
_GATHER_SECONDS = 1.0
_LEASE_SECONDS = 10.0
_ROOM_SECONDS = 30.0
_KEEP_SECONDS = 3600.0
"""Under pressure layers that came less than this ago stay: somebody may be about to name them."""
_SPARE = 0.25
"""How much more than asked for is freed, so that it need not be done again at once."""


class LayerCare:
    """Keeps the store informed and the machine tidy. `run_*` are endless."""

    def __init__(
        self,
        settings: NodeSettings,
        store: Store,
        local: DirectoryStore,
        in_use: InUse,
        keeper: Keeper,
        collector: Collector,
        mounted_record: Path,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._store = store
        self._local = local
        self._in_use = in_use
        self._keeper = keeper
        self._collector = collector
        self._leases = Leases(store)
        self._record = mounted_record
        """Which layers are mounted, for the next service: the launcher does not say."""
        self._strangers: dict[str, float] = {}
        """Mounted by an earlier service, and since when that is known."""
        self._metrics = metrics
        self._log = log
        self._is_leased = True
        self.needed_here: Callable[[], Iterable[str]] = frozenset
        """Layers that only this node knows to be needed, beside those of sandboxes."""

    def _needed(self) -> frozenset[str]:
        return self._in_use.digests() | frozenset(self.needed_here())

    # ---------------------------------------------------------------- leases

    async def run_leases(self) -> None:
        """Say in the store what sandboxes stand on: soon after it changed, and now and then."""
        told: frozenset[str] | None = None
        told_at = 0.0
        while True:
            self._in_use.changed.clear()
            needed = self._needed()
            is_due = needed != told or time.monotonic() - told_at >= RENEW_SECONDS
            if is_due and await self._lease(needed):
                told, told_at = needed, time.monotonic()
            try:
                async with asyncio.timeout(RENEW_SECONDS if told == needed else _LOOK_SECONDS):
                    await self._in_use.changed.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(_GATHER_SECONDS)

    async def _lease(self, needed: frozenset[str]) -> bool:
        try:
            async with asyncio.timeout(_LEASE_SECONDS):
                await self._leases.keep(self._settings.name, needed)
        except (SandfleetError, OSError, TimeoutError) as problem:
            if self._is_leased:
                self._log.warning("layers.unleased", error=str(problem))
            self._is_leased = False
            return False
        self._is_leased = True
        return True

    # --------------------------------------------------------------- mounted

    async def run_unmounting(self) -> None:
        """Unmount layers that no sandbox has used for long, or that are too many."""
        now = time.time()
        self._strangers = dict.fromkeys(self._recorded(), now)
        noted: list[str] = []
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            await self.unmount_idle()
            every = sorted(self._mounted())
            if every != noted:
                noted = every
                self._note(every)

    async def unmount_idle(self) -> None:
        """Unmount what is to be unmounted now."""
        mounted = self._mounted()
        self._metrics.layers_mounted.set(len(mounted))
        since = {**mounted, **self._in_use.used_at()}
        gone = idle(
            mounted, self._needed(), since, time.time(),
            idle_seconds=self._settings.layer_idle_seconds, most=MOUNTED_MAX,
        )  # fmt: skip
        for digest in gone:
            await self._unmount(digest)

    def _mounted(self) -> dict[str, float]:
        return {**self._strangers, **self._keeper.mounted()}

    async def _unmount(self, digest: str) -> bool:
        """Unmount a layer unless somebody has come for it; return whether it is unmounted."""
        if digest in self._needed():
            return False
        is_strange = self._strangers.pop(digest, None) is not None
        try:
            await self._keeper.unmount(digest)
        except (LauncherRefused, SandfleetError) as problem:
            if not is_strange:  # else the launcher that had it mounted may have gone
                self._log.warning("layer.still_mounted", layer=digest, error=str(problem))
            return False
        self._log.info("layer.unmounted", layer=digest)
        return True

    def _recorded(self) -> list[str]:
        try:
            found: object = json.loads(self._record.read_bytes())
        except (OSError, ValueError):
            return []
        every = cast("list[object]", found) if isinstance(found, list) else []
        return [digest for digest in every if isinstance(digest, str)]

    def _note(self, mounted: Sequence[str]) -> None:
        try:
            write_whole(str(self._record), json.dumps(mounted).encode())
        except OSError as problem:
            self._log.warning("layers.unnoted", error=str(problem))

    # ------------------------------------------------------------------ room

    async def run_room(self) -> None:
        """Remove layers that nobody needs from a disk that fills."""
        while True:
            await asyncio.sleep(_ROOM_SECONDS)
            try:
                await self.make_room()
            except (SandfleetError, OSError) as problem:
                self._log.warning("layers.room", error=str(problem))

    async def make_room(self) -> int:
        """Free what is wanting on the disk, as far as layers can; return the bytes.

        Raises:
            SandfleetError: the store cannot be asked.
            OSError: the disk fails.
        """
        wanted = self._wanting()
        if wanted <= 0:
            return 0
        wanted = int(wanted + self._settings.layers_free_bytes * _SPARE)
        freed = await self._drop_local(wanted)
        if freed < wanted and self._is_beside():
            wish = Wish(keep_seconds=_KEEP_SECONDS, need_bytes=wanted - freed)
            freed += (await self._collector.collect(wish)).freed_bytes
        self._metrics.layers_freed.inc(freed)
        self._log.info("layers.freed", bytes=freed, wanted=wanted)
        return freed

    def _wanting(self) -> int:
        disk = os.statvfs(self._settings.state_dir)
        return self._settings.layers_free_bytes - disk.f_bavail * disk.f_frsize

    def _is_beside(self) -> bool:
        """Whether the store is a directory on the disk that is to have room."""
        if not isinstance(self._store, DirectoryStore) or not self._store.root.exists():
            return False
        return self._store.root.stat().st_dev == self._settings.state_dir.stat().st_dev

    async def _drop_local(self, wanted: int) -> int:
        """Remove the node's own copies of what the store has, and what is left of forks."""
        needed = self._needed()
        freed = 0
        wish = Wish(keep_seconds=0)
        for layer in doomed(
            await self._local.layers(), needed, wish, time.time(), self._in_use.used_at()
        ):
            if freed >= wanted:
                break
            is_young = time.time() - layer.stored_at < _KEEP_SECONDS
            if is_young and not await self._is_stored(layer.digest):
                continue
            if self._keeper.has_layer(layer.digest) and not await self._unmount(layer.digest):
                continue
            if layer.digest in self._in_use.digests():
                continue
            await self._local.remove_layer(layer.digest)
            freed += layer.size_bytes
        return freed

    async def _is_stored(self, digest: str) -> bool:
        try:
            await self._store.layer(digest)
        except NotFound:
            return False
        return True
