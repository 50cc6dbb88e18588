"""The channel to one sandbox's agent: frames out, frames in, answers to requests.

One descriptor and no task for each sandbox. What comes in is as trustworthy as the
sandbox: a frame that the protocol does not allow ends the channel.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections import deque
from contextlib import suppress
from typing import Protocol

from sandfleet_common import wire
from sandfleet_common.errors import Busy, FileProblem, SandboxFailed, TimedOut
from sandfleet_common.wire import Frame, FrameFlag, FrameType, Tag

BACKLOG_BYTES = 8 * 1024 * 1024
"""What may wait for an agent that does not read; more is refused."""
BACKLOG_CALM_BYTES = 1024 * 1024
"""A writer of much waits until no more than this is waiting."""
ANSWER_BYTES = 8 * 1024 * 1024
"""Most bytes of one answer."""
REQUEST_SECONDS = 60.0
_PACKETS_AT_ONCE = 32

Answer = list[Frame]


class Owner(Protocol):
    """Who hears what the agent says of itself."""

    def on_frame(self, frame: Frame) -> None:
        """Take one frame that answers no request."""
        ...

    def on_pause(self) -> None:
        """Take note that all that had arrived has been told."""
        ...

    def on_closed(self, problem: str | None) -> None:
        """Take note that the channel is closed; `problem`: what the agent did wrong, if it did."""
        ...


class _Pending:
    __slots__ = ("bytes", "frames", "future")

    def __init__(self, future: asyncio.Future[Answer]) -> None:
        self.future = future
        self.frames: Answer = []
        self.bytes = 0


class AgentLink:
    """One agent's channel."""

    __slots__ = ("_backlog", "_backlog_bytes", "_calm", "_loop", "_owner", "_pending", "_sock")

    def __init__(self, sock: socket.socket, owner: Owner) -> None:
        self._sock: socket.socket | None = sock
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._backlog: deque[bytes] | None = None
        self._backlog_bytes = 0
        self._calm: asyncio.Future[None] | None = None
        self._pending: dict[int, _Pending] = {}
        sock.setblocking(False)
        self._loop.add_reader(sock, self._on_readable)

    @property
    def is_open(self) -> bool:
        """Whether frames can be sent."""
        return self._sock is not None

    def send(
        self,
        type: FrameType,
        id: int,
        *,
        flags: FrameFlag | int = FrameFlag.NONE,
        position: int = 0,
        payload: bytes = b"",
    ) -> None:
        """Send one frame, now or when the agent reads again. A closed channel swallows it.

        Raises:
            Busy: too much is waiting for the agent already.
        """
        sock = self._sock
        if sock is None:
            return
        packet = wire.pack_frame(type, id, flags, position, payload)
        if self._backlog is None:
            try:
                sock.send(packet)
                return
            except BlockingIOError:
                self._backlog = deque()
                self._loop.add_writer(sock, self._on_writable)
            except OSError:
                self._fail(None)
                return
        if self._backlog_bytes + len(packet) > BACKLOG_BYTES:
            raise Busy("the sandbox's agent does not keep up", retry_after_seconds=0.1)
        self._backlog.append(packet)
        self._backlog_bytes += len(packet)

    def tell(self, type: FrameType, id: int, *, flags: FrameFlag | int = FrameFlag.NONE) -> None:
        """Send one frame that clears up behind a client; too much waiting already swallows it.

        For callers that may not fail because one sandbox's agent does not read.
        """
        with suppress(Busy):
            self.send(type, id, flags=flags)

    async def calm(self) -> None:
        """Wait while much is waiting for the agent.

        Raises:
            TimedOut: it did not read for a minute.
        """
        while self._backlog_bytes > BACKLOG_CALM_BYTES and self._sock is not None:
            if self._calm is None:
                self._calm = self._loop.create_future()
            try:
                async with asyncio.timeout(REQUEST_SECONDS):
                    await asyncio.shield(self._calm)
            except TimeoutError:
                raise TimedOut("the sandbox's agent does not read") from None

    def expect(self, id: int) -> asyncio.Future[Answer]:
        """Return a future of the answer to the request with this id.

        It fails with the agent's error, or SandboxFailed when the channel closes.
        """
        future: asyncio.Future[Answer] = self._loop.create_future()
        if self._sock is None:
            future.set_exception(SandboxFailed("the sandbox has ended"))
        else:
            self._pending[id] = _Pending(future)
        return future

    def unexpect(self, id: int) -> None:
        """Stop waiting for an answer."""
        self._pending.pop(id, None)

    async def request(
        self,
        type: FrameType,
        id: int,
        *,
        flags: FrameFlag | int = FrameFlag.NONE,
        position: int = 0,
        payload: bytes = b"",
    ) -> Answer:
        """Send a request and return the frames of its answer.

        Raises:
            FileProblem: the agent says that it failed.
            TimedOut: no answer within a minute.
        """
        future = self.expect(id)
        try:
            self.send(type, id, flags=flags, position=position, payload=payload)
            async with asyncio.timeout(REQUEST_SECONDS):
                return await future
        except TimeoutError:
            raise TimedOut("the sandbox's agent did not answer in time") from None
        finally:
            self._pending.pop(id, None)

    def close(self) -> None:
        """Close the channel. The owner is not told."""
        sock, self._sock = self._sock, None
        if sock is None:
            return
        self._loop.remove_reader(sock)
        if self._backlog is not None:
            self._loop.remove_writer(sock)
        sock.close()
        self._backlog = None
        self._backlog_bytes = 0
        self._settle_calm()
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(SandboxFailed("the sandbox has ended"))
                pending.future.exception()  # whoever waited may have gone
        self._pending.clear()

    # ---------------------------------------------------------------- internal

    def _settle_calm(self) -> None:
        if self._calm is not None and not self._calm.done():
            self._calm.set_result(None)
        self._calm = None

    def _on_writable(self) -> None:
        assert self._sock is not None and self._backlog is not None
        try:
            while self._backlog:
                self._sock.send(self._backlog[0])
                self._backlog_bytes -= len(self._backlog.popleft())
        except BlockingIOError:
            pass
        except OSError:
            self._fail(None)
            return
        if self._backlog_bytes <= BACKLOG_CALM_BYTES:
            self._settle_calm()
        if not self._backlog:
            self._backlog = None
            self._loop.remove_writer(self._sock)

    def _on_readable(self) -> None:
        for _ in range(_PACKETS_AT_ONCE):
            if self._sock is None:
                return
            try:
                packet = self._sock.recv(wire.PACKET_MAX_BYTES + 1)
            except BlockingIOError:
                break
            except OSError:
                packet = b""
            if not packet:
                self._owner.on_pause()
                self._fail(None)
                return
            try:
                self._receive(wire.unpack_frame(packet))
            except ValueError as problem:
                self._fail(str(problem))
                return
        self._owner.on_pause()

    def _receive(self, frame: Frame) -> None:
        pending = self._pending.get(frame.id)
        if pending is None or frame.type not in (FrameType.RESULT, FrameType.ERROR):
            self._owner.on_frame(frame)
            return
        if pending.future.done():
            return
        if frame.type is FrameType.ERROR:
            pending.future.set_exception(error_of(frame))
            pending.future.exception()
            return
        pending.bytes += len(frame.payload)
        if pending.bytes <= ANSWER_BYTES:
            pending.frames.append(frame)
        if not frame.flags & FrameFlag.MORE:
            pending.future.set_result(pending.frames)

    def _fail(self, problem: str | None) -> None:
        if self._sock is not None:
            self.close()
            self._owner.on_closed(problem)


def error_of(frame: Frame) -> FileProblem:
    """Return what an ERROR frame says; fields: `errno`."""
    number, text = 0, ""
    for tag, value in wire.unpack_fields(frame.payload):
        if tag is Tag.ERRNO and isinstance(value, int):
            number = value
        elif tag is Tag.MESSAGE and isinstance(value, bytes):
            text = value.decode("utf-8", "replace")
    name = errno_name(number)
    return FileProblem(text or f"the sandbox refused: {name}", errno=name)


def errno_name(number: int) -> str:
    """Return ENOENT for 2."""
    return errno.errorcode.get(number, f"errno {number}")
