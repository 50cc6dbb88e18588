"""Files as raw bytes over HTTP, in constant memory whatever their size.

GET   the file; `Range: bytes=a-b` for a part of it
PUT   the body becomes the file, at once and whole, when its last byte is there
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from pydantic import Field, field_validator
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route as HttpRoute

from sandfleet.calls import call
from sandfleet.transport import FilePlace, FileTarget
from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import Interrupted, TimedOut
from sandfleet_common.ids import node_of
from sandfleet_common.messages.files import CHUNK_BYTES, Path, User

from .answers import message_answer
from .asking import Upstream
from .bodies import build_from_query, parse_query
from .config import GatewaySettings
from .edge import visit_of
from .metrics import GatewayMetrics

CONTENT_PATH = "/v1/sandboxes/{sandbox_id}/files/content"
BINARY = "application/octet-stream"
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class ReadQuery(m.Message):
    """What names a file to read."""

    path: Path
    user: User = None


class WriteQuery(ReadQuery):
    """What names a file to write."""

    mode: int | None = Field(default=None, ge=0, le=0o7777)
    """Permission bits; octal with a leading 0, else decimal."""
    parents: bool = True
    """Make missing directories above it."""

    @field_validator("mode", mode="before")
    @classmethod
    def _octal(cls, value: Any) -> Any:
        if isinstance(value, str) and re.fullmatch(r"0o?[0-7]{1,6}", value):
            return int(value.replace("o", ""), 8)
        return value


class Written(m.Message):
    """A file is in its place."""

    path: str
    size: int


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return (first byte, bytes) of the part asked for; None: the whole file.

    A part beyond the end has no bytes. What is not one simple range is ignored, as
    HTTP allows.
    """
    match = _RANGE.fullmatch(header.strip()) if header else None
    if match is None or match[0] == "bytes=-":
        return None
    if not match[1]:
        length = min(int(match[2]), size)
        return size - length, length
    first = int(match[1])
    last = min(int(match[2]), size - 1) if match[2] else size - 1
    if match[2] and int(match[2]) < first:
        return None
    return first, max(0, last - first + 1)


class Content:
    """The two routes."""

    def __init__(
        self, upstream: Upstream, settings: GatewaySettings, metrics: GatewayMetrics
    ) -> None:
        self._upstream = upstream
        self._settings = settings
        self._metrics = metrics

    def routes(self) -> list[HttpRoute]:
        """Return the routes."""
        return [
            HttpRoute(CONTENT_PATH, self.read, methods=["GET"]),
            HttpRoute(CONTENT_PATH, self.write, methods=["PUT"]),
        ]

    async def read(self, request: Request) -> Response:
        """Answer with a file's bytes."""
        sandbox_id = _sandbox(request)
        query = build_from_query(ReadQuery, {}, parse_query(request.scope["query_string"]))
        place = FilePlace(sandbox_id, query.path, query.user)
        entry = await self._upstream.ask(
            s.FILE_STAT, m.FileStat(sandbox_id=sandbox_id, path=query.path, user=query.user)
        )
        headers = {"Accept-Ranges": "bytes"}
        # Files made up by the kernel say that they are empty: read until they end.
        size = entry.size if entry.type is m.FileType.FILE and entry.size else None
        first, length, status = 0, size, 200
        if size is not None and (part := parse_range(request.headers.get("range"), size)):
            first, length = part
            if not length:
                return Response(status_code=416, headers={"Content-Range": f"bytes */{size}"})
            status = 206
            headers["Content-Range"] = f"bytes {first}-{first + length - 1}/{size}"
        if length is not None:
            headers["Content-Length"] = str(length)
        if request.method == "HEAD":
            return Response(status_code=status, headers=headers, media_type=BINARY)
        pieces = self._pieces(place, first, length)
        # The first piece before the head of the answer, so that an error has its status.
        start = await anext(pieces, b"")
        return StreamingResponse(_joined(start, pieces), status, headers, media_type=BINARY)

    async def write(self, request: Request) -> Response:
        """Make the request's body a file."""
        sandbox_id = _sandbox(request)
        query = build_from_query(WriteQuery, {}, parse_query(request.scope["query_string"]))
        target = FileTarget(
            FilePlace(sandbox_id, query.path, query.user), query.mode, query.parents
        )
        count = 0

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal count
            stream = aiter(request.stream())
            silence = self._settings.upload_silence_seconds
            while True:
                try:
                    async with asyncio.timeout(silence):
                        piece = await anext(stream)
                except StopAsyncIteration:
                    return
                except TimeoutError:
                    raise TimedOut(f"the upload sent nothing for {silence:g} s") from None
                count += len(piece)
                self._metrics.uploaded.inc(len(piece))
                yield piece

        # When the body breaks off, no part marked as the last is sent, and no file appears.
        await self._upstream.transport.write_file(
            target, pieces(), within=self._settings.ask_seconds
        )
        return message_answer(Written(path=query.path, size=count))

    async def _pieces(
        self, place: FilePlace, position: int, left: int | None
    ) -> AsyncGenerator[bytes]:
        while left is None or left > 0:
            part = await call(
                self._upstream.transport,
                s.FILE_READ,
                m.FileRead(
                    sandbox_id=place.sandbox_id,
                    path=place.path,
                    user=place.user,
                    position=position,
                    length=CHUNK_BYTES if left is None else min(left, CHUNK_BYTES),
                ),
                within=self._settings.ask_seconds,
            )
            self._metrics.downloaded.inc(len(part.data))
            yield part.data
            position += len(part.data)
            if left is not None:
                left -= len(part.data)
            if part.end or not part.data:
                break
        if left:
            raise Interrupted(f"{place.path!r} became shorter while it was read")


def _sandbox(request: Request) -> str:
    visit_of(request.scope).route = CONTENT_PATH
    sandbox_id = request.path_params["sandbox_id"]
    node_of(sandbox_id)
    return sandbox_id


async def _joined(start: bytes, rest: AsyncGenerator[bytes]) -> AsyncIterator[bytes]:
    async with aclosing(rest) as pieces:
        yield start
        async for piece in pieces:
            yield piece
