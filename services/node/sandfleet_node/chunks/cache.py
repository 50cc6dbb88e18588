"""Chunks of layers on the node's disk, within a bound.

    <hex>/index      of the layer, which verifies everything else
    <hex>/meta       whole
    <hex>/data       sparse: the chunks that are there
    <hex>/present    a byte for each chunk: 1 when it is there

A chunk is written before its byte in `present`. It is verified when it is read for the first
time in a server's life, so that neither a lost write nor a bad disk is ever served.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import shutil
from collections import Counter, OrderedDict
from collections.abc import Generator, Iterable, Iterator
from pathlib import Path

from sandfleet_common.errors import Broken
from sandfleet_node.layers.index import Index, parse

_PUNCH = 1 | 2
"""FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE"""
_libc = ctypes.CDLL(None, use_errno=True)
MEMORY_CHUNKS = 256
"""Kept in memory while the disk takes nothing: 64 MiB."""


class CachedLayer:
    """One layer's files. Not safe for several threads."""

    def __init__(self, folder: Path, digest: str, index: Index) -> None:
        self.digest = digest
        self.index = index
        self.meta = folder / "meta"
        self._folder = folder
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        self.file = os.open(folder / "data", flags, 0o600)
        os.ftruncate(self.file, index.data_bytes)
        self._present_file = os.open(folder / "present", flags, 0o600)
        known = os.pread(self._present_file, index.chunks, 0)
        self.present = bytearray(known.ljust(index.chunks, b"\0"))
        self.trusted = bytearray(index.chunks)
        """Verified in this server's life."""

    def has(self, number: int) -> bool:
        """Whether a chunk is there and was verified."""
        return bool(self.trusted[number])

    def verify(self, number: int) -> bool:
        """Look at a chunk that an earlier server left; return whether it can be served. Blocks."""
        if not self.present[number]:
            return False
        if not self.trusted[number]:
            size = self.index.chunk_size(number)
            content = os.pread(self.file, size, number * self.index.chunk_bytes)
            if not self.index.is_chunk(number, content):
                self._mark(number, 0)
                return False
            self.trusted[number] = 1
        return True

    def put(self, number: int, content: bytes) -> None:
        """Keep a verified chunk.

        Raises:
            OSError: the disk is full or failed.
        """
        at, left = number * self.index.chunk_bytes, memoryview(content)
        while left:
            done = os.pwrite(self.file, left, at)
            at, left = at + done, left[done:]
        self._mark(number, 1)
        self.trusted[number] = 1

    def drop(self, number: int) -> None:
        """Give a chunk's room back."""
        self.trusted[number] = 0
        self._mark(number, 0)
        offset, size = number * self.index.chunk_bytes, self.index.chunk_size(number)
        _libc.fallocate(self.file, _PUNCH, ctypes.c_longlong(offset), ctypes.c_longlong(size))

    def _mark(self, number: int, value: int) -> None:
        self.present[number] = value
        os.pwrite(self._present_file, bytes([value]), number)

    def close(self) -> None:
        """Let go of the files."""
        os.close(self.file)
        os.close(self._present_file)


class Cache:
    """All layers that are at least partly here, and which chunks were used least lately."""

    def __init__(self, root: Path, bound_bytes: int) -> None:
        self._root = root
        self._bound_bytes = bound_bytes
        self._layers: dict[str, CachedLayer] = {}
        self._order: OrderedDict[tuple[str, int], int] = OrderedDict()
        """Chunks, least lately used first, with their sizes."""
        self._memory: OrderedDict[tuple[str, int], bytes] = OrderedDict()
        self._reading: Counter[tuple[str, int]] = Counter()
        """Chunks that a thread reads just now: their room is not given away."""
        self.used_bytes = 0
        self.evictions = 0
        self.is_full = False
        """The disk took no chunk at the last try."""
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._load()

    def _load(self) -> None:
        for folder in self._root.iterdir():
            digest = f"sha256:{folder.name}"
            try:
                index = parse((folder / "index").read_bytes(), digest)
                if not index.is_meta((folder / "meta").read_bytes()):
                    raise Broken("meta is damaged")
                self._take(CachedLayer(folder, digest, index))
            except (OSError, Broken):
                shutil.rmtree(folder, ignore_errors=True)  # half made, or damaged: fetched again
        self._shrink()

    def _take(self, layer: CachedLayer) -> None:
        self._layers[layer.digest] = layer
        for number, present in enumerate(layer.present):
            if present:
                self._order[layer.digest, number] = layer.index.chunk_size(number)
                self.used_bytes += layer.index.chunk_size(number)

    def __iter__(self) -> Iterator[CachedLayer]:
        return iter(list(self._layers.values()))

    def find(self, digest: str) -> CachedLayer | None:
        """Return a layer that is here, at least its index and meta."""
        return self._layers.get(digest)

    def add(self, digest: str, index: Index, content: bytes, meta: bytes) -> CachedLayer:
        """Begin to keep a layer: its index, as bytes as well, and its meta; both are verified.

        Raises:
            OSError: the disk is full or failed.
        """
        present = self._layers.get(digest)
        if present is not None:
            return present
        folder = self._root / digest.removeprefix("sha256:")
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(mode=0o700)
        try:
            (folder / "meta").write_bytes(meta)
            (folder / "index").write_bytes(content)
            layer = CachedLayer(folder, digest, index)
        except OSError:
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._layers[digest] = layer
        return layer

    def get(self, layer: CachedLayer, number: int) -> bool:
        """Return whether a chunk can be read from the layer's file; notes its use. Blocks."""
        if layer.has(number) or layer.verify(number):
            key = (layer.digest, number)
            if key in self._order:
                self._order.move_to_end(key)
            return True
        self._forget(layer, number)
        return False

    def held(self, layer: CachedLayer, number: int) -> bytes | None:
        """Return a chunk that is only in memory, because the disk took none."""
        return self._memory.get((layer.digest, number))

    def put(self, layer: CachedLayer, number: int, content: bytes) -> None:
        """Keep a verified chunk, on disk or, where there is no room, for a while in memory."""
        key, size = (layer.digest, number), len(content)
        self._make_room(size)
        try:
            layer.put(number, content)
        except OSError as problem:
            self.is_full = True
            if problem.errno in (errno.ENOSPC, errno.EDQUOT):
                self._evict_some()
            self._memory[key] = content
            while len(self._memory) > MEMORY_CHUNKS:
                self._memory.popitem(last=False)
            return
        self.is_full = False
        self._memory.pop(key, None)
        if key not in self._order:
            self.used_bytes += size
        self._order[key] = size
        self._order.move_to_end(key)

    @contextlib.contextmanager
    def reading(self, layer: CachedLayer, numbers: Iterable[int]) -> Generator[None]:
        """Keep chunks where they are while the block runs."""
        keys = [(layer.digest, number) for number in numbers]
        self._reading.update(keys)
        try:
            yield
        finally:
            self._reading.subtract(keys)
            self._reading += Counter()  # drops what is zero

    def _make_room(self, size: int) -> None:
        for _ in range(len(self._order)):
            if self.used_bytes + size <= self._bound_bytes:
                return
            self._evict()

    def _shrink(self) -> None:
        self._make_room(0)

    def _evict_some(self) -> None:
        """Make do with a little less than the bound: the disk is full before it is reached."""
        for _ in range(min(16, len(self._order))):
            self._evict()

    def _evict(self) -> None:
        key, size = self._order.popitem(last=False)
        if self._reading[key]:
            self._order[key] = size
            return
        digest, number = key
        self.used_bytes -= size
        self.evictions += 1
        layer = self._layers.get(digest)
        if layer is not None:
            with contextlib.suppress(OSError):
                layer.drop(number)

    def _forget(self, layer: CachedLayer, number: int) -> None:
        size = self._order.pop((layer.digest, number), None)
        if size is not None:
            self.used_bytes -= size

    def remove(self, digest: str) -> None:
        """Remove a layer with all its chunks."""
        layer = self._layers.pop(digest, None)
        if layer is None:
            return
        for number in range(layer.index.chunks):
            self._forget(layer, number)
            self._memory.pop((digest, number), None)
        layer.close()
        shutil.rmtree(self._root / digest.removeprefix("sha256:"), ignore_errors=True)
