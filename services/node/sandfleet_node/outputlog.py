"""The file that holds one command: what was asked, its input, its output, its end.

The agent is told to forget output only after it is here, so a node service that is
killed loses nothing. A file is a row of records, each a header and its bytes:

    ABOUT   JSON: the request; always first
    INPUT   input that came with the request
    OUTPUT  bytes of stdout or stderr from `position`
    END     JSON: how it ended; always last
"""

from __future__ import annotations

import os
import struct
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from pathlib import Path

_HEADER = struct.Struct("<IBBHQ")
_STRIDE_BYTES = 65_536
"""Distance in the file between two places of the index."""


class Record(IntEnum):
    """What a record is."""

    ABOUT = 1
    INPUT = 2
    OUTPUT = 3
    END = 4


class LogDamaged(ValueError):
    """A file is no command's log."""


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a log said when it was opened again."""

    about: bytes
    end: bytes | None


class OutputLog:
    """One command's file. The calls are short writes and reads of the page cache."""

    __slots__ = ("_handle", "_places", "_size", "end", "path")

    def __init__(self, path: str) -> None:
        self.path = path
        self.end = 0
        """Output bytes held, stdout and stderr together."""
        self._handle = -1
        self._size = 0
        self._places = array("Q")
        """Pairs of output position and file offset of a record, every 64 KiB or so."""

    def begin(self, about: bytes, stdin: bytes = b"") -> None:
        """Begin the file.

        Raises:
            FileExistsError: there is one.
        """
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_APPEND
        self._handle = os.open(self.path, flags, 0o600)
        self._put(Record.ABOUT, about)
        if stdin:
            self._put(Record.INPUT, stdin)

    @classmethod
    def recover(cls, path: str) -> tuple[OutputLog, Recovered]:
        """Open a log that an earlier service wrote; a record cut short at the end is dropped.

        Raises:
            LogDamaged: it does not begin with what was asked.
        """
        log = cls(path)
        log._handle = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_APPEND)
        about, end = None, None
        for offset, kind, _, position, size in _scan(log._handle, 0):
            at = offset + _HEADER.size
            if kind == Record.ABOUT:
                about = os.pread(log._handle, size, at)
            elif kind == Record.OUTPUT:
                log._note(position, offset)
                log.end = position + size
            elif kind == Record.END:
                end = os.pread(log._handle, size, at)
            log._size = at + size
        os.ftruncate(log._handle, log._size)
        if about is None:
            log.close()
            raise LogDamaged(f"{path} is not the log of a command")
        return log, Recovered(about, end)

    def append(self, position: int, is_stderr: bool, data: bytes) -> bool:
        """Add output; what is here already is skipped. Return whether anything was new.

        Raises:
            ValueError: it does not follow what is here.
        """
        if position > self.end:
            raise ValueError(f"output from {position} does not follow {self.end} bytes")
        fresh = data[self.end - position :] if position < self.end else data
        if not fresh:
            return False
        self._note(self.end, self._size)
        self._put(Record.OUTPUT, fresh, is_stderr, self.end)
        self.end += len(fresh)
        return True

    def read(self, position: int, limit: int) -> list[tuple[bool, bytes]]:
        """Return up to `limit` bytes from `position` as (is stderr, bytes), neighbours joined."""
        found: list[tuple[bool, bytearray]] = []
        if position >= self.end or limit <= 0:
            return []
        index = max(0, bisect_right(self._places[::2], position) - 1)
        handle = (
            self._handle if self._handle >= 0 else os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        )
        try:
            for offset, kind, is_stderr, start, size in _scan(handle, self._places[2 * index + 1]):
                if kind != Record.OUTPUT or start + size <= position:
                    continue
                skip = max(0, position - start)
                take = min(size - skip, limit)
                data = os.pread(handle, take, offset + _HEADER.size + skip)
                if found and found[-1][0] == is_stderr:
                    found[-1][1].extend(data)
                else:
                    found.append((is_stderr, bytearray(data)))
                limit -= take
                if limit == 0:
                    break
        finally:
            if handle != self._handle:
                os.close(handle)
        return [(is_stderr, bytes(data)) for is_stderr, data in found]

    def stdin(self) -> bytes:
        """Return the input that came with the request."""
        handle = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for offset, kind, _, _, size in islice(_scan(handle, 0), 2):
                if kind == Record.INPUT:
                    return os.pread(handle, size, offset + _HEADER.size)
            return b""
        finally:
            os.close(handle)

    def finish(self, end: bytes) -> None:
        """Write how the command ended, and hold no file open any more."""
        self._put(Record.END, end)
        self.close()

    def close(self) -> None:
        """Close the file; the log stays readable."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1

    def remove(self) -> None:
        """Delete the file."""
        self.close()
        Path(self.path).unlink(missing_ok=True)

    def size_bytes(self) -> int:
        """Return the size of the file."""
        return self._size

    def _note(self, position: int, offset: int) -> None:
        if not self._places or offset - self._places[-1] >= _STRIDE_BYTES:
            self._places.extend((position, offset))

    def _put(self, kind: Record, data: bytes, is_stderr: bool = False, position: int = 0) -> None:
        header = _HEADER.pack(len(data), kind, is_stderr, 0, position)
        wanted = len(header) + len(data)
        written = os.writev(self._handle, (header, data))
        if written != wanted:  # the disk is full: leave no half record behind
            os.ftruncate(self._handle, self._size)
            raise OSError(f"only {written} of {wanted} bytes could be written to {self.path}")
        self._size += written


def _scan(handle: int, offset: int) -> Iterator[tuple[int, int, bool, int, int]]:
    """Yield (offset, kind, is stderr, position, size) of each whole record from `offset` on."""
    end = os.fstat(handle).st_size
    while offset + _HEADER.size <= end:
        header = os.pread(handle, _HEADER.size, offset)
        size, kind, is_stderr, _, position = _HEADER.unpack(header)
        if kind not in (1, 2, 3, 4) or offset + _HEADER.size + size > end:
            return
        yield offset, kind, bool(is_stderr), position, size
        offset += _HEADER.size + size
