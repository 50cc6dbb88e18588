"""The launcher as a process: found by its socket, started, and waited for."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import struct
from pathlib import Path

from sandfleet_common.errors import Unreachable

SOCKET = "launcher.sock"
START_SECONDS = 10.0


def connect_socket(run_dir: Path) -> socket.socket:
    """Connect to the launcher in `run_dir`.

    Raises:
        OSError: none listens there.
    """
    directory = os.open(run_dir, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(f"/proc/self/fd/{directory}/{SOCKET}")
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(directory)
    return sock


def peer_pid(sock: socket.socket) -> int:
    """Return the process that listens at the other end, as the kernel knows it."""
    size = struct.calcsize("3i")
    return int(struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size))[0])


def spawn(binary: Path, run_dir: Path, orphan_seconds: int) -> int:
    """Start a launcher that will outlive this process, and return its pid."""
    log = os.open(run_dir / "launcher.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        return os.posix_spawn(
            binary,
            [
                str(binary),
                "launcher",
                "--run-dir",
                str(run_dir),
                "--orphan-seconds",
                str(orphan_seconds),
            ],
            {"PATH": os.defpath},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_DUP2, log, 1),
                (os.POSIX_SPAWN_DUP2, log, 2),
            ],
            setsid=True,
            setsigmask=[],
            setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE],
        )
    finally:
        os.close(log)


async def connect_to_child(child: int, run_dir: Path) -> socket.socket:
    """Connect to a launcher that has just been started, as soon as it listens.

    Raises:
        Unreachable: it did not come up.
    """
    deadline = asyncio.get_running_loop().time() + START_SECONDS
    while True:
        try:
            return connect_socket(run_dir)
        except OSError as problem:
            if is_gone(child) or asyncio.get_running_loop().time() > deadline:
                raise Unreachable(
                    f"the launcher did not start: see {run_dir / 'launcher.log'}"
                ) from problem
        await asyncio.sleep(0.002)


async def reap(pid: int) -> None:
    """Wait a few seconds until a launcher has gone, child of this process or not."""
    for _ in range(500):
        if is_gone(pid):
            return
        await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Return whether a process has gone; a child of this one is laid to rest."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:
        return not Path(f"/proc/{pid}").exists()
