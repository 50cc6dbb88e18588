"""The way of everybody else: HTTP and WebSocket to the gateway. Needs the extra `gateway`.

Which route stands for which subject is the table in `sandfleet_common.routes`,
which the gateway serves. This module is imported only when it is used.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, TypeVar, cast
from urllib.parse import quote

import httpx

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import (
    BadRequest,
    Busy,
    Denied,
    NotFound,
    TimedOut,
    Unavailable,
    Unreachable,
)
from sandfleet_common.messages.files import CHUNK_BYTES
from sandfleet_common.routes import BY_SUBJECT
from sandfleet_common.subjects import Subject

from . import watching
from .chunks import read_pieces, write_pieces
from .endpoints import GatewayPlace
from .gateway_session import GatewayLink
from .transport import Feed, FilePlace, FileTarget, Link

BodyT = TypeVar("BodyT", bound=m.Message)
ReplyT = TypeVar("ReplyT", bound=m.Message)

CONNECT_SECONDS = 10.0
CONNECTIONS = 200
"""To one gateway at once; more requests wait for one to be free."""
SILENCE_SECONDS = 60.0
"""A stream of events that sends not even a comment for so long is opened again."""


class GatewayTransport:
    """A client of the gateway; open one with `GatewayTransport.connect`."""

    def __init__(self, place: GatewayPlace, http: httpx.AsyncClient) -> None:
        self._place = place
        self._http = http

    @classmethod
    @asynccontextmanager
    async def connect(cls, place: GatewayPlace, name: str) -> AsyncGenerator[GatewayTransport]:
        """Connect, and close when the block ends.

        Raises:
            Unreachable: no gateway answers there.
        """
        headers = {"user-agent": f"sandfleet-{name}"}
        if place.api_key:
            headers["authorization"] = f"Bearer {place.api_key}"
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        async with httpx.AsyncClient(
            base_url=place.url, headers=headers, limits=limits, timeout=CONNECT_SECONDS
        ) as http:
            transport = cls(place, http)
            await transport._greet()
            yield transport

    def learn_home(self, sandbox_id: str, node: str) -> bool:
        """Return False: the gateway knows where sandboxes live."""
        return False

    async def call(self, subject: Subject[BodyT, ReplyT], body: BodyT, *, within: float) -> ReplyT:
        """Ask once, by the route that stands for the subject."""
        route = BY_SUBJECT.get(subject.pattern)
        if route is None:
            raise BadRequest(f"the gateway has no route for {subject.pattern}")
        fields = cast(dict[str, Any], json.loads(body.encode()))
        holes = {name: quote(str(fields.pop(name)), safe="") for name in route.path_fields()}
        path = route.path.format(**holes)
        if route.method in ("GET", "DELETE"):
            request = self._http.build_request(
                route.method, path, params=query(fields), timeout=_timeout(within)
            )
        else:
            request = self._http.build_request(
                route.method, path, json=fields, timeout=_timeout(within)
            )
        response = await self._send(request, within)
        return subject.reply.decode(response.content)

    async def submit(self, job: m.JobSubmit, *, within: float) -> None:
        """Put a job into the queue."""
        await self.call(s.JOB_SUBMIT, job, within=within)

    async def attach(
        self, sandbox_id: str, exec_id: str, *, position: int, window_bytes: int, within: float
    ) -> Link:
        """Open a stream to a command, with its output from `position` on."""
        return await GatewayLink.open(
            self._place,
            sandbox_id,
            {"exec_id": exec_id, "position": position, "window_bytes": window_bytes},
            within=within,
        )

    @asynccontextmanager
    async def job_events(self, job_id: str) -> AsyncGenerator[Feed[m.JobEvent]]:
        """Listen to a job's progress."""
        feed = _EventStream(self._http, f"/v1/jobs/{quote(job_id, safe='')}/events")
        try:
            yield feed
        finally:
            await feed.close()

    @asynccontextmanager
    async def file_events(
        self, place: FilePlace, *, recursive: bool
    ) -> AsyncGenerator[Feed[m.FileEvent]]:
        """Report changes below a path by looking again and again: HTTP has no watches."""
        yield await watching.PolledFeed.open(self, place, recursive=recursive)

    async def read_file(self, place: FilePlace, *, within: float) -> AsyncIterator[bytes]:
        """Read a file as raw bytes; a connection that breaks is continued piece by piece."""
        done = 0
        try:
            async with self._http.stream(
                "GET", _content(place), params=_content_query(place), timeout=_timeout(within)
            ) as response:
                await _check(response)
                async for piece in response.aiter_bytes():
                    done += len(piece)
                    yield piece
                return
        except httpx.TransportError:
            pass
        async for piece in read_pieces(self, place, position=done, within=within):
            yield piece

    async def write_file(
        self, target: FileTarget, pieces: AsyncIterator[bytes], *, within: float
    ) -> None:
        """Write a file: a short one in one request that may be repeated, a long one raw."""
        first, rest = await _first(pieces, CHUNK_BYTES)
        if len(first) <= CHUNK_BYTES:
            return await write_pieces(self, target, _only(first), within=within)
        params = _content_query(target.place)
        if target.mode is not None:
            params["mode"] = str(target.mode)
        if not target.parents:
            params["parents"] = "false"
        await self._send(
            self._http.build_request(
                "PUT",
                _content(target.place),
                params=params,
                content=_joined(first, rest),
                headers={"content-type": "application/octet-stream"},
                timeout=_timeout(within),
            ),
            within,
        )
        return None

    # ---------------------------------------------------------------- internal

    async def _greet(self) -> None:
        try:
            await self._http.get("/healthz", timeout=CONNECT_SECONDS)
        except httpx.TransportError as problem:
            raise Unreachable(
                f"no gateway answers at {self._place.url}: {_text(problem)}"
            ) from problem

    async def _send(self, request: httpx.Request, within: float) -> httpx.Response:
        try:
            response = await self._http.send(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.PoolTimeout) as problem:
            raise Unreachable(
                f"no gateway answers at {self._place.url}: {_text(problem)}"
            ) from problem
        except httpx.TransportError as problem:
            where = f"{request.method} {request.url.path}"
            raise TimedOut(f"no answer to {where} within {within:g} s: {_text(problem)}") from (
                problem
            )
        await _check(response)
        return response


class _EventStream:
    """Server-sent events of one job, opened again whenever they break off."""

    def __init__(self, http: httpx.AsyncClient, path: str) -> None:
        self._http = http
        self._path = path
        self._stack = AsyncExitStack()
        self._lines: AsyncIterator[str] | None = None

    async def next(self) -> m.JobEvent | None:
        """Wait for what comes next; None when some may have been missed."""
        try:
            if self._lines is None:
                await self._open()
                return None  # what came before was not heard
            return await self._read(self._lines)
        except httpx.TransportError:
            await self._break_off()
            return None

    async def close(self) -> None:
        await self._stack.aclose()

    async def _open(self) -> None:
        timeout = httpx.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)
        response = await self._stack.enter_async_context(
            self._http.stream("GET", self._path, timeout=timeout)
        )
        try:
            await _check(response)
        except NotFound:  # not on record yet
            await self._break_off()
        else:
            self._lines = response.aiter_lines()

    async def _read(self, lines: AsyncIterator[str]) -> m.JobEvent | None:
        async for line in lines:
            if line.startswith("data:"):
                return m.JobEvent.decode(line.removeprefix("data:").strip().encode())
        await self._break_off()
        return None

    async def _break_off(self) -> None:
        self._lines = None
        await self._stack.aclose()
        await asyncio.sleep(0.2)


def query(fields: dict[str, Any]) -> dict[str, str]:
    """Return fields as query parameters: text as it is, everything else as JSON."""
    return {
        name: value if isinstance(value, str) else json.dumps(value)
        for name, value in fields.items()
        if value is not None
    }


async def _check(response: httpx.Response) -> None:
    if response.is_success:
        return
    await response.aread()
    if response.status_code == 401:
        raise Denied("the gateway does not know this API key: set SANDFLEET_API_KEY")
    try:
        failure = m.Failure.decode(response.content)
    except BadRequest:
        raise foreign(response) from None
    raise failure.to_error()


def foreign(response: httpx.Response) -> Unavailable:
    """Return the error for an answer that is not the gateway's: a proxy's before it, say."""
    text = f"the gateway answered {response.status_code}: {response.text.strip()[:200]}"
    wait = str(response.headers.get("retry-after", ""))
    fields = {"retry_after_seconds": int(wait[:9])} if wait.isdecimal() else {}
    return (Busy if response.status_code == 429 else Unreachable)(text, **fields)


def _content(place: FilePlace) -> str:
    return f"/v1/sandboxes/{quote(place.sandbox_id, safe='')}/files/content"


def _content_query(place: FilePlace) -> dict[str, str]:
    return {"path": place.path} | ({"user": place.user} if place.user else {})


def _timeout(within: float) -> httpx.Timeout:
    return httpx.Timeout(within, connect=min(within, CONNECT_SECONDS))


def _text(problem: Exception) -> str:
    return str(problem) or type(problem).__name__


async def _first(pieces: AsyncIterator[bytes], size: int) -> tuple[bytes, AsyncIterator[bytes]]:
    """Return more than `size` bytes if there are so many, and what follows."""
    held = bytearray()
    async for piece in pieces:
        held += piece
        if len(held) > size:
            break
    return bytes(held), pieces


async def _only(data: bytes) -> AsyncIterator[bytes]:
    yield data


async def _joined(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece
