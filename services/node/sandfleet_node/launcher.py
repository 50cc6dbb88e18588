"""The node's side of the launcher's socket: requests, answers and exits.

The launcher outlives the node service. One that runs is found again; else one is
started. It is reached through a descriptor of its directory, because the path of a
socket may not be long.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sandfleet_common import wire
from sandfleet_common.errors import Broken, Unreachable
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger

from .launcherprocess import START_SECONDS, connect_socket, connect_to_child, peer_pid, reap, spawn

ANSWER_SECONDS = 40.0
"""The launcher gives up a set-up after thirty."""
QUIT_SECONDS = 30.0


class LauncherRefused(Exception):
    """The launcher said no; `step` names what failed, the text says why."""

    def __init__(self, step: str, text: str, number: int) -> None:
        super().__init__(text)
        self.step = step
        self.errno = number


@dataclass(frozen=True, slots=True)
class Channel:
    """A sandbox that the launcher holds, with this side of its agent's channel."""

    sandbox_id: str
    pid: int
    sock: socket.socket


@dataclass(slots=True)
class Listeners:
    """Whom to tell what the launcher says unasked."""

    on_exit: Callable[[str, int], None]
    """A sandbox has gone entirely: its id and raw wait status."""
    on_channel: Callable[[Channel], None]
    """A sandbox came to be for a service that has gone."""
    on_lost: Callable[[], None]
    """The launcher has gone."""


@dataclass(slots=True)
class Found:
    """What a launcher that was running already held."""

    channels: list[Channel] = field(default_factory=list[Channel])
    exits: dict[str, int] = field(default_factory=dict[str, int])
    prepared: list[int] = field(default_factory=list[int])
    """First ids of the ranges it has made namespaces for ahead of need."""
    is_fresh: bool = False
    """It was started just now."""


class Launcher:
    """A connection to a launcher. Open one with `Launcher.open`."""

    def __init__(
        self, sock: socket.socket, pid: int, listeners: Listeners, tasks: Tasks, log: Logger
    ) -> None:
        self.pid = pid
        self._sock = sock
        self._listeners = listeners
        self._tasks = tasks
        self._log = log
        self._loop = asyncio.get_running_loop()
        self._sequence = 0
        self._waiting: dict[str, asyncio.Future[tuple[dict[str, str], int | None]]] = {}
        self._unsent: list[bytes] = []
        self._found: Found | None = Found()
        self._expected = -1
        self._all_found: asyncio.Future[None] = self._loop.create_future()
        self._closed = False
        self._is_quitting = False
        sock.setblocking(False)
        self._loop.add_reader(sock, self._on_readable)

    @classmethod
    async def open(
        cls,
        binary: Path,
        run_dir: Path,
        orphan_seconds: int,
        listeners: Listeners,
        tasks: Tasks,
        log: Logger,
    ) -> tuple[Launcher, Found]:
        """Connect to the launcher that runs, or start one, and say hello.

        Raises:
            Unreachable: it did not come up; its log says why.
        """
        child = 0
        try:
            sock = connect_socket(run_dir)
        except OSError:
            child = spawn(binary, run_dir, orphan_seconds)
            sock = await connect_to_child(child, run_dir)
        launcher = cls(sock, peer_pid(sock), listeners, tasks, log)
        try:
            async with asyncio.timeout(START_SECONDS):
                found = await launcher._hello()
        except (TimeoutError, LauncherRefused) as problem:
            launcher.close()
            raise Unreachable(f"the launcher does not greet: {problem}") from problem
        found.is_fresh = child != 0
        log.info("launcher.connected", pid=launcher.pid, sandboxes=len(found.channels))
        return launcher, found

    @property
    def is_open(self) -> bool:
        """Whether the launcher is there."""
        return not self._closed

    async def mount_layer(self, digest: str, meta: Path, data: Path) -> None:
        """Make a layer usable by `create`; once more changes nothing.

        Args:
            digest: its name.
            meta: its image, names and attributes.
            data: what the files of the image hold.

        Raises:
            LauncherRefused: it cannot be mounted.
        """
        fields = [("digest", digest), ("path", str(meta)), ("device", str(data)), ("fs", "erofs")]
        await self._ask([("op", "layer"), *fields])

    async def unmount_layer(self, digest: str) -> None:
        """Make a layer usable no more.

        Raises:
            LauncherRefused: a sandbox uses it, or it is not mounted.
        """
        await self._ask([("op", "unlayer"), ("digest", digest)])

    async def mount_directory(self, digest: str, path: Path) -> None:
        """Make a directory usable as a layer by `create`, read-only.

        Raises:
            LauncherRefused: it cannot be mounted.
        """
        await self._ask([("op", "layer"), ("digest", digest), ("path", str(path)), ("fs", "dir")])

    async def chunks(self) -> int:
        """Make sure of the mount for layers on demand; return a descriptor of its /dev/fuse.

        Raises:
            LauncherRefused: there can be none.
        """
        _, device = await self._ask([("op", "chunks")])
        if device is None:
            raise Broken("the launcher made a mount without a descriptor")
        return device

    async def create(self, fields: Sequence[tuple[str, str | int]]) -> tuple[int, socket.socket]:
        """Create a sandbox, and return its pid and the node's end of its agent's channel.

        Raises:
            LauncherRefused: the launcher or the kernel refused; nothing of it is left.
        """
        answer, channel = await self._ask([("op", "create"), *fields])
        if channel is None:
            raise Broken("the launcher created a sandbox without a channel")
        return int(answer["pid"]), _channel(channel)

    async def prepare(self, uid: int, ids: int) -> None:
        """Have the namespaces of a range's next sandbox made; once more changes nothing.

        Raises:
            LauncherRefused: the kernel refused, or too many are prepared.
            Unreachable: the launcher has gone.
        """
        await self._ask([("op", "prepare"), ("uid", uid), ("ids", ids)])

    def unprepare(self, uid: int, ids: int) -> None:
        """Have them dropped again. No answer is waited for."""
        self._tell([("op", "unprepare"), ("uid", uid), ("ids", ids)])

    def kill(self, sandbox_id: str) -> None:
        """Kill a sandbox's first process, and so all of it. No answer is waited for."""
        self._tell([("op", "kill"), ("id", sandbox_id)])

    def forget(self, sandbox_id: str) -> None:
        """Drop the record of a sandbox that has gone. No answer is waited for."""
        self._tell([("op", "forget"), ("id", sandbox_id)])

    async def quit(self) -> None:
        """End all sandboxes and the launcher, and wait until it has gone."""
        self._is_quitting = True
        sequence = self._tell([("op", "quit")])
        waiting = self._waiting[sequence] = self._loop.create_future()
        try:
            async with asyncio.timeout(QUIT_SECONDS):
                await waiting
        except (TimeoutError, Unreachable) as problem:
            self._log.warning("launcher.quit", error=str(problem))
        self.close()
        await reap(self.pid)

    def close(self) -> None:
        """Disconnect; the launcher and its sandboxes stay."""
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._sock)
        if self._unsent:
            self._loop.remove_writer(self._sock)
        self._sock.close()
        for waiting in self._waiting.values():
            if not waiting.done():
                waiting.set_exception(Unreachable("the launcher has gone"))
        self._waiting.clear()

    # ---------------------------------------------------------------- internal

    async def _hello(self) -> Found:
        answer, _ = await self._ask([("op", "hello")])
        if int(answer["version"]) != wire.PROTOCOL:
            raise LauncherRefused("hello", f"it speaks version {answer['version']}", errno.EPROTO)
        self._expected = int(answer["sandboxes"])
        self._check_found()
        await self._all_found
        found, self._found = self._found or Found(), None
        found.prepared = _first_ids(answer.get("prepared", ""))
        return found

    def _check_found(self) -> None:
        complete = self._found is not None and len(self._found.channels) >= self._expected >= 0
        if complete and not self._all_found.done():
            self._all_found.set_result(None)

    async def _ask(
        self, pairs: Sequence[tuple[str, str | int]]
    ) -> tuple[dict[str, str], int | None]:
        if self._closed:
            raise Unreachable("the launcher has gone")
        waiting: asyncio.Future[tuple[dict[str, str], int | None]]
        waiting = self._loop.create_future()
        sequence = self._tell(pairs)
        self._waiting[sequence] = waiting
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                return await waiting
        except TimeoutError:
            raise LauncherRefused(pairs[0][1], "the launcher does not answer", 0) from None  # type: ignore[arg-type]
        finally:
            self._waiting.pop(sequence, None)

    def _tell(self, pairs: Sequence[tuple[str, str | int]]) -> str:
        self._sequence += 1
        sequence = str(self._sequence)
        packet = wire.pack_message([*pairs, ("seq", sequence)])
        if self._closed:
            return sequence
        if not self._unsent:
            try:
                self._sock.send(packet)
                return sequence
            except BlockingIOError:
                self._loop.add_writer(self._sock, self._on_writable)
            except OSError:
                return sequence  # the reader will see that it has gone
        self._unsent.append(packet)
        return sequence

    def _on_writable(self) -> None:
        try:
            while self._unsent:
                self._sock.send(self._unsent[0])
                self._unsent.pop(0)
        except BlockingIOError:
            return
        except OSError:
            self._unsent.clear()
        self._loop.remove_writer(self._sock)

    def _on_readable(self) -> None:
        for _ in range(64):
            try:
                packet, fds, _, _ = socket.recv_fds(
                    self._sock, wire.LAUNCHER_MAX_BYTES, 4, socket.MSG_CMSG_CLOEXEC
                )
            except BlockingIOError:
                return
            except OSError:
                packet, fds = b"", []
            if not packet:
                self._lost()
                return
            self._receive(packet, fds)
            if self._closed:
                return

    def _receive(self, packet: bytes, fds: list[int]) -> None:
        fd = fds[0] if fds else None
        try:
            message = dict(wire.unpack_message(packet))
        except wire.WireError as problem:
            self._log.error("launcher.bad_message", error=str(problem))
            message = {}
        event = message.get("event")
        if event == "exit":
            self._on_exit(message)
        elif event == "sandbox" and fd is not None:
            self._on_channel(Channel(message["id"], int(message["pid"]), _channel(fd)))
        else:
            self._on_answer(message, fd)

    def _on_exit(self, message: dict[str, str]) -> None:
        if self._found is not None:
            self._found.exits[message["id"]] = int(message["status"])
        else:
            self._listeners.on_exit(message["id"], int(message["status"]))

    def _on_channel(self, channel: Channel) -> None:
        if self._found is not None:
            self._found.channels.append(channel)
            self._check_found()
        else:
            self._listeners.on_channel(channel)

    def _on_answer(self, message: dict[str, str], fd: int | None) -> None:
        waiting = self._waiting.pop(message.get("seq", ""), None)
        if waiting is None or waiting.done():
            if fd is not None:
                os.close(fd)
        elif message.get("ok") == "1":
            waiting.set_result((message, fd))
        else:
            waiting.set_exception(
                LauncherRefused(
                    message.get("step", "?"),
                    message.get("message", "no reason given"),
                    int(message.get("errno", "0")),
                )
            )

    def _lost(self) -> None:
        self.close()
        if not self._all_found.done():
            self._all_found.set_exception(Unreachable("the launcher has gone"))
            self._all_found.exception()
        if self._found is None and not self._is_quitting:
            self._tasks.start(reap(self.pid), "reap launcher")
            self._listeners.on_lost()


def _channel(fd: int) -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET, 0, fileno=fd)


def _first_ids(prepared: str) -> list[int]:
    """Return the first ids in a list like "1879048192+65536,1879113728+65536"."""
    return [int(item.partition("+")[0]) for item in prepared.split(",") if item]
