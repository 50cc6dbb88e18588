"""Answers the kernel's reads of layers, and the node's requests about them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from sandfleet_common.errors import SandfleetError
from sandfleet_common.logs import Logger
from sandfleet_common.messages import Failure
from sandfleet_node.layers.index import CHUNK_BYTES
from sandfleet_node.layers.store import hex_of

from . import protocol
from .cache import Cache, CachedLayer
from .fetching import Fetcher
from .foresight import Foresight
from .protocol import BadFrame, Operation, Request

LINE_BYTES = 65_536
_FRAMES = 64
"""Requests taken at once before others have their turn."""
_READERS = 4


def node_of_layer(digest: str) -> int:
    """Return the number of a layer's file: the same in every server's life."""
    return int(hex_of(digest)[:16], 16) >> 1 | 1 << 62


class Server:
    """Serves one FUSE connection."""

    def __init__(
        self, device: int, cache: Cache, fetcher: Fetcher, foresight: Foresight, log: Logger
    ) -> None:
        self._device = device
        self._cache = cache
        self._fetcher = fetcher
        self._foresight = foresight
        self._log = log
        self._layers = {node_of_layer(layer.digest): layer for layer in cache}
        self._tasks: set[asyncio.Task[None]] = set()
        self._threads = ThreadPoolExecutor(_READERS, thread_name_prefix="chunks")
        self._gone = asyncio.Event()
        self.identity = ""
        """Of the settings that this server was started with; the node compares it."""

    # ---------------------------------------------------------------- kernel

    async def run(self) -> None:
        """Serve until the file system is unmounted."""
        os.set_blocking(self._device, False)
        loop = asyncio.get_running_loop()
        loop.add_reader(self._device, self._on_readable)
        # Whatever an earlier server had taken and not answered.
        with contextlib.suppress(OSError):
            os.write(self._device, protocol.resend())
        try:
            await self._gone.wait()
        finally:
            loop.remove_reader(self._device)
            for task in self._tasks:
                task.cancel()
            self._threads.shutdown(wait=False, cancel_futures=True)

    def _on_readable(self) -> None:
        for _ in range(_FRAMES):
            try:
                frame = os.read(self._device, protocol.REQUEST_BYTES)
            except BlockingIOError:
                return
            except InterruptedError:
                continue
            except FileNotFoundError:
                continue  # the request was taken back
            except OSError as problem:
                self._log.info("chunks.unmounted", error=str(problem))
                self._gone.set()
                return
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        request = None
        try:
            request = protocol.parse(frame)
            self._serve(request)
        except BadFrame as problem:
            self._log.error("chunks.bad_frame", error=str(problem))
            if request is not None:
                self._answer(protocol.error(request.unique, protocol.FAILED))

    def _serve(self, request: Request) -> None:
        if request.operation == Operation.READ:
            self._read(request)
        elif request.operation not in protocol.UNANSWERED:
            self._answer(self._answer_to(request))

    def _answer_to(self, request: Request) -> bytes:
        unique, node = request.unique, request.node
        match request.operation:
            case Operation.LOOKUP:
                return self._lookup(request)
            case Operation.GETATTR if node == protocol.ROOT or node in self._layers:
                return protocol.ok(unique, protocol.attributes(node, self._size(node)))
            case Operation.OPEN if node in self._layers:
                return protocol.ok(unique, protocol.opened())
            case Operation.OPENDIR if node == protocol.ROOT:
                return protocol.ok(unique, protocol.opened())
            case Operation.GETATTR | Operation.OPEN | Operation.OPENDIR:
                return protocol.error(unique, protocol.NOT_HERE)
            case Operation.INIT:
                answer = protocol.init(request.body)
                if answer is None:
                    return protocol.error(unique, protocol.NOT_KNOWN)
                return protocol.ok(unique, answer)
            case Operation.STATFS:
                return protocol.ok(unique, protocol.statfs())
            case (
                Operation.RELEASE | Operation.RELEASEDIR | Operation.READDIR
                | Operation.FLUSH | Operation.ACCESS | Operation.DESTROY
            ):  # fmt: skip
                return protocol.ok(unique)
            case _:
                return protocol.error(unique, protocol.NOT_KNOWN)

    def _lookup(self, request: Request) -> bytes:
        name = protocol.parse_name(request.body)
        with contextlib.suppress(SandfleetError):
            node = node_of_layer(f"sha256:{name}")
            layer = self._layers.get(node)
            if request.node == protocol.ROOT and layer is not None and hex_of(layer.digest) == name:
                return protocol.ok(request.unique, protocol.entry(node, self._size(node)))
        return protocol.error(request.unique, protocol.NOT_HERE)

    def _size(self, node: int) -> int:
        return 0 if node == protocol.ROOT else self._layers[node].index.data_bytes

    # ----------------------------------------------------------------- reads

    def _read(self, request: Request) -> None:
        layer = self._layers.get(request.node)
        offset, size = protocol.parse_read(request.body)
        if layer is None:
            self._answer(protocol.error(request.unique, protocol.FAILED))
            return
        size = max(0, min(size, layer.index.data_bytes - offset))
        if size == 0:
            self._answer(protocol.ok(request.unique))
            return
        numbers = range(offset // CHUNK_BYTES, (offset + size - 1) // CHUNK_BYTES + 1)
        self._foresight.note(layer, numbers)
        if all(layer.has(n) for n in numbers) and self._read_now(request, layer, offset, size):
            self._fetcher.counts.hits += len(numbers)
            for number in numbers:
                self._cache.get(layer, number)
            return
        task = asyncio.create_task(self._read_later(request, layer, offset, size, numbers))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _read_now(self, request: Request, layer: CachedLayer, offset: int, size: int) -> bool:
        """Answer from pages that are in memory; return whether they all were."""
        content = bytearray(size)
        try:
            got = os.preadv(layer.file, [content], offset, os.RWF_NOWAIT)
        except OSError:
            return False
        if got < size:
            return False
        self._answer(protocol.ok_header(request.unique, size), content)
        return True

    async def _read_later(
        self, request: Request, layer: CachedLayer, offset: int, size: int, numbers: range
    ) -> None:
        try:
            loop = asyncio.get_running_loop()
            # From before they are here: of several, the first could go again until the last comes.
            with self._cache.reading(layer, numbers):
                await self._fetcher.need(layer, numbers)
                content = await loop.run_in_executor(
                    self._threads, self._gather, layer, offset, size, numbers
                )
        except (SandfleetError, OSError) as problem:
            text = problem.message if isinstance(problem, SandfleetError) else str(problem)
            self._log.error("chunks.read_failed", layer=layer.digest, at=offset, error=text)
            self._answer(protocol.error(request.unique, protocol.FAILED))
            return
        self._answer(protocol.ok_header(request.unique, size), content)

    def _gather(self, layer: CachedLayer, offset: int, size: int, numbers: range) -> bytes:
        """Return bytes of chunks that are on disk or held in memory; in a thread."""
        parts: list[bytes] = []
        for number in numbers:
            start = max(offset, number * CHUNK_BYTES)
            end = min(offset + size, (number + 1) * CHUNK_BYTES)
            held = self._cache.held(layer, number)
            if held is not None:
                base = number * CHUNK_BYTES
                parts.append(held[start - base : end - base])
            elif layer.has(number):
                parts.append(os.pread(layer.file, end - start, start))
            else:
                raise OSError(protocol.FAILED, "the chunk was lost again before it was read")
        content = b"".join(parts)
        if len(content) != size:
            raise OSError(protocol.FAILED, "the cache's file is cut off")
        return content

    def _answer(self, *parts: bytes | bytearray) -> None:
        try:
            os.writev(self._device, parts)
        except FileNotFoundError:
            return  # who asked was interrupted
        except OSError as problem:
            self._log.warning("chunks.unanswered", error=str(problem))

    # ------------------------------------------------------------------ node

    async def listen(self, path: Path) -> asyncio.Server:
        """Take the node's requests at a Unix socket: a line of JSON each, and a line back."""
        await asyncio.to_thread(path.unlink, missing_ok=True)
        old = os.umask(0o177)
        try:
            return await asyncio.start_unix_server(self._serve_node, str(path), limit=LINE_BYTES)
        finally:
            os.umask(old)

    async def _serve_node(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                answer = await self._answer_node(json.loads(line))
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (OSError, ValueError):
            return
        finally:
            writer.close()

    async def _answer_node(self, asked: dict[str, Any]) -> dict[str, Any]:
        try:
            match asked.get("op"):
                case "open":
                    return {"meta": str((await self._open(str(asked["digest"]))).meta)}
                case "remove":
                    self._remove(str(asked["digest"]))
                    return {}
                case "stats":
                    return self._stats()
                case "quit":
                    self._gone.set()  # what is unanswered is sent again to the next server
                    return {}
                case _:
                    return {"failure": {"code": "bad_request", "message": "unknown op"}}
        except SandfleetError as problem:
            return {"failure": Failure.from_error(problem).model_dump()}
        except (OSError, KeyError) as problem:
            return {"failure": {"code": "unreachable", "message": f"the cache failed: {problem}"}}

    async def _open(self, digest: str) -> CachedLayer:
        layer = await self._fetcher.open(digest)
        if self._layers.setdefault(node_of_layer(digest), layer) is not layer:
            raise OSError("two layers have the same number")
        self._foresight.opened(layer)
        return layer

    def _remove(self, digest: str) -> None:
        self._layers.pop(node_of_layer(digest), None)
        self._cache.remove(digest)

    def _stats(self) -> dict[str, Any]:
        counts = self._fetcher.counts
        return {
            "pid": os.getpid(),
            "identity": self.identity,
            "cache_bytes": self._cache.used_bytes,
            "evictions": self._cache.evictions,
            "is_full": self._cache.is_full,
            **{name: getattr(counts, name) for name in counts.__slots__},
        }
