"""A TCP relay with a bandwidth: all connections through it share so many bytes a second.

It stands between the nodes and the store, so that every way of loading layers gets the
same. It is a process of its own, counts what it passes on, and can be cut off and joined
again, as a network can.

    python bench/throttle.py LISTEN_PORT TARGET_PORT BYTES_PER_SECOND

reads commands from its standard input and answers each with a line: `count` (the bytes so
far), `cut` (connections end, and new ones are refused), `join`.
"""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Self

_PIECE = 65_536
_BURST_SECONDS = 0.05


class _Bucket:
    """Hands out bytes at a rate; a debt is slept off by whoever comes next."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate = bytes_per_s
        self._free_at = 0.0

    async def take(self, size: int) -> None:
        now = time.monotonic()
        self._free_at = max(self._free_at, now - _BURST_SECONDS) + size / self._rate
        if self._free_at > now:
            await asyncio.sleep(self._free_at - now)


class _Relay:
    def __init__(self, target_port: int, bytes_per_s: float) -> None:
        self._target_port = target_port
        self._bucket = _Bucket(bytes_per_s)
        self._tasks: set[asyncio.Task[None]] = set()
        self.count = 0
        self.is_cut = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Pass one connection on, until either side ends it or the relay is cut."""
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            if self.is_cut:
                return
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._target_port)
            try:
                async with asyncio.TaskGroup() as group:
                    group.create_task(self._pass(reader, up_writer, is_counted=False))
                    group.create_task(self._pass(up_reader, writer, is_counted=True))
            finally:
                up_writer.close()
        except* OSError:
            pass  # one side has gone; the other hears of it by the end of its connection
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _pass(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, is_counted: bool
    ) -> None:
        while piece := await reader.read(_PIECE):
            if is_counted:
                await self._bucket.take(len(piece))
                self.count += len(piece)
            writer.write(piece)
            await writer.drain()
        with contextlib.suppress(OSError):
            writer.write_eof()

    def cut(self) -> None:
        """End all connections, and accept none until joined again."""
        self.is_cut = True
        for task in self._tasks:
            task.cancel()


async def _main(listen_port: int, target_port: int, bytes_per_s: float) -> None:
    relay = _Relay(target_port, bytes_per_s)
    await asyncio.start_server(relay.serve, "127.0.0.1", listen_port, limit=_PIECE)
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    while line := (await commands.readline()).strip():
        if line == b"cut":
            relay.cut()
        elif line == b"join":
            relay.is_cut = False
        sys.stdout.write(f"{relay.count}\n")
        sys.stdout.flush()


class Throttle:
    """The relay as a child process, for as long as the block lasts."""

    def __init__(self, listen_port: int, target_port: int, bytes_per_s: float) -> None:
        argv = [listen_port, target_port, bytes_per_s]
        self._argv = [sys.executable, str(Path(__file__)), *(str(word) for word in argv)]

    def __enter__(self) -> Self:
        self._child = subprocess.Popen(
            self._argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        if self._read() != "ready":
            raise RuntimeError("the throttled relay did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._child.stdin is not None
        self._child.stdin.close()
        self._child.wait(10)

    def _read(self) -> str:
        assert self._child.stdout is not None
        return self._child.stdout.readline().strip()

    def _ask(self, command: str) -> int:
        assert self._child.stdin is not None
        self._child.stdin.write(f"{command}\n")
        self._child.stdin.flush()
        return int(self._read())

    def count(self) -> int:
        """Return the bytes that came from the store so far."""
        return self._ask("count")

    def cut(self) -> None:
        """Cut the store off."""
        self._ask("cut")

    def join(self) -> None:
        """Bring the store back."""
        self._ask("join")


if __name__ == "__main__":
    asyncio.run(_main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])))
