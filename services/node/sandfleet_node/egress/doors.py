"""Opens a listening socket inside a sandbox's network namespace."""

from __future__ import annotations

import asyncio
import ctypes
import os
import socket
import threading

from .orders import PORT

_CLONE_NEWNET = 0x40000000
_BACKLOG = 512


def open_door(pid: int) -> socket.socket:
    """Return a socket that listens at the proxy's port on loopback, where a process lives.

    A thread of its own goes there and ends there: no thread that does anything else is ever
    in a foreign namespace.

    Raises:
        OSError: the process has gone, or the port is taken.
    """
    found: list[socket.socket | OSError] = []

    def go() -> None:
        try:
            found.append(_listen_in(pid))
        except OSError as problem:
            found.append(problem)

    thread = threading.Thread(target=go, name="door")
    thread.start()
    thread.join()
    door = found[0]
    if isinstance(door, OSError):
        raise door
    return door


async def open_door_aside(pid: int) -> socket.socket:
    """Do the same without blocking the loop; the work is some hundred microseconds."""
    return await asyncio.to_thread(open_door, pid)


def _listen_in(pid: int) -> socket.socket:
    handle = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY | os.O_CLOEXEC)
    try:
        there, here = os.fstat(handle), os.stat("/proc/thread-self/ns/net")  # noqa: PTH116
        if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
            raise OSError("the process has no network namespace of its own")
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.setns(handle, _CLONE_NEWNET) != 0:
            number = ctypes.get_errno()
            raise OSError(number, f"setns: {os.strerror(number)}")
    finally:
        os.close(handle)
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", PORT))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
