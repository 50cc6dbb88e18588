"""Sockets of the proxy: bytes in and out with limits of time, and counted."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import Callable

READ_BYTES = 128 * 1024
_LINGER_SECONDS = 1.0
_LINGER_BYTES = 256 * 1024


class Stream:
    """One connection. Whoever sends waits for the receiver: nothing is queued here."""

    def __init__(
        self,
        sock: socket.socket,
        idle_seconds: float,
        *,
        on_sent: Callable[[int], None] | None = None,
        on_received: Callable[[int], None] | None = None,
    ) -> None:
        sock.setblocking(False)
        self._sock = sock
        self._idle_seconds = idle_seconds
        self._on_sent = on_sent
        self._on_received = on_received
        self._loop = asyncio.get_running_loop()
        self.used_at = time.monotonic()

    async def receive(self) -> bytes:
        """Return what has come; empty at the end of it.

        Raises:
            TimeoutError: nothing for too long.
            OSError: the connection broke.
        """
        async with asyncio.timeout(self._idle_seconds):
            return await self.receive_at_last()

    async def receive_at_last(self) -> bytes:
        """Return what has come, however long that takes."""
        data = await self._loop.sock_recv(self._sock, READ_BYTES)
        self.used_at = time.monotonic()
        if self._on_received is not None:
            self._on_received(len(data))
        return data

    async def send(self, data: bytes) -> None:
        """Send all of it.

        Raises:
            TimeoutError: the receiver took it too slowly.
            OSError: the connection broke.
        """
        if data:
            async with asyncio.timeout(self._idle_seconds):
                await self._loop.sock_sendall(self._sock, data)
            self.used_at = time.monotonic()
            if self._on_sent is not None:
                self._on_sent(len(data))

    def finish(self) -> None:
        """Say that nothing more will be sent."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_WR)

    def is_quiet(self) -> bool:
        """Return whether nothing has come, nor the end: the connection can be used once more."""
        try:
            self._sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    async def linger(self) -> None:
        """Let a last answer arrive: closing with bytes unread would take it back."""
        self.finish()
        left = _LINGER_BYTES
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(_LINGER_SECONDS):
                while left > 0 and (data := await self.receive_at_last()):
                    left -= len(data)

    def close(self) -> None:
        """Close it."""
        self._sock.close()


async def copy(source: Stream, drain: Stream) -> None:
    """Pass on everything until the source's end, then say so."""
    while data := await source.receive_at_last():
        await drain.send(data)
        await asyncio.sleep(0)  # others' turn, also when neither socket ever has to wait
    drain.finish()
