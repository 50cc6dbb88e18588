"""The index of a layer: what every part of its content hashes to. Its own hash is the digest.

    "SFL1"  u32 chunk_bytes  u64 meta_bytes  u64 data_bytes
    sha256 of meta           32 bytes
    sha256 of each chunk     32 bytes each, for data_bytes in chunks of chunk_bytes

Numbers are little-endian. So whoever knows a digest can verify any chunk of the layer with
the index alone, without having the rest.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from io import FileIO
from pathlib import Path

from sandfleet_common.errors import Broken

CHUNK_BYTES = 262_144
META_BYTES_MAX = 1 << 32
DATA_BYTES_MAX = 1 << 40
_MAGIC = b"SFL1"
_HEADER = struct.Struct("<4sIQQ")
_HASH_BYTES = 32
_HASHERS = 2
_PIECE_CHUNKS = 64
"""Read and hashed by one thread at a time: 16 MiB."""


@dataclass(frozen=True, slots=True)
class Index:
    """Sizes and hashes of one layer."""

    chunk_bytes: int
    meta_bytes: int
    data_bytes: int
    meta_hash: bytes
    chunk_hashes: bytes
    """32 bytes for each chunk, one after another."""

    @property
    def chunks(self) -> int:
        """How many chunks its data has."""
        return len(self.chunk_hashes) // _HASH_BYTES

    @property
    def size_bytes(self) -> int:
        """Bytes of meta and data."""
        return self.meta_bytes + self.data_bytes

    def chunk_size(self, number: int) -> int:
        """Return the bytes of a chunk: the last one may be shorter."""
        return min(self.chunk_bytes, self.data_bytes - number * self.chunk_bytes)

    def is_chunk(self, number: int, content: bytes | memoryview) -> bool:
        """Return whether these bytes are that chunk."""
        at = number * _HASH_BYTES
        return hashlib.sha256(content).digest() == self.chunk_hashes[at : at + _HASH_BYTES]

    def is_meta(self, content: bytes | memoryview) -> bool:
        """Return whether these bytes are the layer's meta."""
        return hashlib.sha256(content).digest() == self.meta_hash

    def encode(self) -> bytes:
        """Return the index as bytes."""
        header = _HEADER.pack(_MAGIC, self.chunk_bytes, self.meta_bytes, self.data_bytes)
        return header + self.meta_hash + self.chunk_hashes

    @property
    def digest(self) -> str:
        """The layer's digest, `sha256:<64 hexadecimal digits>`."""
        return digest_of(self.encode())


def digest_of(index: bytes) -> str:
    """Return the digest of the layer with this index."""
    return f"sha256:{hashlib.sha256(index).hexdigest()}"


def parse(content: bytes, digest: str | None = None) -> Index:
    """Return the index that these bytes are.

    Raises:
        Broken: they are none, or that of another layer than `digest`.
    """
    if digest is not None and digest_of(content) != digest:
        raise Broken(f"the index of layer {digest[:20]} is damaged")
    if len(content) < _HEADER.size + _HASH_BYTES:
        raise Broken("an index of a layer is cut off")
    magic, chunk_bytes, meta_bytes, data_bytes = _HEADER.unpack_from(content)
    if magic != _MAGIC or chunk_bytes != CHUNK_BYTES:
        raise Broken("an index of a layer has a format that is not known here")
    if not 0 < meta_bytes <= META_BYTES_MAX or data_bytes > DATA_BYTES_MAX:
        raise Broken("an index of a layer states an impossible size")
    hashes = content[_HEADER.size + _HASH_BYTES :]
    if len(hashes) != -(-data_bytes // chunk_bytes) * _HASH_BYTES:
        raise Broken("an index of a layer has not one hash for each chunk")
    meta_hash = content[_HEADER.size : _HEADER.size + _HASH_BYTES]
    return Index(chunk_bytes, meta_bytes, data_bytes, meta_hash, hashes)


def index_of(meta: Path, data: Path) -> Index:
    """Read both files of a layer and return its index; blocks, on two cores.

    Raises:
        OSError: a file cannot be read.
    """
    meta_content = meta.read_bytes()
    data_bytes = data.stat().st_size
    pieces = range(0, -(-data_bytes // CHUNK_BYTES), _PIECE_CHUNKS)
    with ThreadPoolExecutor(_HASHERS, thread_name_prefix="hash") as pool:
        hashes = b"".join(pool.map(partial(_hashes, data), pieces))
    meta_hash = hashlib.sha256(meta_content).digest()
    return Index(CHUNK_BYTES, len(meta_content), data_bytes, meta_hash, hashes)


def _hashes(data: Path, first: int) -> bytes:
    """Return the hashes of some chunks; hashing lets other threads run meanwhile."""
    with data.open("rb", buffering=0) as file:
        file.seek(first * CHUNK_BYTES)
        return b"".join(hashlib.sha256(chunk).digest() for chunk in _read_chunks(file))


def _read_chunks(file: FileIO) -> Generator[memoryview]:
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for _ in range(_PIECE_CHUNKS):
        size = 0
        while size < CHUNK_BYTES and (got := file.readinto(buffer[size:])):
            size += got
        if not size:
            return
        yield buffer[:size]
