"""The part of the kernel's FUSE protocol that a flat directory of read-only files needs.

Layouts are those of linux/fuse.h, all numbers in the machine's order. A request is a header
and a body; an answer is a header with the request's number, and a body unless it is an error.
"""

from __future__ import annotations

import errno
import stat
import struct
from dataclasses import dataclass
from enum import IntEnum

ROOT = 1
"""Number of the directory."""
REQUEST_BYTES = 65_536
"""No request is longer: the file system is never written to."""
READ_MAX = 1_048_576
_FOREVER_SECONDS = 86_400
_ASYNC_READ, _MAX_PAGES = 1 << 0, 1 << 22
_KEEP_CACHE = 1 << 1
_NOTIFY_RESEND = 7
_BLOCK_BYTES = 512

# struct fuse_in_header: u32 length, u32 operation, u64 unique, u64 node, u32 uid, gid, pid,
# u16 length of extensions in 8 bytes, u16 unused
_IN = struct.Struct("=IIQQIIIHH")
# struct fuse_out_header: u32 length, s32 negative error or notification, u64 unique
_OUT = struct.Struct("=IiQ")
# struct fuse_init_in: u32 major, minor, readahead, flags
_INIT_IN = struct.Struct("=IIII")
# struct fuse_init_out: u32 major, minor, readahead, flags, u16 background, congestion,
# u32 longest write, granularity of times, u16 pages of a request, alignment, u32 more flags, unused
_INIT_OUT = struct.Struct("=IIIIHHIIHHI7I")
# struct fuse_attr: u64 ino, size, blocks, three times, u32 their nanoseconds, mode, links, uid,
# gid, device, block size, flags
_ATTR = struct.Struct("=QQQQQQIIIIIIIIII")
# struct fuse_entry_out before its attr: u64 node, generation, entry and attr validity, u32
# nanoseconds of both
_ENTRY = struct.Struct("=QQQQII")
# struct fuse_attr_out before its attr: u64 validity, u32 nanoseconds, unused
_ATTR_OUT = struct.Struct("=QII")
# struct fuse_open_out: u64 handle, u32 flags, unused
_OPEN_OUT = struct.Struct("=QII")
# struct fuse_read_in: u64 handle, offset, u32 size, read flags, u64 lock owner, u32 flags, unused
_READ_IN = struct.Struct("=QQIIQII")
# struct fuse_kstatfs: u64 blocks, free, available, files, free; u32 block size, name length,
# fragment size, unused, spare
_STATFS = struct.Struct("=QQQQQIIII6I")


class Operation(IntEnum):
    """What the kernel may ask that means something here."""

    LOOKUP = 1
    FORGET = 2
    GETATTR = 3
    OPEN = 14
    READ = 15
    STATFS = 17
    RELEASE = 18
    FLUSH = 25
    INIT = 26
    OPENDIR = 27
    READDIR = 28
    RELEASEDIR = 29
    ACCESS = 34
    INTERRUPT = 36
    DESTROY = 38
    BATCH_FORGET = 42


UNANSWERED = frozenset({Operation.FORGET, Operation.BATCH_FORGET, Operation.INTERRUPT})


class BadFrame(ValueError):
    """Bytes that no kernel sends."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request."""

    operation: int
    unique: int
    node: int
    body: bytes


def parse(frame: bytes) -> Request:
    """Return the request that a read of /dev/fuse gave.

    Raises:
        BadFrame: it is cut off or contradicts itself.
    """
    if len(frame) < _IN.size:
        raise BadFrame(f"{len(frame)} bytes are no request")
    length, operation, unique, node, _, _, _, extensions, _ = _IN.unpack_from(frame)
    end = length - 8 * extensions
    if length != len(frame) or end < _IN.size:
        raise BadFrame(f"a request of {length} bytes came as {len(frame)}")
    return Request(operation, unique, node, frame[_IN.size : end])


def parse_name(body: bytes) -> str:
    """Return the name that a LOOKUP asks for.

    Raises:
        BadFrame: it is none.
    """
    name, zero, rest = body.partition(b"\0")
    if not name or not zero or rest.strip(b"\0"):
        raise BadFrame("a name is not ended")
    return name.decode("ascii", errors="replace")


def parse_read(body: bytes) -> tuple[int, int]:
    """Return offset and size of a READ.

    Raises:
        BadFrame: it is cut off, or asks for more than is allowed.
    """
    if len(body) < _READ_IN.size:
        raise BadFrame("a read is cut off")
    _, offset, size, *_ = _READ_IN.unpack_from(body)
    if size > READ_MAX or offset >= 1 << 62:
        raise BadFrame(f"a read of {size} bytes at {offset}")
    return offset, size


def ok(unique: int, body: bytes = b"") -> bytes:
    """Return an answer."""
    return _OUT.pack(_OUT.size + len(body), 0, unique) + body


def ok_header(unique: int, size: int) -> bytes:
    """Return the beginning of an answer whose body of `size` bytes is written with it."""
    return _OUT.pack(_OUT.size + size, 0, unique)


def error(unique: int, number: int) -> bytes:
    """Return the answer that says an error, by its number in errno."""
    return _OUT.pack(_OUT.size, -number, unique)


def resend() -> bytes:
    """Return the notification upon which the kernel sends again what nobody has answered (6.9)."""
    return _OUT.pack(_OUT.size, _NOTIFY_RESEND, 0)


def init(body: bytes) -> bytes | None:
    """Return the body of the answer to INIT; None: the kernel is too old.

    Raises:
        BadFrame: it is cut off.
    """
    if len(body) < _INIT_IN.size:
        raise BadFrame("an INIT is cut off")
    major, minor, readahead, flags = _INIT_IN.unpack_from(body)
    if major != 7 or minor < 31:
        return None
    return _INIT_OUT.pack(
        7, min(minor, 31), max(readahead, READ_MAX), flags & (_ASYNC_READ | _MAX_PAGES),
        64, 48, 4096, 1, READ_MAX // 4096, 0, 0, *([0] * 7),
    )  # fmt: skip


def _attributes(node: int, size: int) -> bytes:
    mode = stat.S_IFDIR | 0o555 if node == ROOT else stat.S_IFREG | 0o444
    blocks = -(-size // _BLOCK_BYTES)
    return _ATTR.pack(node, size, blocks, 0, 0, 0, 0, 0, 0, mode, 1, 0, 0, 0, 4096, 0)


def entry(node: int, size: int) -> bytes:
    """Return the body of the answer to LOOKUP."""
    return _ENTRY.pack(node, 0, _FOREVER_SECONDS, _FOREVER_SECONDS, 0, 0) + _attributes(node, size)


def attributes(node: int, size: int) -> bytes:
    """Return the body of the answer to GETATTR."""
    return _ATTR_OUT.pack(_FOREVER_SECONDS, 0, 0) + _attributes(node, size)


def opened() -> bytes:
    """Return the body of the answer to OPEN: pages stay when the file is opened again."""
    return _OPEN_OUT.pack(0, _KEEP_CACHE, 0)


def statfs() -> bytes:
    """Return the body of the answer to STATFS: nothing is free."""
    return _STATFS.pack(0, 0, 0, 0, 0, 4096, 255, 4096, 0, *([0] * 6))


NOT_HERE = errno.ENOENT
NOT_KNOWN = errno.ENOSYS
FAILED = errno.EIO
