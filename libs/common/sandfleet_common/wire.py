"""What the node and the native binary say to each other, as bytes.

Python's mirror of native/include/wire.h, which explains the protocol; a unit test
compares the two. One packet on an agent's channel is one frame. One packet on the
launcher's socket is a list of `key=value` strings.

Everything here is pure. What comes from an agent may come from an attacker, so
every reader checks every length and raises WireError, never anything else.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import STRICT, IntEnum, IntFlag
from typing import Final

PROTOCOL: Final = 1
FRAME_DATA_MAX_BYTES: Final = 65536
WINDOW_BYTES: Final = 262144
PROCESSES_MAX: Final = 1024
WRITES_MAX: Final = 64
WATCHES_MAX: Final = 64
LAUNCHER_MAX_BYTES: Final = 65536

HEADER: Final = struct.Struct("<IHHIIQ")
"""struct sf_frame: size, type, flags, id, reserved, position."""
FIELD: Final = struct.Struct("<HHI")
"""struct sf_field: tag, reserved, size."""
ENTRY: Final = struct.Struct("<QQIIIIII")
"""struct sf_entry: size, mtime_ns, mode, uid, gid, name_size, target_size, reserved."""
PROCESS: Final = struct.Struct("<IIIIQQII")
"""struct sf_process: pid, ppid, uid, command, rss_bytes, cpu_us, state, cmdline_size."""
PACKET_MAX_BYTES: Final = HEADER.size + FRAME_DATA_MAX_BYTES


class WireError(ValueError):
    """The other side sent bytes that the protocol does not allow, or we were about to."""


class FrameType(IntEnum):
    """What a frame is: `enum sf_type`."""

    HELLO = 1
    EXEC = 2
    STDIN = 3
    ACK = 4
    SIGNAL = 5
    RESIZE = 6
    FORGET = 7
    PS = 8
    HOLD = 9
    GO = 10
    STAT = 16
    LIST = 17
    READ = 18
    WRITE = 19
    WRITE_DATA = 20
    WRITE_END = 21
    MKDIR = 22
    REMOVE = 23
    RENAME = 24
    WATCH = 25
    UNWATCH = 26
    WELCOME = 64
    PROCESS = 65
    READY = 66
    STARTED = 67
    OUTPUT = 68
    EXIT = 69
    STDIN_ACK = 70
    RESULT = 71
    ERROR = 72
    EVENT = 73


class FrameFlag(IntFlag, boundary=STRICT):
    """What a frame adds to its type: `enum sf_flag`."""

    NONE = 0
    STDIN = 1 << 0
    PTY = 1 << 1
    EOF = 1 << 2
    STDERR = 1 << 3
    TREE = 1 << 4
    MORE = 1 << 5
    PARENTS = 1 << 6
    RECURSIVE = 1 << 7
    ABORT = 1 << 8
    NOFOLLOW = 1 << 9
    TIMED_OUT = 1 << 10
    OVERFLOW = 1 << 11


class Tag(IntEnum):
    """What a field holds: `enum sf_tag`."""

    VERSION = 1
    ARG = 2
    ENV = 3
    CWD = 4
    USER = 5
    TIMEOUT_MS = 6
    LIMIT = 7
    ROWS = 8
    COLS = 9
    SIGNAL = 10
    PID = 11
    STATE = 12
    CODE = 13
    DROPPED = 14
    CPU_US = 15
    RSS_BYTES = 16
    ERRNO = 17
    MESSAGE = 18
    PATH = 19
    TARGET = 20
    MODE = 21
    LENGTH = 22
    ENTRY = 23
    PROCESS = 24
    EVENT = 25
    STDIN_AT = 26


class EventKind(IntEnum):
    """What happened to a watched path: `enum sf_event`."""

    CREATE = 1
    WRITE = 2
    REMOVE = 3
    RENAME = 4
    CHMOD = 5


_U32: Final = struct.Struct("<I")
_U64: Final = struct.Struct("<Q")
_NUMBERS: Final[Mapping[Tag, struct.Struct]] = {
    **dict.fromkeys((Tag.TIMEOUT_MS, Tag.LIMIT, Tag.DROPPED, Tag.CPU_US), _U64),
    **dict.fromkeys((Tag.RSS_BYTES, Tag.LENGTH, Tag.STDIN_AT), _U64),
    **dict.fromkeys((Tag.VERSION, Tag.ROWS, Tag.COLS, Tag.SIGNAL, Tag.PID, Tag.STATE), _U32),
    **dict.fromkeys((Tag.CODE, Tag.ERRNO, Tag.MODE, Tag.EVENT), _U32),
}
"""The tags whose value is a number, and how it is laid out; all others hold bytes."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One packet of an agent's channel."""

    type: FrameType
    id: int = 0
    """The process or request it is about."""
    flags: FrameFlag = FrameFlag.NONE
    position: int = 0
    """A byte position; which one depends on the type."""
    payload: bytes = b""


@dataclass(frozen=True, slots=True)
class Entry:
    """A file as the sandbox sees it: `struct sf_entry` with its texts."""

    name: bytes
    """Its name in its directory; "/" for the root."""
    target: bytes
    """Where it points if it is a symbolic link, else empty."""
    size_bytes: int
    mtime_ns: int
    mode: int
    """st_mode, with the bits that say which kind of file it is."""
    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class ProcessEntry:
    """A process of the sandbox: `struct sf_process` with its command line."""

    pid: int
    """As seen inside the sandbox, as are ppid and uid."""
    ppid: int
    uid: int
    command: int
    """The id of the command that started it, or 0 when that is over or unknown."""
    rss_bytes: int
    cpu_us: int
    state: str
    """One letter, as in /proc/PID/stat."""
    arguments: tuple[bytes, ...]
    """Its command line; empty for a zombie."""


Value = int | bytes | Entry | ProcessEntry
Fields = list[tuple[Tag, Value]]


def pack_frame(
    type: FrameType,
    id: int = 0,
    flags: FrameFlag | int = FrameFlag.NONE,
    position: int = 0,
    payload: bytes = b"",
) -> bytes:
    """Return one frame, ready to be sent as one packet.

    Raises:
        WireError: the payload is longer than a frame holds, or a number does not fit.
    """
    if len(payload) > FRAME_DATA_MAX_BYTES:
        raise WireError(
            f"a frame holds {FRAME_DATA_MAX_BYTES} payload bytes at most, not {len(payload)}"
        )
    try:
        return HEADER.pack(len(payload), type, flags, id, 0, position) + payload
    except struct.error as error:
        raise WireError(f"a number does not fit into the frame header: {error}") from error


def unpack_frame(packet: bytes) -> Frame:
    """Return the frame that a packet holds.

    Raises:
        WireError: the packet is not exactly one well-formed frame.
    """
    if len(packet) < HEADER.size:
        raise WireError(f"a packet of {len(packet)} bytes is too short for a frame")
    size, number, flag_bits, id_, reserved, position = HEADER.unpack_from(packet)
    if reserved:
        raise WireError("the reserved word of a frame is not zero")
    if size != len(packet) - HEADER.size or size > FRAME_DATA_MAX_BYTES:
        raise WireError(f"a frame says {size} bytes but carries {len(packet) - HEADER.size}")
    try:
        kind, flags = FrameType(number), FrameFlag(flag_bits)
    except ValueError as error:
        raise WireError(f"unknown frame type or flag: {number}, {flag_bits:#x}") from error
    return Frame(kind, id_, flags, position, packet[HEADER.size :])


def pack_fields(fields: Iterable[tuple[Tag, bytes | int | str]]) -> bytes:
    """Return a payload made of `fields`; text becomes UTF-8, surrogate escapes their bytes.

    Raises:
        WireError: a value has the wrong type for its tag or does not fit it.
    """
    parts: list[bytes] = []
    for tag, value in fields:
        raw = _pack_value(tag, value)
        parts += (FIELD.pack(tag, 0, len(raw)), raw)
    return b"".join(parts)


def _pack_value(tag: Tag, value: bytes | int | str) -> bytes:
    layout = _NUMBERS.get(tag)
    if layout is None and not isinstance(value, int):
        return value if isinstance(value, bytes) else value.encode("utf-8", "surrogateescape")
    if layout is None or not isinstance(value, int):
        raise WireError(f"a field {tag.name} cannot hold {type(value).__name__}")
    try:
        return layout.pack(value)
    except struct.error as error:
        raise WireError(f"{value} does not fit into a field {tag.name}") from error


def unpack_fields(payload: bytes) -> Fields:
    """Return the fields of a payload in order, each with the type that its tag has.

    Raises:
        WireError: the payload is not a list of well-formed fields.
    """
    fields: Fields = []
    at = 0
    while at < len(payload):
        if len(payload) - at < FIELD.size:
            raise WireError("a payload ends in the middle of a field header")
        number, reserved, size = FIELD.unpack_from(payload, at)
        at += FIELD.size
        if reserved or size > len(payload) - at:
            raise WireError("a field is longer than its payload, or its reserved half is not zero")
        try:
            tag = Tag(number)
        except ValueError as error:
            raise WireError(f"unknown field tag {number}") from error
        fields.append((tag, _unpack_value(tag, payload[at : at + size])))
        at += size
    return fields


def _unpack_value(tag: Tag, raw: bytes) -> Value:
    if tag is Tag.ENTRY:
        return _unpack_entry(raw)
    if tag is Tag.PROCESS:
        return _unpack_process(raw)
    layout = _NUMBERS.get(tag)
    if layout is None:
        return raw
    if len(raw) != layout.size:
        raise WireError(f"a field {tag.name} has {len(raw)} bytes, not {layout.size}")
    number: int = layout.unpack(raw)[0]
    return number


def _unpack_entry(raw: bytes) -> Entry:
    if len(raw) < ENTRY.size:
        raise WireError("an ENTRY field is too short")
    size, mtime_ns, mode, uid, gid, name_size, target_size, reserved = ENTRY.unpack_from(raw)
    texts = raw[ENTRY.size :]
    if reserved or name_size + target_size != len(texts):
        raise WireError("the texts of an ENTRY field do not fill it")
    return Entry(texts[:name_size], texts[name_size:], size, mtime_ns, mode, uid, gid)


def _unpack_process(raw: bytes) -> ProcessEntry:
    if len(raw) < PROCESS.size:
        raise WireError("a PROCESS field is too short")
    pid, ppid, uid, command, rss_bytes, cpu_us, state, cmdline_size = PROCESS.unpack_from(raw)
    cmdline = raw[PROCESS.size :]
    if cmdline_size != len(cmdline) or not 0x20 < state < 0x7F:
        raise WireError("the command line or the state of a PROCESS field is not sound")
    arguments = tuple(cmdline.removesuffix(b"\0").split(b"\0")) if cmdline else ()
    return ProcessEntry(pid, ppid, uid, command, rss_bytes, cpu_us, chr(state), arguments)


def pack_message(pairs: Mapping[str, str | int] | Sequence[tuple[str, str | int]]) -> bytes:
    """Return a packet for the launcher; a key may stand in it more than once.

    Raises:
        WireError: a key or value cannot be said, or the message is too long.
    """
    items = list(pairs.items()) if isinstance(pairs, Mapping) else pairs
    parts: list[bytes] = []
    for key, value in items:
        text = str(value)
        if not key or "=" in key or "\0" in key + text:
            raise WireError(f"a message cannot hold the key {key!r} with this value")
        parts.append(f"{key}={text}".encode("utf-8", "surrogateescape") + b"\0")
    packet = b"".join(parts)
    if len(packet) > LAUNCHER_MAX_BYTES:
        raise WireError(f"a message of {len(packet)} bytes is too long for the launcher")
    return packet


def unpack_message(packet: bytes) -> list[tuple[str, str]]:
    """Return the pairs of a packet from the launcher, in order; `dict()` of them is often enough.

    Raises:
        WireError: the packet is not a list of `key=value` strings, each ended by NUL.
    """
    if packet and not packet.endswith(b"\0"):
        raise WireError("a message does not end with NUL")
    pairs: list[tuple[str, str]] = []
    for part in packet.split(b"\0")[:-1]:
        key, equals, value = part.decode("utf-8", "surrogateescape").partition("=")
        if not key or not equals:
            raise WireError(f"a message holds {part[:80]!r}, which is not key=value")
        pairs.append((key, value))
    return pairs
