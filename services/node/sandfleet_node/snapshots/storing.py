"""From a packed image to a stack of layers in the store: the last steps of a snapshot.

What a sandbox stands on may be known to its node only: directories of forks, and layers on
their way into an object store. A snapshot in the store needs all of it there.
"""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

from sandfleet_common.errors import NotFound, SandfleetError
from sandfleet_common.ids import new_ulid
from sandfleet_common.logs import Logger
from sandfleet_common.messages import Digest, Layer, LayerKind, SnapshotState
from sandfleet_node.layers import DirectoryStore, LayerFiles, Store
from sandfleet_node.layers.image import pack
from sandfleet_node.layers.merging import merge
from sandfleet_node.layers.store import Notes
from sandfleet_node.places import Places

from .jobs import Job
from .making import Making
from .records import SnapshotRecords

LINE_MAX = 8
"""Layers of snapshots on top of one another; with more they become one."""


class Storing:
    """Brings images and what they lie on into the store."""

    def __init__(
        self,
        places: Places,
        making: Making,
        store: Store,
        local: DirectoryStore,
        records: SnapshotRecords,
        log: Logger,
    ) -> None:
        self._places = places
        self._making = making
        self._store = store
        self._local = local
        self._records = records
        self._log = log
        self._sending = asyncio.Lock()
        """What several snapshots lie on is packed and sent once."""

    async def keep(self, job: Job, folder: Path) -> list[Layer]:
        """Put an image into the store, and what it lies on, as far as only this node has it.

        Returns:
            The whole stack, top first.

        Raises:
            SandfleetError: the store does not take it.
            OSError: the disk is full or failed.
        """
        job.update(state=SnapshotState.STORING)
        began = time.monotonic()
        asked = job.asked
        layer = await self._add(
            job, folder, asked.kind, job.info.created_at, asked.description, asked.notes
        )
        below = [await self._kept(job, digest) for digest in job.below] if job.is_whole else []
        stack = await self._shortened(job, _once([layer, *below]))
        job.update(stored_ms=round((time.monotonic() - began) * 1000, 3))
        return stack

    async def _add(
        self,
        job: Job,
        folder: Path,
        kind: LayerKind,
        created_at: float,
        description: str = "",
        notes: Notes | None = None,
    ) -> Layer:
        """Put an image into the store; by way of this node's own where the store is far."""
        if isinstance(self._store, DirectoryStore):
            return await self._store.add(
                folder, kind, created_at=created_at, description=description, notes=notes
            )
        # Not forced to disk: where the power fails, all that would need it here is lost, too.
        layer = await self._local.add(
            folder, kind, created_at=created_at, description=description, notes=notes,
            is_durable=False,
        )  # fmt: skip
        await self._upload(job, layer)
        return layer

    async def _kept(self, job: Job, digest: Digest) -> Layer:
        """Return a layer in the store for what a sandbox stands on; packs it if need be."""
        async with self._sending:
            forked = self._records.held(digest)
            if forked is not None:
                if forked.packed is not None and (found := await self._find(forked.packed)):
                    return found
                folder = await self._making.pack_held(job, forked)
                layer = await self._add(job, folder, LayerKind.SNAPSHOT, forked.info.created_at)
                self._records.add_fork(forked.model_copy(update={"packed": layer.digest}))
                return layer
            if (found := await self._find(digest)) is not None:
                return found
            layer = await self._local.layer(digest)
            await self._upload(job, layer)
            return layer

    async def _find(self, digest: Digest) -> Layer | None:
        try:
            return await self._store.layer(digest)
        except NotFound:
            return None

    async def _upload(self, job: Job, layer: Layer) -> None:
        """Copy a layer of this node into the store, which may take what it is given away."""
        files = self._local.files(layer.digest)
        if files is None:
            raise NotFound(f"layer {layer.digest} has gone from the node")
        folder = self._folder(job, "upload")
        folder.mkdir()
        for name, path in (("meta", files.meta), ("data", files.data)):
            (folder / name).hardlink_to(path)
        await self._store.add(
            folder, layer.kind, created_at=layer.created_at, description=layer.description,
            notes=layer.notes,
        )  # fmt: skip

    def _folder(self, job: Job, purpose: str) -> Path:
        return self._places.staging / job.info.snapshot_id / f"{purpose}-{new_ulid()}"

    # ----------------------------------------------------------------- merge

    async def _shortened(self, job: Job, stack: list[Layer]) -> list[Layer]:
        """Make one layer of a long line of snapshots, where that is possible."""
        line = [layer for layer, _ in zip(stack, range(_line_of(stack)), strict=False)]
        if len(line) <= LINE_MAX:
            return stack
        files = [self._files(layer.digest) for layer in line]
        there = [found for found in files if found is not None]
        if len(there) < len(files):
            return stack  # not on this node: fetching them would take longer than it saves
        try:
            merged = await self._merge(job, there)
        except (SandfleetError, OSError) as problem:
            self._log.warning(
                "snapshot.unmerged", snapshot=job.info.snapshot_id, error=str(problem)
            )
            return stack
        return _once([merged, *stack[len(line) :]])

    async def _merge(self, job: Job, files: list[LayerFiles]) -> Layer:
        tree, folder = self._folder(job, "merged"), self._folder(job, "image")

        def write() -> None:
            folder.mkdir()
            merge(files, tree)
            pack(tree, folder)
            shutil.rmtree(tree)

        await self._making.do(write)
        return await self._add(job, folder, LayerKind.SNAPSHOT, job.info.created_at)

    def _files(self, digest: Digest) -> LayerFiles | None:
        return self._local.files(digest) or self._store.files(digest)


def _line_of(stack: list[Layer]) -> int:
    """Return how many layers at the top are of snapshots."""
    for number, layer in enumerate(stack):
        if layer.kind is not LayerKind.SNAPSHOT:
            return number
    return len(stack)


def _once(stack: list[Layer]) -> list[Layer]:
    """Return a stack without layers that lie further up, too: there they are seen anyway.

    The kernel takes none twice.
    """
    return list({layer.digest: layer for layer in stack}.values())
