"""The chunk server's protocol, cache and runs, without a kernel and a store."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import signal
import struct
from collections.abc import Generator
from pathlib import Path

import pytest

from sandfleet_node.chunks import protocol
from sandfleet_node.chunks.cache import Cache, CachedLayer
from sandfleet_node.chunks.fetching import RUN_CHUNKS, runs
from sandfleet_node.chunks.foresight import CHUNKS_MAX, parse_list
from sandfleet_node.chunks.protocol import BadFrame, Operation
from sandfleet_node.layers.index import CHUNK_BYTES, Index

META = b"meta"
CONTENT = [bytes([65 + number]) * CHUNK_BYTES for number in range(4)] + [b"short"]
INDEX = Index(
    CHUNK_BYTES,
    len(META),
    sum(map(len, CONTENT)),
    hashlib.sha256(META).digest(),
    b"".join(hashlib.sha256(chunk).digest() for chunk in CONTENT),
)


def frame(operation: int, body: bytes = b"", extensions: int = 0) -> bytes:
    size = 40 + len(body)
    return struct.pack("=IIQQIIIHH", size, operation, 7, 1, 0, 0, 0, extensions, 0) + body


def test_a_request_is_parsed() -> None:
    request = protocol.parse(frame(Operation.READ, b"body"))
    assert (request.operation, request.unique, request.node, request.body) == (15, 7, 1, b"body")


def test_extensions_are_not_part_of_a_body() -> None:
    assert protocol.parse(frame(1, b"name\0\0\0\0" + bytes(8), 1)).body == b"name\0\0\0\0"


@pytest.mark.parametrize(
    "hostile",
    [
        *(frame(Operation.READ, bytes(40))[:size] for size in (0, 1, 39, 40, 79)),
        frame(Operation.READ) + b"more",
        frame(1, bytes(8), 2),
        frame(1, bytes(8), 65_535),
        b"\xff" * 80,
    ],
)
def test_a_frame_that_contradicts_itself_is_refused(hostile: bytes) -> None:
    with pytest.raises(BadFrame):
        protocol.parse(hostile)


@pytest.mark.parametrize("body", [b"", b"\0", b"name", b"name\0more"])
def test_a_name_that_is_none_is_refused(body: bytes) -> None:
    with pytest.raises(BadFrame):
        protocol.parse_name(body)


def read_of(offset: int, size: int) -> bytes:
    return struct.pack("=QQIIQII", 0, offset, size, 0, 0, 0, 0)


def test_a_read_is_parsed() -> None:
    assert protocol.parse_read(read_of(4096, 1_048_576)) == (4096, 1_048_576)


@pytest.mark.parametrize(
    "body", [b"", read_of(0, 1)[:-1], read_of(0, 1_048_577), read_of(1 << 62, 1)]
)
def test_a_read_that_is_cut_off_or_too_large_is_refused(body: bytes) -> None:
    with pytest.raises(BadFrame):
        protocol.parse_read(body)


def test_a_kernel_that_is_too_old_or_another_protocol_gets_no_connection() -> None:
    assert protocol.init(struct.pack("=IIII", 7, 30, 0, 0)) is None
    assert protocol.init(struct.pack("=IIII", 8, 0, 0, 0)) is None
    with pytest.raises(BadFrame):
        protocol.init(bytes(15))


def test_no_flag_is_taken_that_the_kernel_does_not_offer() -> None:
    none = protocol.init(struct.pack("=IIII", 7, 45, 0, 0))
    every = protocol.init(struct.pack("=IIII", 7, 45, 0, 0xFFFFFFFF))
    assert none is not None
    assert every is not None
    assert struct.unpack_from("=IIII", none)[3] == 0
    assert struct.unpack_from("=IIII", every)[3] == 1 << 22 | 1


def test_answers_state_their_length() -> None:
    for answer in (
        protocol.ok(7, protocol.entry(2, 5)),
        protocol.ok(7, protocol.attributes(2, 5)),
        protocol.ok(7, protocol.statfs()),
        protocol.error(7, errno.EIO),
        protocol.resend(),
    ):
        assert struct.unpack_from("=I", answer) == (len(answer),)
    assert struct.unpack("=IiQ", protocol.error(7, errno.EIO)) == (16, -errno.EIO, 7)


def test_neighbours_are_fetched_together_within_a_bound() -> None:
    assert runs([1, 2, 3, 7, 9, 10]) == [[1, 2, 3], [7], [9, 10]]
    assert [len(run) for run in runs(range(RUN_CHUNKS + 2))] == [RUN_CHUNKS, 2]


@pytest.mark.parametrize("damaged", [None, b"", b"{}", b"[1", b"\xff", b"7"])
def test_a_damaged_list_names_no_chunk(damaged: bytes | None) -> None:
    assert parse_list(damaged) == []


def test_a_list_is_bounded_and_keeps_only_numbers() -> None:
    assert parse_list(b'[1,-1,true,"x",2.5,3]') == [1, 3]
    assert len(parse_list(repr([1] * 3 * CHUNKS_MAX).encode())) == CHUNKS_MAX


def begun(root: Path, bound_bytes: int = 1 << 30) -> tuple[Cache, CachedLayer]:
    cache = Cache(root, bound_bytes)
    return cache, cache.add(INDEX.digest, INDEX, INDEX.encode(), META)


def fill(cache: Cache, layer: CachedLayer) -> None:
    for number, chunk in enumerate(CONTENT):
        cache.put(layer, number, chunk)


def here(cache: Cache, layer: CachedLayer) -> list[int]:
    return [number for number in range(INDEX.chunks) if cache.get(layer, number)]


def test_what_was_kept_is_there_for_the_next_server(tmp_path: Path) -> None:
    fill(*begun(tmp_path))
    again = Cache(tmp_path, 1 << 30)
    layer = again.find(INDEX.digest)
    assert layer is not None
    assert again.used_bytes == INDEX.data_bytes
    assert not layer.has(0)  # not before it was verified
    assert here(again, layer) == [0, 1, 2, 3, 4]
    assert os.pread(layer.file, CHUNK_BYTES, CHUNK_BYTES) == CONTENT[1]


def test_a_chunk_that_was_half_written_does_not_count(tmp_path: Path) -> None:
    cache, layer = begun(tmp_path)
    fill(cache, layer)
    os.pwrite(layer.file, b"lost", 2 * CHUNK_BYTES)
    again = Cache(tmp_path, 1 << 30)
    layer = again.find(INDEX.digest)
    assert layer is not None
    assert here(again, layer) == [0, 1, 3, 4]
    assert again.used_bytes == INDEX.data_bytes - CHUNK_BYTES


@pytest.mark.parametrize("name", ["index", "meta"])
def test_a_layer_with_a_damaged_file_is_fetched_anew(tmp_path: Path, name: str) -> None:
    fill(*begun(tmp_path))
    (tmp_path / INDEX.digest.removeprefix("sha256:") / name).write_bytes(b"damaged")
    again = Cache(tmp_path, 1 << 30)
    assert again.find(INDEX.digest) is None
    assert list(tmp_path.iterdir()) == []


def test_the_chunks_used_least_lately_make_room(tmp_path: Path) -> None:
    cache, layer = begun(tmp_path, 2 * CHUNK_BYTES)
    cache.put(layer, 0, CONTENT[0])
    cache.put(layer, 1, CONTENT[1])
    assert cache.get(layer, 0)
    cache.put(layer, 2, CONTENT[2])
    assert here(cache, layer) == [0, 2]
    assert (cache.used_bytes, cache.evictions) == (2 * CHUNK_BYTES, 1)
    assert os.fstat(layer.file).st_blocks * 512 <= 2 * CHUNK_BYTES  # the room is given back


def test_a_chunk_that_is_read_keeps_its_room(tmp_path: Path) -> None:
    cache, layer = begun(tmp_path, 2 * CHUNK_BYTES)
    with cache.reading(layer, [0, 1]):
        fill(cache, layer)
        assert {0, 1} <= set(here(cache, layer))
    cache.put(layer, 2, CONTENT[2])
    assert cache.used_bytes <= 2 * CHUNK_BYTES


@pytest.fixture
def file_limit() -> Generator[None]:
    """Files end at two chunks: what lies beyond fails as on a disk that takes no more."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_what_the_disk_does_not_take_is_held_in_memory(tmp_path: Path, file_limit: None) -> None:
    cache, layer = begun(tmp_path)
    hard = resource.getrlimit(resource.RLIMIT_FSIZE)[1]
    resource.setrlimit(resource.RLIMIT_FSIZE, (2 * CHUNK_BYTES, hard))
    cache.put(layer, 3, CONTENT[3])
    assert cache.is_full
    assert not cache.get(layer, 3)
    assert cache.held(layer, 3) == CONTENT[3]
    cache.put(layer, 0, CONTENT[0])
    assert not cache.is_full


def test_a_layer_that_is_removed_leaves_nothing(tmp_path: Path) -> None:
    cache, layer = begun(tmp_path)
    fill(cache, layer)
    cache.remove(INDEX.digest)
    assert (cache.used_bytes, list(tmp_path.iterdir())) == (0, [])
