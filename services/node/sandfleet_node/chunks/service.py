"""The node's side of layers on demand: keeps the chunk server running, and has layers mounted."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from sandfleet_common.errors import Unreachable, from_code
from sandfleet_common.logs import Logger
from sandfleet_node.config import NodeSettings
from sandfleet_node.disk import mounts
from sandfleet_node.keeper import Keeper
from sandfleet_node.launcherprocess import is_gone
from sandfleet_node.layers.store import hex_of
from sandfleet_node.metrics import NodeMetrics
from sandfleet_node.places import Places

from .server import LINE_BYTES
from .settings import ChunkSettings

_PASSED_ON = ("PATH", "HOME", "LANG", "TZ", "PYTHONPATH", "SSL_CERT_FILE", "SSL_CERT_DIR")
_PASSED_ON_PREFIXES = ("AWS_", "LC_")
_DEVICE = 3
"""What the server knows the descriptor of /dev/fuse as."""
_START_SECONDS = 15.0
_QUIT_LOOKS = 250
_ANSWER_SECONDS = 60.0
_LOOK_SECONDS = 1.0
_READ_AHEAD_KB = 256
"""A chunk: measured with Python's start, more brings bytes that nobody reads."""


class Chunks:
    """One chunk server for one launcher. `run` looks after it."""

    def __init__(
        self,
        settings: NodeSettings,
        places: Places,
        keeper: Keeper,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._places = places
        self._keeper = keeper
        self._metrics = metrics
        self._log = log
        self._lock = asyncio.Lock()
        self._child = 0
        self._fit: Path | None = None
        """Where a server is known to have this service's settings."""
        self._seen: dict[str, Any] = {}
        """The numbers the server gave last."""
        self._last: dict[str, float] = {}

    @property
    def failing_since(self) -> float | None:
        """Since when the store does not answer the server; seconds since 1970."""
        return self._seen.get("failing_since")

    @property
    def cache_bytes(self) -> int:
        """Layer data kept on this machine."""
        return int(self._seen.get("cache_bytes", 0))

    def _socket(self, launcher_pid: int) -> Path:
        return self._places.run / f"chunks-{launcher_pid}.sock"

    # ---------------------------------------------------------------- server

    async def ensure(self) -> None:
        """Make sure that the server runs.

        Raises:
            Unreachable: it does not come up, or there is no launcher.
        """
        async with self._lock:
            launcher = self._keeper.need()
            path = self._socket(launcher.pid)
            asked = self._asked_for(path)
            if await self._is_fit(path, asked):
                return
            if self._child:
                is_gone(self._child)  # lays it to rest
            device = await launcher.chunks()
            try:
                child = self._spawn(device, asked)
            finally:
                os.close(device)
            await self._until_served(child, path)
            self._fit = path
            self._child = child
            self._log.info("chunks.started", pid=child)
            self._metrics.chunk_starts.inc()
            await asyncio.to_thread(self._tune, launcher.pid)

    def _asked_for(self, path: Path) -> ChunkSettings:
        settings = self._settings
        return ChunkSettings(
            device=_DEVICE,
            socket=str(path),
            cache=str(self._places.chunks),
            cache_bytes=settings.chunk_cache_bytes,
            store_url=settings.store_url,
            store_endpoint=settings.store_endpoint,
            store_timeout_seconds=settings.store_timeout_seconds,
            wait_seconds=settings.chunk_wait_seconds,
            foresight=settings.chunk_foresight,
        )

    async def _is_fit(self, path: Path, asked: ChunkSettings) -> bool:
        """Return whether a server runs that was started with these settings; end another one."""
        if not await _is_served(path):
            return False
        if self._fit == path:
            return True
        found = await self._ask({"op": "stats"})
        if found.get("identity") == asked.identity:
            self._fit = path
            return True
        await self._ask({"op": "quit"})
        self._log.info("chunks.replaced", pid=found.get("pid"))
        for _ in range(_QUIT_LOOKS):
            if not await _is_served(path):
                break
            await asyncio.sleep(0.02)
        return False

    def _spawn(self, device: int, asked: ChunkSettings) -> int:
        """Start a server that will outlive this process; return its pid."""
        kept = {
            name: value
            for name, value in os.environ.items()
            if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
        }
        for stale in self._places.run.glob("chunks-*.sock"):
            if str(stale) != asked.socket:
                stale.unlink(missing_ok=True)
        log = os.open(
            self._places.run / "chunks.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600
        )
        try:
            return os.posix_spawn(
                sys.executable,
                [sys.executable, "-P", "-m", "sandfleet_node.chunks", asked.model_dump_json()],
                kept,
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_DUP2, log, 1),
                    (os.POSIX_SPAWN_DUP2, log, 2),
                    (os.POSIX_SPAWN_DUP2, device, _DEVICE),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE],
            )
        finally:
            os.close(log)

    async def _until_served(self, child: int, path: Path) -> None:
        deadline = asyncio.get_running_loop().time() + _START_SECONDS
        while not await _is_served(path):
            if is_gone(child) or asyncio.get_running_loop().time() > deadline:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                log = self._places.run / "chunks.log"
                raise Unreachable(f"the chunk server did not start: see {log}")
            await asyncio.sleep(0.02)

    def _tune(self, launcher_pid: int) -> None:
        """Let the kernel read ahead by a chunk; the server answers the look at the mount."""
        with contextlib.suppress(OSError):
            device = Path(f"/proc/{launcher_pid}/cwd/chunks").stat().st_dev
            place = Path(f"/sys/class/bdi/{os.major(device)}:{os.minor(device)}/read_ahead_kb")
            place.write_text(str(_READ_AHEAD_KB))

    async def run(self) -> None:
        """Look after the server, and tell its numbers, until cancelled."""
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            try:
                if self._keeper.launcher is None:
                    continue
                await self.ensure()
                self._tell(await self._ask({"op": "stats"}))
            except (Unreachable, OSError) as problem:
                self._log.error("chunks.down", error=str(problem))

    def _tell(self, numbers: dict[str, Any]) -> None:
        """Add what is new to the metrics; a server that was started anew counts from zero."""
        if numbers.get("pid") != self._seen.get("pid"):
            self._last = {}
        self._seen = numbers
        metrics = self._metrics
        for name, counter in (
            ("hits", metrics.chunk_hits), ("misses", metrics.chunk_misses),
            ("fetched_bytes", metrics.chunk_fetched), ("ahead_bytes", metrics.chunk_ahead),
            ("failures", metrics.chunk_failures), ("corrupt", metrics.chunk_corrupt),
            ("given_up", metrics.chunk_given_up), ("evictions", metrics.chunk_evictions),
            ("fetch_seconds", metrics.chunk_fetch_seconds), ("fetches", metrics.chunk_fetches),
        ):  # fmt: skip
            value = float(numbers.get(name, 0))
            counter.inc(max(0.0, value - self._last.get(name, 0.0)))
            self._last[name] = value
        metrics.chunk_cache.set(self.cache_bytes)
        metrics.chunk_waiting.set(float(numbers.get("waiting", 0)))
        metrics.store_failing.set(self.failing_since is not None)

    # ---------------------------------------------------------------- layers

    async def mount(self, digest: str) -> None:
        """Have a layer of the store mounted that is read on demand.

        Raises:
            NotFound: the store has no such layer.
            Unreachable: the store or the server does not answer.
            LauncherRefused: the launcher cannot mount it.
        """
        await self.ensure()
        opened = await self._ask({"op": "open", "digest": digest})
        launcher = self._keeper.need()
        name = hex_of(digest)
        stage = Path(f"/proc/{launcher.pid}/cwd/incoming-{name[:32]}")
        options = {"device": f"/proc/{launcher.pid}/cwd/chunks/{name}", "ro": None}
        # In a thread: the kernel asks the chunk server, which may just have died.
        await asyncio.to_thread(
            mounts.mount_in, launcher.pid, "erofs", str(opened["meta"]), options, stage
        )
        try:
            await launcher.mount_directory(digest, stage)
        finally:
            await asyncio.to_thread(_unstage, launcher.pid, stage)

    async def _ask(self, asked: dict[str, str]) -> dict[str, Any]:
        path = self._socket(self._keeper.need().pid)
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                reader, writer = await asyncio.open_unix_connection(str(path), limit=LINE_BYTES)
                try:
                    writer.write(json.dumps(asked).encode() + b"\n")
                    await writer.drain()
                    line = await reader.readline()
                finally:
                    writer.close()
            answer: dict[str, Any] = json.loads(line)
        except (OSError, ValueError, TimeoutError) as problem:
            raise Unreachable(f"the chunk server does not answer: {problem}") from None
        failure = answer.get("failure")
        if failure is not None:
            raise from_code(failure["code"], failure["message"], failure.get("fields"))
        return answer


async def _is_served(path: Path) -> bool:
    try:
        _, writer = await asyncio.open_unix_connection(str(path))
    except OSError:
        return False
    writer.close()
    return True


def _unstage(launcher_pid: int, stage: Path) -> None:
    with contextlib.suppress(OSError):
        mounts.detach_in(launcher_pid, stage)
        stage.rmdir()
