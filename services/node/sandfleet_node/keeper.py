"""Keeps a launcher at hand: finds or starts one, mounts layers in it, replaces it when it dies."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

from sandfleet_common.bus import reconnect_delay
from sandfleet_common.errors import Unreachable
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger

from .core import Load
from .launcher import Found, Launcher, LauncherRefused, Listeners
from .layers import LayerFiles
from .metrics import NodeMetrics

BROKEN = "the node's launcher is not running"


class Keeper:
    """The node's launcher, whichever process that is at the moment."""

    def __init__(
        self,
        binary: Path,
        run_dir: Path,
        orphan_seconds: int,
        load: Load,
        metrics: NodeMetrics,
        tasks: Tasks,
        log: Logger,
    ) -> None:
        self._binary = binary
        self._run_dir = run_dir
        self._orphan_seconds = orphan_seconds
        self._load = load
        self._metrics = metrics
        self._tasks = tasks
        self._log = log
        self._launcher: Launcher | None = None
        self._layers: dict[str, asyncio.Task[None]] = {}
        self._mounted_at: dict[str, float] = {}
        self.on_open: list[Callable[[int], Awaitable[None]]] = []
        """Awaited with the pid of each launcher, before sandboxes are created in it."""
        self.is_opening = False
        """A launcher is being connected to; whoever does that notices if it dies meanwhile."""

    @property
    def launcher(self) -> Launcher | None:
        """The launcher that is connected, if one is."""
        launcher = self._launcher
        return launcher if launcher is not None and launcher.is_open else None

    def problem(self) -> str | None:
        """Return what is wrong with it; for the health check."""
        return None if self.launcher is not None else BROKEN

    def need(self) -> Launcher:
        """Return the launcher.

        Raises:
            Unreachable: there is none just now.
        """
        launcher = self.launcher
        if launcher is None:
            raise Unreachable(BROKEN)
        return launcher

    async def open(self, listeners: Listeners) -> Found:
        """Find a launcher or start one.

        Raises:
            Unreachable: it does not come up.
        """
        self._layers.clear()
        self.is_opening = True
        try:
            launcher, found = await Launcher.open(
                self._binary, self._run_dir, self._orphan_seconds, listeners, self._tasks, self._log
            )
            self._launcher = launcher
            try:
                for prepare in self.on_open:
                    await prepare(launcher.pid)
            except BaseException:
                launcher.close()  # the next try connects anew, and there is one connection
                raise
            if not launcher.is_open:
                raise Unreachable("the launcher has gone again")
        finally:
            self.is_opening = False
        self._load.broken = None
        self._metrics.launcher_starts.inc()
        return found

    async def reopen(self, listeners: Listeners) -> Found:
        """Replace a launcher that has died, trying until one runs."""
        self._load.broken = BROKEN
        tries = 0
        while True:
            try:
                return await self.open(listeners)
            except (Unreachable, OSError) as problem:
                tries += 1
                self._log.error("launcher.down", error=str(problem), tries=tries)
                await asyncio.sleep(reconnect_delay(tries, random.random()))

    def has_layer(self, digest: str) -> bool:
        """Return whether a layer is mounted."""
        task = self._layers.get(digest)
        return (
            task is not None and task.done() and not task.cancelled() and task.exception() is None
        )

    async def mount(self, digest: str, files: LayerFiles) -> None:
        """Have a layer mounted from its files.

        Raises:
            LauncherRefused: it cannot be mounted.
            Unreachable: the launcher has gone.
        """
        await self.mount_by(digest, lambda: self.need().mount_layer(digest, files.meta, files.data))

    async def mount_by(self, digest: str, do: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Have a layer mounted somehow; many who ask at once share one attempt.

        Raises:
            SandfleetError: what `do` raises.
        """
        if self.has_layer(digest):
            return
        task = self._layers.get(digest)
        if task is None or task.done():
            task = self._tasks.start(do(), f"mount {digest[:20]}")
            self._layers[digest] = task
            self._mounted_at[digest] = time.time()
        await asyncio.shield(task)

    def mounted(self) -> dict[str, float]:
        """Return which layers are mounted, and since when, in seconds since 1970."""
        return {d: self._mounted_at[d] for d in self._layers if self.has_layer(d)}

    async def unmount(self, digest: str) -> None:
        """Have a layer mounted no more. One that is wanted meanwhile is mounted anew.

        Raises:
            LauncherRefused: a sandbox uses it.
            Unreachable: the launcher has gone.
        """
        task = self._layers.pop(digest, None)
        try:
            await self.need().unmount_layer(digest)
        except LauncherRefused:
            if task is not None:
                self._layers.setdefault(digest, task)
            raise

    async def mount_directory(self, digest: str, path: Path) -> None:
        """Have a directory mounted that serves as a layer on this node.

        Raises:
            LauncherRefused: it cannot be mounted.
            Unreachable: the launcher has gone.
        """
        await self.mount_by(digest, lambda: self.need().mount_directory(digest, path))

    async def quit(self) -> None:
        """End the launcher and every sandbox it holds."""
        launcher = self.launcher
        if launcher is not None:
            await launcher.quit()

    def close(self) -> None:
        """Leave the launcher to the next service."""
        if self._launcher is not None:
            self._launcher.close()
