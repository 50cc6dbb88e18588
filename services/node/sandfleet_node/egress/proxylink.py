"""The node's connection to the proxy's process, which it finds or starts."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path

from pydantic import ValidationError

from sandfleet_common.errors import Unreachable
from sandfleet_node.launcherprocess import is_gone, reap

from .orders import (
    PACKET_BYTES_MAX,
    REPORTS,
    SOCKET,
    Add,
    Counts,
    Hello,
    Quit,
    Refused,
    Remove,
    Rules,
    send_packet,
)

START_SECONDS = 15.0
_LOOK_SECONDS = 0.01
_REAP_TRIES = 100


def connect(directory: Path) -> socket.socket:
    """Connect to the proxy in a directory.

    Raises:
        OSError: none listens there.
    """
    handle = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        sock.connect(f"/proc/self/fd/{handle}/{SOCKET}")
    except BaseException:
        sock.close()
        raise
    finally:
        os.close(handle)
    sock.setblocking(False)
    return sock


def spawn(directory: Path, orphan_seconds: int) -> int:
    """Start a proxy that will outlive this process, and return its pid.

    It gets nothing of this process's environment, where passwords are.
    """
    log = os.open(directory / "egress.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    argv = [sys.executable, "-I", "-m", f"{__package__}", str(directory), str(orphan_seconds)]
    try:
        return os.posix_spawn(
            sys.executable,
            argv,
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


class ProxyLink:
    """One connection to a proxy. Close it when done: the proxy stays for the next."""

    def __init__(
        self, sock: socket.socket, hello: Hello, sent: dict[str, int], child: int | None
    ) -> None:
        self._sock = sock
        self._child = child
        self.version = hello.version
        self.sent = sent
        """What the proxy held when it was connected to: sandboxes with the bytes they have sent."""

    @classmethod
    async def open(cls, directory: Path, orphan_seconds: int) -> ProxyLink:
        """Connect to the proxy of a directory; start one if there is none.

        Raises:
            Unreachable: it does not come up.
        """
        try:
            async with asyncio.timeout(START_SECONDS):
                sock, child = await _connected(directory, orphan_seconds)
                try:
                    return await cls._greeted(sock, child)
                except BaseException:
                    sock.close()
                    raise
        except (OSError, TimeoutError) as problem:
            raise Unreachable(
                f"the proxy of build sandboxes did not start: see {directory / 'egress.log'}"
            ) from problem

    @classmethod
    async def _greeted(cls, sock: socket.socket, child: int | None) -> ProxyLink:
        first = await _receive(sock)
        if not isinstance(first, Hello):
            raise ConnectionError("it said nothing")
        sent: dict[str, int] = {}
        while len(sent) < first.sandboxes:
            report = await _receive(sock)
            if report is None:
                raise ConnectionError("it has gone again")
            if isinstance(report, Counts):
                sent |= report.sent
        return cls(sock, first, sent, child)

    async def send(self, order: Rules | Add | Remove | Quit, handle: int | None = None) -> None:
        """Send an order; a descriptor with it is duplicated.

        Raises:
            OSError: the proxy has gone.
        """
        await send_packet(self._sock, order, handle)

    async def receive(self) -> Counts | Refused | None:
        """Return the next report; None: the proxy has gone."""
        while True:
            report = await _receive(self._sock)
            if not isinstance(report, Hello):
                return report

    def close(self) -> None:
        """Leave the proxy alone."""
        self._sock.close()

    async def reap(self) -> None:
        """Lay a proxy to rest that has gone, if it was started here; it is on its way out."""
        for _ in range(_REAP_TRIES):
            if self._child is None or is_gone(self._child):
                return
            await asyncio.sleep(_LOOK_SECONDS)


async def _connected(directory: Path, orphan_seconds: int) -> tuple[socket.socket, int | None]:
    """Return a connection, and the pid of the proxy if it had to be started."""
    try:
        return connect(directory), None
    except OSError:
        child = spawn(directory, orphan_seconds)
    try:
        return await _connected_to_child(directory, child), child
    except BaseException:
        if not is_gone(child):  # nobody knows of it yet, and nobody would come for it
            os.kill(child, signal.SIGKILL)
            await reap(child)
        raise


async def _connected_to_child(directory: Path, child: int) -> socket.socket:
    while True:
        await asyncio.sleep(_LOOK_SECONDS)
        try:
            return connect(directory)
        except OSError as problem:
            if is_gone(child):
                raise ConnectionError("it ended at once") from problem


async def _receive(sock: socket.socket) -> Hello | Counts | Refused | None:
    try:
        data = await asyncio.get_running_loop().sock_recv(sock, PACKET_BYTES_MAX)
        return REPORTS.validate_json(data) if data else None
    except ConnectionError:
        return None
    except ValidationError:
        raise ConnectionError("the proxy speaks another language") from None


def end(directory: Path) -> None:
    """Tell the proxy of a directory to end, if there is one; for who cleans up."""
    try:
        with connect(directory) as sock:
            sock.send(Quit().model_dump_json().encode())
    except OSError:
        return
