"""How a zygote, or a worker that answers for it, speaks to the node."""

from __future__ import annotations

import os

from .frames import ANSWER, FILE, FRAME, RESULT
from .steps import Ended, Stream


def send(kind: int, payload: bytes) -> None:
    """Send one frame."""
    _write_all([FRAME.pack(kind, len(payload)), payload])


def send_answer(
    done: list[tuple[Ended, list[Stream]]],
    files: list[bytes | None],
) -> None:
    """Send how a call ended: its steps, each with stdout, stderr and note, and its files.

    The note is that of the last step.
    """
    note = done[-1][1][2].data()
    parts: list[bytes | memoryview] = [ANSWER.pack(len(done), len(files), len(note))]
    parts += [ended.pack(streams[0], streams[1]) for ended, streams in done]
    parts += [FILE.pack(-1 if data is None else len(data)) for data in files]
    for _, streams in done:
        parts += [streams[0].data(), streams[1].data()]
    parts.append(note)
    parts += [data for data in files if data is not None]
    _write_all([FRAME.pack(RESULT, sum(map(len, parts))), *parts])


def _write_all(parts: list[bytes | memoryview]) -> None:
    views = [memoryview(part) for part in parts if len(part)]
    while views:
        count = os.writev(1, views[:512])
        while views and count >= len(views[0]):
            count -= len(views.pop(0))
        if count:
            views[0] = views[0][count:]
