"""From a sandbox that stands still to a packed image: the first steps of a snapshot."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from sandfleet_common.errors import NoCapacity, NotFound
from sandfleet_common.ids import new_ulid
from sandfleet_common.logs import Logger
from sandfleet_common.messages import MIB, Layer
from sandfleet_node.config import NodeSettings
from sandfleet_node.disk import Disks, Stage
from sandfleet_node.metrics import NodeMetrics
from sandfleet_node.pausing import Pausing
from sandfleet_node.places import Places
from sandfleet_node.sandbox import Sandbox

from .jobs import Job
from .packing import Allowance, pack_stage
from .records import Forked, name_of_held
from .rules import Kind, Rules
from .tree import Bounds, Cleaned, Cleaning, open_root, remove_own

FLUSH_SECONDS = 10.0
"""How long writing out what is dirty is waited for before a sandbox stands still."""
COPY_SECONDS = 60.0
"""How long a sandbox may stand still for being copied, where there is no pool."""
NO_BOUND = 1 << 62
ResultT = TypeVar("ResultT")
_STAGING_AT_ONCE = 4
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Making:
    """Stages, cleans and packs, a bounded number at once."""

    def __init__(
        self,
        settings: NodeSettings,
        places: Places,
        disks: Disks,
        pausing: Pausing,
        rules: Rules,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._places = places
        self._disks = disks
        self._pausing = pausing
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
        folder = self._image(job, stage, Path("upper", job.asked.root.strip("/")), cleaned)
        return folder, cleaned

    def _image(self, job: Job, stage: Stage, inner: Path, cleaned: Cleaned | None) -> Path:
        """Pack a stage; one without `cleaned` has been cleaned, and given its ids, before."""
        folder = self._places.staging / job.info.snapshot_id / f"image-{new_ulid()}"
        folder.mkdir()
        disk = os.statvfs(folder)
        room = disk.f_bavail * disk.f_frsize - self._settings.disk_reserve_bytes
        needed = 1 if cleaned is None else cleaned.disk_bytes
        if needed > room:
            raise NoCapacity(
                f"the node's disk has no room for the layer: it takes {needed // MIB} "
                f"MiB, {max(0, room) // MIB} are left"
            )
        first_id = None if cleaned is None else job.first_id
        allowance = Allowance(self._settings.snapshot_pack_seconds, room)
        pack_stage(stage, inner, first_id, folder, allowance, self._stop.is_set)
        return folder

    def _clean(self, job: Job, stage: Stage) -> Cleaned:
        bounds = Bounds(
            job.disk_bytes + self._settings.snapshot_holes_bytes, self._settings.snapshot_files_max
        )
        if job.is_local:  # nobody reads its holes
            bounds = Bounds(NO_BOUND, bounds.files)
        kinds: tuple[Kind, ...] = (
            ("secret", "residue", "platform") if job.asked.scrub else ("platform",)
        )
        cleaning = Cleaning(
            self._rules.of_kinds(kinds), bounds, job.first_id,
            oci=job.asked.whiteouts == "oci", is_stopping=self._stop.is_set, shift=job.is_local,
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

    # ------------------------------------------------------------------ hold

    async def hold(self, job: Job, stage: Stage) -> Layer:
        """Make a stage itself fit to be a layer on this node, without packing it.

        Raises:
            SandfleetError: it has too many files.
            OSError: the disk is full or failed.
        """
        began = time.monotonic()
        cleaned = await asyncio.get_running_loop().run_in_executor(
            self._threads, self._hold, job, stage
        )
        job.update(packed_ms=round((time.monotonic() - began) * 1000, 3), stored_ms=0.0)
        return Layer(
            digest=name_of_held(job.info.snapshot_id),
            kind=job.asked.kind,
            size_bytes=cleaned.disk_bytes,
            created_at=job.info.created_at,
        )

    def _hold(self, job: Job, stage: Stage) -> Cleaned:
        cleaned = self._clean(job, stage)
        self._disks.hold(stage, job.info.snapshot_id)
        return cleaned

    def held(self, forked: Forked) -> Path | None:
        """Return where the launcher sees what a fork's children stand on; None: it is lost."""
        stage = self._disks.found(forked.info.snapshot_id)
        return None if stage is None else stage.place() / "upper"

    async def pack_held(self, job: Job, forked: Forked) -> Path:
        """Pack what a fork's children stand on; return the folder with the image.

        Raises:
            SandfleetError: it cannot be packed, or is lost.
            OSError: the disk is full or failed.
        """
        stage = self._disks.found(forked.info.snapshot_id)
        if stage is None:
            raise NotFound(f"what {forked.info.sandbox_id} was forked from is lost")
        return await self.do(lambda: self._image(job, stage, Path("upper"), None))

    async def do(self, work: Callable[[], ResultT]) -> ResultT:
        """Do something heavy when it is its turn, in a thread."""
        async with self._packs:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def forget(self, forked: Forked) -> None:
        """Remove what a fork's children stood on."""
        stage = self._disks.found(forked.info.snapshot_id)
        if stage is not None:
            await self.drop(stage)
