"""The cache of chunks on a disk that is really full."""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Generator
from pathlib import Path

import pytest

from sandfleet_node.chunks.cache import Cache
from sandfleet_node.layers.index import CHUNK_BYTES, Index

pytestmark = pytest.mark.root
META = b"meta"
CONTENT = [os.urandom(CHUNK_BYTES) for _ in range(12)]
INDEX = Index(
    CHUNK_BYTES,
    len(META),
    sum(map(len, CONTENT)),
    hashlib.sha256(META).digest(),
    b"".join(hashlib.sha256(chunk).digest() for chunk in CONTENT),
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Generator[Path]:
    """A file system of 2 MiB."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", tmp_path], check=True)
    yield tmp_path
    subprocess.run(["umount", "--lazy", tmp_path], check=True)


def test_every_chunk_can_be_read_though_the_disk_takes_few(small_disk: Path) -> None:
    cache = Cache(small_disk, 1 << 30)
    layer = cache.add(INDEX.digest, INDEX, INDEX.encode(), META)
    was_full = False
    for number, chunk in enumerate(CONTENT):
        cache.put(layer, number, chunk)
        was_full |= cache.is_full
        if cache.get(layer, number):
            assert os.pread(layer.file, CHUNK_BYTES, number * CHUNK_BYTES) == chunk
        else:
            assert cache.held(layer, number) == chunk
    assert was_full
    assert cache.evictions > 0
    again = Cache(small_disk, 1 << 30)
    kept = again.find(INDEX.digest)
    assert kept is not None
    for number in (number for number in range(INDEX.chunks) if again.get(kept, number)):
        assert os.pread(kept.file, CHUNK_BYTES, number * CHUNK_BYTES) == CONTENT[number]
    for open_layer in (layer, kept):
        open_layer.close()
