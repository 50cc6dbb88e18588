"""What any node answers about the store: environments, layers and snapshots.

Nodes share the store and one queue group, so nobody needs to know which node to ask.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import NotFound
from sandfleet_common.logs import Logger
from sandfleet_common.subjects import Subject

from .layers import Catalog, Store
from .layers.collection import Collector, Wish
from .layers.environments import Environments
from .layers.snapshotcatalog import SnapshotCatalog

Handler = Callable[[Any], Awaitable[Any]]
SECONDS = 120.0
"""What a look at the store may take; a collection of a large one may take longer."""
COLLECT_SECONDS = 3600.0


class StoreDesk:
    """Serves STORE_OPS."""

    def __init__(self, store: Store, catalog: Catalog, collector: Collector, log: Logger) -> None:
        self._store = store
        self._log = log
        self._collector = collector
        self.tell: Callable[[], Awaitable[None]] | None = None
        """Awaited after an environment was published, so that schedulers know of it by then."""
        self.environments = Environments(store, catalog)
        self.snapshots = SnapshotCatalog(store, catalog)

    def table(self) -> list[tuple[Subject[Any, Any], Handler, float]]:
        """Return each subject, what serves it, and how many seconds that may take."""
        return [
            (s.ENVIRONMENT_LIST, self.environments.page, SECONDS),
            (s.ENVIRONMENT_GET, self._get, SECONDS),
            (s.ENVIRONMENT_PUBLISH, self._publish, SECONDS),
            (s.ENVIRONMENT_REMOVE, self._remove, SECONDS),
            (s.LAYER_FIND, self._find, SECONDS),
            (s.SNAPSHOT_LIST, self.snapshots.page, SECONDS),
            (s.SNAPSHOT_GET, self._snapshot, SECONDS),
            (s.SNAPSHOT_UPDATE, self.snapshots.update, SECONDS),
            (s.SNAPSHOT_REMOVE, self._forget, SECONDS),
            (s.STORE_COLLECT, self._collect, COLLECT_SECONDS),
        ]

    async def _get(self, body: m.EnvironmentGet) -> m.EnvironmentInfo:
        return await self.environments.get(body.environment)

    async def _publish(self, body: m.EnvironmentPublish) -> m.EnvironmentInfo:
        info = await self.environments.publish(body)
        self._log.info(
            "environment.published", environment=f"{info.name}:{info.version}",
            layers=len(info.layers), warnings=info.warnings, request_id=body.request_id,
        )  # fmt: skip
        if self.tell is not None:
            await self.tell()
        return info

    async def _remove(self, body: m.EnvironmentRemove) -> m.Ok:
        await self.environments.remove(body.environment)
        self._log.info(
            "environment.removed", environment=body.environment, request_id=body.request_id
        )
        return m.Ok()

    async def _find(self, body: m.LayerFind) -> m.LayerFound:
        """Find a layer by its key; a key whose layer has gone is removed."""
        content = await self._store.record("keys", body.key)
        if content is None:
            return m.LayerFound()
        try:
            return m.LayerFound(layer=await self._store.layer(content.decode().strip()))
        except (NotFound, UnicodeDecodeError):
            await self._store.remove_record("keys", body.key)
            return m.LayerFound()

    async def _snapshot(self, body: m.SnapshotGet) -> m.SnapshotInfo:
        return await self.snapshots.get(body.snapshot_id)

    async def _forget(self, body: m.SnapshotRemove) -> m.SnapshotsRemoved:
        removed = await self.snapshots.remove(body.snapshot_id, descendants=body.descendants)
        self._log.info(
            "snapshots.removed", snapshots=removed.snapshot_ids[:100], request_id=body.request_id
        )
        return removed

    async def _collect(self, body: m.StoreCollect) -> m.StoreCollected:
        wish = Wish(keep_seconds=body.keep_seconds, is_dry=body.dry_run)
        return await self._collector.collect(wish)
