"""What the sensor program says, as bytes: the mirror of native/include/events.h.

Pure. A record names programs and paths that an attacker chose, so every length is
checked, text is made printable, and the only exception is RecordError.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag
from typing import Final

PROTOCOL: Final = 1
SANDBOX_MAX: Final = 72
PROGRAM_MAX: Final = 16
PATH_MAX: Final = 256
RECORD_MAX: Final = 4096
NR_FOREIGN: Final = -1
NR_EXEC: Final = -2

HEADER: Final = struct.Struct("<IHHQQ")
"""struct sn_header: size, type, flags, time_ns, cgroup."""
CALL: Final = struct.Struct(f"<{SANDBOX_MAX}sIIIi{PROGRAM_MAX}s6Qq")
"""struct sn_call after its header: sandbox, pid, tid, uid, nr, program, args, result."""
EXEC: Final = struct.Struct(f"<{SANDBOX_MAX}sIIII{PROGRAM_MAX}s{PATH_MAX}s")
"""struct sn_exec: sandbox, pid, tid, uid, reserved, program, path."""
DROPPED: Final = struct.Struct(f"<{SANDBOX_MAX}siIQ")
"""struct sn_dropped: sandbox, nr, reserved, count."""
BEAT: Final = struct.Struct("<QQQQ")
"""struct sn_beat: reported, rate_limited, ring_full, unread."""
READY: Final = struct.Struct("<II")
"""struct sn_ready: protocol, reserved."""


class RecordError(ValueError):
    """The bytes are not a sequence of records; nothing after them can be trusted."""


class RecordType(IntEnum):
    """`enum sn_type`."""

    CALL = 1
    EXEC = 2
    DROPPED = 3
    BEAT = 4
    READY = 5


class RecordFlag(IntFlag):
    """`enum sn_flag`."""

    I386 = 1 << 0
    X32 = 1 << 1
    AT_INIT = 1 << 2
    SHARES_PARENT = 1 << 3
    UNLINKED = 1 << 4
    URGENT = 1 << 5


@dataclass(frozen=True, slots=True)
class Header:
    """How every record starts."""

    flags: RecordFlag
    time_ns: int
    """CLOCK_BOOTTIME."""
    cgroup: int


@dataclass(frozen=True, slots=True)
class Call:
    """A watched system call came back."""

    header: Header
    sandbox: str
    pid: int
    tid: int
    uid: int
    number: int
    program: str
    arguments: tuple[int, ...]
    result: int


@dataclass(frozen=True, slots=True)
class Exec:
    """A program was started."""

    header: Header
    sandbox: str
    pid: int
    tid: int
    uid: int
    program: str
    path: str


@dataclass(frozen=True, slots=True)
class Dropped:
    """Records of one kind and sandbox that the rate limit held back."""

    header: Header
    sandbox: str
    number: int
    count: int


@dataclass(frozen=True, slots=True)
class Beat:
    """The sensor lives; totals since its start."""

    header: Header
    reported: int
    rate_limited: int
    ring_full: int
    unread: int


@dataclass(frozen=True, slots=True)
class Ready:
    """The programs are attached."""

    header: Header
    protocol: int


Record = Call | Exec | Dropped | Beat | Ready

_LAYOUTS: Final = {
    RecordType.CALL: CALL,
    RecordType.EXEC: EXEC,
    RecordType.DROPPED: DROPPED,
    RecordType.BEAT: BEAT,
    RecordType.READY: READY,
}


class Reader:
    """Cuts a stream of bytes into records, however the bytes come."""

    def __init__(self) -> None:
        self._waiting = bytearray()
        self.unknown = 0
        """Records of a type that this version does not know, skipped."""

    def feed(self, data: bytes) -> list[Record]:
        """Take more bytes and return the records that are whole now.

        Raises:
            RecordError: a size is impossible, or does not fit its type.
        """
        self._waiting += data
        found: list[Record] = []
        at = 0
        while len(self._waiting) - at >= HEADER.size:
            size = int.from_bytes(self._waiting[at : at + 4], "little")
            if not HEADER.size <= size <= RECORD_MAX:
                raise RecordError(f"a record claims {size} bytes")
            if len(self._waiting) - at < size:
                break
            record = parse(bytes(self._waiting[at : at + size]))
            at += size
            if record is None:
                self.unknown += 1
            else:
                found.append(record)
        del self._waiting[:at]
        return found


def parse(data: bytes) -> Record | None:
    """Return the record that `data` is, or None when its type is unknown.

    Raises:
        RecordError: it is none.
    """
    if len(data) < HEADER.size:
        raise RecordError("a record is shorter than its header")
    size, number, flags, time_ns, cgroup = HEADER.unpack_from(data)
    if size != len(data):
        raise RecordError(f"a record of {len(data)} bytes claims {size}")
    layout = _LAYOUTS.get(number)
    if layout is None:
        return None
    if size != HEADER.size + layout.size:
        raise RecordError(f"a record of type {number} has {size} bytes")
    values = layout.unpack_from(data, HEADER.size)
    return _build(RecordType(number), Header(RecordFlag(flags & 63), time_ns, cgroup), values)


def _build(kind: RecordType, header: Header, values: tuple[int | bytes, ...]) -> Record:
    match kind, values:
        case RecordType.CALL, (bytes(sandbox), int(pid), int(tid), int(uid), int(nr), *rest):
            match rest:
                case [bytes(program), *numbers]:
                    *arguments, result = (int(number) for number in numbers)
                    return Call(
                        header,
                        text(sandbox),
                        pid,
                        tid,
                        uid,
                        nr,
                        text(program),
                        tuple(arguments),
                        result,
                    )
                case _:
                    pass
        case RecordType.EXEC, (bytes(s), int(pid), int(tid), int(uid), _, bytes(c), bytes(path)):
            return Exec(header, text(s), pid, tid, uid, text(c), text(path))
        case RecordType.DROPPED, (bytes(sandbox), int(nr), _, int(count)):
            return Dropped(header, text(sandbox), nr, count)
        case RecordType.BEAT, (int(reported), int(limited), int(full), int(unread)):
            return Beat(header, reported, limited, full, unread)
        case RecordType.READY, (int(protocol), _):
            return Ready(header, protocol)
        case _:
            pass
    raise RecordError(f"a record of type {kind} does not fit its layout")


def text(field: bytes) -> str:
    """Return text up to its NUL; bytes that cannot be shown stand as escapes."""
    found = field.partition(b"\0")[0].decode("utf-8", "backslashreplace")
    if found.isprintable():
        return found
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in found)


__all__ = [
    "Beat",
    "Call",
    "Dropped",
    "Exec",
    "Header",
    "Reader",
    "Ready",
    "Record",
    "RecordError",
    "RecordFlag",
    "RecordType",
    "parse",
    "text",
]
