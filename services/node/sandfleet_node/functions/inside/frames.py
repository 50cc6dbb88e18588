"""What node and zygote say to each other, as bytes; both sides read this file.

To the zygote: once, a number of bytes and its own text as JSON; then requests, each a
number of bytes, a number of bytes of JSON, that JSON, and the bytes it counts: code,
stdin and files. From the zygote: frames, each a kind, a number of bytes, and those.
"""

from __future__ import annotations

from struct import Struct

CALL_BYTES = 512 * 1024
"""Most bytes of stdout, of stderr, of a value, and of all files given back."""

SIZE = Struct("<I")
FRAME = Struct("<BxxxI")
"""Kind and size of what follows."""
HELLO, RESULT, SETTLED = 1, 2, 3
"""HELLO: JSON about the environment. RESULT: of the call. SETTLED: the sandbox may be
called again, or text that says why not."""

ANSWER = Struct("<BxHI")
"""Head of a RESULT: how many steps, how many files, bytes of the note."""
STEP = Struct("<iiIIIQQQQ")
"""Exit code and signal (-1: none), flags, bytes of stdout and of stderr, dropped bytes,
wall and CPU time in microseconds, peak memory in KiB."""
TIMED_OUT = 1
FILE = Struct("<i")
"""Bytes of a file; -1: missing."""
NOTE_BYTES = CALL_BYTES + 64
DONE_MARK = b"\xffdone\xff"
DONE = Struct("<6sHQQ")
"""How a note ends when Python code has run to its end: the mark, which no text holds, exit
status, CPU time in microseconds, peak memory in KiB. The process has only to end after it."""
FRAME_BYTES = 8 * CALL_BYTES
"""No frame is longer."""

VALUE, RAISED, MEMORY, NO_VALUE = b"V", b"E", b"M", b"N"
"""What a note begins with: JSON; the last line of a traceback, out of memory or not; why
what a function returned cannot be given back."""
