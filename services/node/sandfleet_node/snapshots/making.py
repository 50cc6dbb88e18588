"""From a sandbox that stands still to a layer in the store: the steps of one snapshot."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sandfleet_common.errors import NoCapacity, NotFound
from sandfleet_common.logs import Logger
from sandfleet_common.messages import MIB, Digest, Layer, SnapshotState
from sandfleet_node.config import NodeSettings
from sandfleet_node.disk import Disks, Stage
from sandfleet_node.layers import DirectoryStore, Store
from sandfleet_node.metrics import NodeMetrics
from sandfleet_node.pausing import Pausing
from sandfleet_node.places import Places
from sandfleet_node.sandbox import Sandbox

from .jobs import Job
from .packing import Allowance, pack_stage
from .rules import Rules
from .tree import Bounds, Cleaned, Cleaning, open_root, remove_own

FLUSH_SECONDS = 10.0
"""How long writing out what is dirty is waited for before a sandbox stands still."""
COPY_SECONDS = 300.0
"""How long a sandbox may stand still for being copied, where there is no pool."""
_STAGING_AT_ONCE = 4
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Making:
    """Stages, cleans, packs and stores, a bounded number at once."""

    def __init__(
        self,
        settings: NodeSettings,
        places: Places,
        disks: Disks,
        pausing: Pausing,
        store: Store,
        local: DirectoryStore,
        rules: Rules,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._places = places
        self._disks = disks
        self._pausing = pausing
        self._store = store
        self._local = local
        self._rules = rules
        self._metrics = metrics
        self._log = log
        self._packs = asyncio.Semaphore(settings.snapshot_packs_at_once)
        self._stagings = asyncio.Semaphore(_STAGING_AT_ONCE)
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(
            settings.snapshot_packs_at_once + _STAGING_AT_ONCE, thread_name_prefix="node-snapshot"
        )

    def close(self) -> None:
        """Leave off; the next service says so of what is not finished, and removes it."""
        self._stop.set()
        self._threads.shutdown(wait=True, cancel_futures=True)

    # ----------------------------------------------------------------- stage

    async def stage(self, job: Job, sandbox: Sandbox) -> Stage:
        """Hold still what a sandbox has written.

        Raises:
            SandfleetError: it is ending, or cannot be stopped.
            OSError: the disk is full or failed.
        """
        async with self._stagings:
            await self._flush(sandbox)
            was_paused = sandbox.paused_at is not None
            began = time.monotonic()
            async with self._pausing.still(sandbox):
                stage = await asyncio.get_running_loop().run_in_executor(
                    self._threads, self._disks.stage, sandbox.id, job.info.snapshot_id,
                    job.disk_bytes, COPY_SECONDS, self._stop.is_set,
                )  # fmt: skip
            seconds = 0.0 if was_paused else time.monotonic() - began
        job.update(frozen_ms=round(seconds * 1000, 3))
        self._metrics.snapshot_frozen.observe(seconds)
        return stage

    async def _flush(self, sandbox: Sandbox) -> None:
        """Write out what is dirty, so that the sandbox stands still only for the rest."""
        flushing = asyncio.get_running_loop().run_in_executor(
            self._threads, self._disks.flush, sandbox.id
        )
        await asyncio.wait({flushing}, timeout=FLUSH_SECONDS)
        if flushing.done() and (problem := flushing.exception()) is not None:
            self._log.warning("snapshot.not_flushed", sandbox=sandbox.id, error=str(problem))

    async def drop(self, stage: Stage) -> None:
        """Remove a stage. When the node is stopping, the next service does."""
        if not self._stop.is_set():
            await asyncio.get_running_loop().run_in_executor(
                self._threads, self._disks.unstage, stage
            )

    # ------------------------------------------------------------------ pack

    async def pack(self, job: Job, stage: Stage) -> Path:
        """Clean and pack a stage when it is its turn; return the folder with the image.

        Raises:
            SandfleetError: it cannot be packed, says why.
            OSError: the disk is full or failed.
        """
        async with self._packs:
            began = time.monotonic()
            folder, cleaned = await asyncio.get_running_loop().run_in_executor(
                self._threads, self._pack, job, stage
            )
            seconds = time.monotonic() - began
        job.update(scrubbed=cleaned.scrubbed, packed_ms=round(seconds * 1000, 3))
        self._metrics.snapshot_pack.observe(seconds)
        return folder

    def _pack(self, job: Job, stage: Stage) -> tuple[Path, Cleaned]:
        cleaned = self._clean(job, stage)
        folder = self._places.staging / job.info.snapshot_id / "image"
        folder.mkdir()
        disk = os.statvfs(folder)
        room = disk.f_bavail * disk.f_frsize - self._settings.disk_reserve_bytes
        if cleaned.disk_bytes > room:
            raise NoCapacity(
                f"the node's disk has no room for the layer: it takes {cleaned.disk_bytes // MIB} "
                f"MiB, {max(0, room) // MIB} are left"
            )
        allowance = Allowance(self._settings.snapshot_pack_seconds, room, job.is_local)
        inner = Path("upper", job.asked.root.strip("/"))
        pack_stage(stage, inner, job.first_id, folder, allowance, self._stop.is_set)
        return folder, cleaned

    def _clean(self, job: Job, stage: Stage) -> Cleaned:
        bounds = Bounds(
            job.disk_bytes + self._settings.snapshot_holes_bytes, self._settings.snapshot_files_max
        )
        kinds = ("secret", "residue", "platform") if job.asked.scrub else ("platform",)
        cleaning = Cleaning(
            self._rules.of_kinds(kinds), bounds, job.first_id,
            oci=job.asked.whiteouts == "oci", is_stopping=self._stop.is_set,
        )  # fmt: skip
        top = stage.open()
        try:
            upper = os.open("upper", _DIRECTORY, dir_fd=top)
        finally:
            os.close(top)
        try:
            root = open_root(upper, job.asked.root)
        finally:
            os.close(upper)
        try:
            if job.is_whole:
                remove_own(root, f"sb-{job.info.sandbox_id[-8:]}")
            return cleaning.run(root)
        finally:
            os.close(root)

    # ----------------------------------------------------------------- store

    async def keep(self, job: Job, folder: Path) -> Layer:
        """Put an image into the store, or, of a fork, into the node's own.

        Raises:
            SandfleetError: the store does not take it.
            OSError: the disk is full or failed.
        """
        job.update(state=SnapshotState.STORING)
        began = time.monotonic()
        asked, info = job.asked, job.info
        into_shared = not job.is_local and isinstance(self._store, DirectoryStore)
        if into_shared:
            layer = await self._store.add(
                folder, asked.kind, created_at=info.created_at, description=asked.description,
                notes=asked.notes,
            )  # fmt: skip
        else:
            # Not forced to disk: where the power fails, all that would need it is lost, too.
            layer = await self._local.add(
                folder, asked.kind, created_at=info.created_at, description=asked.description,
                notes=asked.notes, is_durable=False,
            )  # fmt: skip
        if not job.is_local:
            if not into_shared:
                await self._upload(job, layer)
            for digest in job.below if job.is_whole else ():
                await self._send_on(job, digest)
        job.update(stored_ms=round((time.monotonic() - began) * 1000, 3))
        return layer

    async def _send_on(self, job: Job, digest: Digest) -> None:
        """Bring a layer into the store that so far only this node has: of a fork."""
        if self._local.files(digest) is None:
            return
        try:
            await self._store.layer(digest)
        except NotFound:
            await self._upload(job, await self._local.layer(digest))

    async def _upload(self, job: Job, layer: Layer) -> None:
        """Copy a layer of this node into the store, which may take what it is given away."""
        files = self._local.files(layer.digest)
        if files is None:
            raise NotFound(f"layer {layer.digest} has gone from the node")
        folder = self._places.staging / job.info.snapshot_id / "upload"
        folder.mkdir(exist_ok=True)
        for name, path in (("meta", files.meta), ("data", files.data)):
            (folder / name).unlink(missing_ok=True)
            (folder / name).hardlink_to(path)
        await self._store.add(
            folder, layer.kind, created_at=layer.created_at, description=layer.description,
            notes=layer.notes,
        )  # fmt: skip
