"""Files in pieces that fit into one message; the same for every transport."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.ids import new_ulid
from sandfleet_common.messages.files import CHUNK_BYTES

from .calls import call
from .transport import FilePlace, FileTarget, Transport

READ_AHEAD = 4
"""Pieces asked for at once, so that a long way does not mean a slow file."""


async def read_pieces(
    transport: Transport, place: FilePlace, *, position: int = 0, within: float
) -> AsyncIterator[bytes]:
    """Yield a file from `position` on; asks for the next pieces while one is being used."""

    async def part(at: int) -> m.FileData:
        body = m.FileRead.of(
            sandbox_id=place.sandbox_id, path=place.path, user=place.user, position=at
        )
        return await call(transport, s.FILE_READ, body, within=within)

    first = await part(position)
    yield first.data
    if first.end:
        return
    at = position + len(first.data)
    async with asyncio.TaskGroup() as group:
        ahead: deque[asyncio.Task[m.FileData]] = deque()
        asked = at
        while True:
            while len(ahead) < READ_AHEAD:
                ahead.append(group.create_task(part(asked)))
                asked += CHUNK_BYTES
            data = await ahead.popleft()
            yield data.data
            at += len(data.data)
            if data.end or at != asked - len(ahead) * CHUNK_BYTES:
                break  # at its end, or a short piece: the file changes under us
        for task in ahead:
            task.cancel()
    if not data.end:
        async for piece in read_pieces(transport, place, position=at, within=within):
            yield piece


async def write_pieces(
    transport: Transport, target: FileTarget, pieces: AsyncIterator[bytes], *, within: float
) -> None:
    """Write a file from pieces of any size; it appears when the last one has arrived."""
    upload = new_ulid()
    position = 0

    async def send(data: bytes, *, end: bool) -> None:
        body = m.FileWrite.of(
            sandbox_id=target.place.sandbox_id,
            path=target.place.path,
            user=target.place.user,
            upload=upload,
            position=position,
            data=data,
            end=end,
            mode=target.mode,
            parents=target.parents,
        )
        await call(transport, s.FILE_WRITE, body, within=within)

    waiting = bytearray()
    async for piece in pieces:
        waiting += piece
        while len(waiting) > CHUNK_BYTES:
            data = bytes(waiting[:CHUNK_BYTES])
            del waiting[:CHUNK_BYTES]
            await send(data, end=False)
            position += len(data)
    await send(bytes(waiting), end=True)
