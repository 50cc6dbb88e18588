"""The reader's terminal: raw mode, its size, its keys; and where a command's output goes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sys
import termios
import tty
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import contextmanager
from typing import Literal

from .text import SafeText

READ_BYTES = 65536
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""What is handed on to the command."""


def is_terminal(fd: int) -> bool:
    """Return whether `fd` is open and a terminal."""
    try:
        return os.isatty(fd)
    except OSError:
        return False


def terminal_size() -> tuple[int, int]:
    """Return rows and columns."""
    size = shutil.get_terminal_size()
    return size.lines, size.columns


@contextmanager
def raw_mode(fd: int = 0) -> Generator[None]:
    """Hand every key to the command as it is; the terminal is as before afterwards."""
    before = termios.tcgetattr(fd)
    tty.setraw(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def key_mode(fd: int = 0) -> Generator[None]:
    """Hand on every key at once and show none; Ctrl-C still interrupts."""
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


@contextmanager
def on_signals(
    numbers: tuple[signal.Signals, ...], handler: Callable[[signal.Signals], None]
) -> Generator[None]:
    """Call `handler` for each signal while the block runs."""
    loop = asyncio.get_running_loop()
    for number in numbers:
        loop.add_signal_handler(number, handler, number)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)


async def read_input(fd: int = 0) -> AsyncIterator[bytes]:
    """Yield what comes in until its end. Cancelling it never waits for a key."""
    while True:
        try:
            await _readable(fd)
        except (OSError, ValueError):  # a file, /dev/null: never makes one wait
            data = await asyncio.to_thread(_read, fd)
        else:
            data = _read(fd)
        if not data:
            return
        yield data


async def _readable(fd: int) -> None:
    """Wait until there is something to read, and for the next read only."""
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[None] = loop.create_future()

    def on_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    loop.add_reader(fd, on_ready)
    try:
        await ready
    finally:
        loop.remove_reader(fd)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, READ_BYTES)
    except OSError:  # closed, or a terminal that is gone
        return b""


class Screen:
    """Where a command's output goes.

    A terminal gets text that cannot steer it, unless the reader asked for a raw
    one; a file or pipe gets the bytes as they are.
    """

    def __init__(self, *, raw: bool = False) -> None:
        self._safe: dict[str, SafeText | None] = {
            name: SafeText() if not raw and is_terminal(fd) else None for name, fd in _FDS.items()
        }

    async def show(self, stream: Literal["stdout", "stderr"], data: bytes) -> None:
        """Write a piece of output.

        Raises:
            BrokenPipeError: nobody reads it any more.
        """
        safe = self._safe[stream]
        shown = data if safe is None else safe.add(data).encode(errors="replace")
        if shown:
            await asyncio.to_thread(_write, _FDS[stream], shown)

    async def end(self) -> None:
        """Write what was held back."""
        for stream, safe in self._safe.items():
            if safe is not None and (rest := safe.end()):
                await asyncio.to_thread(_write, _FDS[stream], rest.encode())


_FDS = {"stdout": 1, "stderr": 2}


def _write(fd: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(fd, left) :]


def quiet_exit_on_broken_pipe() -> None:
    """Keep Python from complaining about a closed stdout at exit."""
    with contextlib.suppress(OSError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
