"""Frames of one command's stream between a client and a node. Pure: bytes in, bytes out.

The node's frames go to the inbox that the client named in `ExecAttach`:

    DATA    output from `position` on, stdout or stderr
    END     the command is over; the payload is its ExecState
    INPUT   `position` bytes of input were taken; flag CLOSED: send no more
    GONE    the stream is over for another reason; the payload is a Failure

The client's go to `subjects.io_subject(node, stream)`:

    TAKEN   output below `position` is with the client: the node may send up to
            the window beyond it. Also the keep-alive, at least every 20 s.
    STDIN   input from `position` on; flag CLOSED ends the input after it
    DETACH  end the stream, not the command

Positions count bytes from the command's start and make every frame idempotent:
a receiver skips what it has and, when a frame starts beyond what it has, attaches
again from there. That is how a client that lost its connection gets every byte
it missed, once. At most `STDIN_WINDOW_BYTES` of input may be under way.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum, IntFlag

from .errors import BadRequest

_HEADER = struct.Struct("<BBHIQ")
DATA_BYTES = 65536
"""Most payload bytes in one frame."""
STDIN_WINDOW_BYTES = 262_144
KEEPALIVE_SECONDS = 20.0
SILENCE_SECONDS = 60.0
"""A stream whose client says nothing for so long is forgotten."""


class Kind(IntEnum):
    """What a frame is."""

    DATA = 1
    END = 2
    INPUT = 3
    GONE = 4
    TAKEN = 16
    STDIN = 17
    DETACH = 18


class Flag(IntFlag):
    """Details of a frame."""

    STDERR = 1
    CLOSED = 2


NO_FLAGS = Flag(0)


@dataclass(frozen=True, slots=True)
class StreamFrame:
    """One frame of a stream."""

    kind: Kind
    position: int = 0
    payload: bytes = b""
    flags: Flag = NO_FLAGS

    def encode(self) -> bytes:
        """Return the frame's bytes."""
        return (
            _HEADER.pack(self.kind, self.flags, 0, len(self.payload), self.position) + self.payload
        )

    @classmethod
    def decode(cls, data: bytes) -> StreamFrame:
        """Parse one frame.

        Raises:
            BadRequest: the bytes are not exactly one frame.
        """
        if len(data) < _HEADER.size:
            raise BadRequest("a stream frame is shorter than its header")
        kind, flags, _, size, position = _HEADER.unpack_from(data)
        if size != len(data) - _HEADER.size:
            raise BadRequest("a stream frame's size does not match its bytes")
        try:
            return cls(Kind(kind), position, data[_HEADER.size :], Flag(flags & 3))
        except ValueError:
            raise BadRequest(f"unknown kind {kind} of stream frame") from None
