"""`python -m sandfleet_node.egress DIRECTORY ORPHAN_SECONDS` is the proxy; its node starts it.

It runs as nobody, with no rights and without the node's environment: whatever a sandbox
manages to do to it, it could only connect where the host can, as any program of the host.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import resource
import socket
import sys
from pathlib import Path

from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger

from .orders import SOCKET
from .serving import Serving

NOBODY = 65534
_NICE = 5
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38


def listen(directory: Path) -> socket.socket:
    """Listen for the node; the directory is closed to everybody else."""
    path = directory / SOCKET
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path.unlink(missing_ok=True)
        sock.bind(f"/proc/self/fd/{handle}/{SOCKET}")  # of a long path, only its end counts
        sock.listen(4)
    finally:
        os.close(handle)
    return sock


def renounce() -> None:
    """Give up every right, for good."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(_NICE)
    os.chdir("/")
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)
    libc = ctypes.CDLL(None, use_errno=True)
    for option, value in ((_PR_SET_NO_NEW_PRIVS, 1), (_PR_SET_DUMPABLE, 0)):
        if libc.prctl(option, value, 0, 0, 0) != 0:
            raise OSError(ctypes.get_errno(), "prctl")


async def _run(listener: socket.socket, orphan_seconds: float, log: Logger) -> None:
    async with Tasks(log) as tasks:
        await Serving(tasks, orphan_seconds, log).run(listener)


def main() -> None:
    """Serve until the node says that it is over."""
    if len(sys.argv) != 3:
        sys.exit("usage: python -m sandfleet_node.egress DIRECTORY ORPHAN_SECONDS")
    log = Logger("egress")
    "loaded".encode("idna")  # a codec that is a module: later it might not be readable
    with contextlib.closing(listen(Path(sys.argv[1]))) as listener:
        renounce()
        asyncio.run(_run(listener, float(sys.argv[2]), log))


if __name__ == "__main__":
    main()
