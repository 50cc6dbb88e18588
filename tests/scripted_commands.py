"""A node made of memory, for tests of those who speak with nodes.

It serves a node's real subjects on the real bus and keeps to the protocol of
`sandfleet_common.streams`, but a command is a few lines of Python:

    echo TEXT     prints TEXT on stdout and `!` on stderr, ends
    cat           prints what it is fed, ends when its input is closed
    flood N       prints N bytes, each known from its position (see `pattern`)
    sleep         runs until it is signalled

A test may let it lose frames, forget its streams or send too much.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Literal

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus, Subscription
from sandfleet_common.errors import Conflict, FileProblem, NotFound
from sandfleet_common.streams import DATA_BYTES, Flag, Kind, StreamFrame

Name = Literal["stdout", "stderr"]


_PERIOD = random.Random(2).randbytes(1_000_003)


def pattern(position: int, size: int) -> bytes:
    """Return the bytes that `flood` prints from `position` on."""
    at = position % len(_PERIOD)
    return (_PERIOD * ((at + size) // len(_PERIOD) + 1))[at : at + size]


@dataclass(slots=True)
class Command:
    """One command: what it printed, what it was fed, how it ended."""

    start: m.ExecStart
    output: list[tuple[Name, bytes]] = field(default_factory=list[tuple[Name, bytes]])
    size: int = 0
    stdin: bytearray = field(default_factory=bytearray)
    is_stdin_closed: bool = False
    exit_code: int | None = None
    signal: int | None = None
    sizes: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.exit_code is not None or self.signal is not None

    def print(self, name: Name, data: bytes) -> None:
        """Add output."""
        self.output.append((name, data))
        self.size += len(data)

    def feed(self, position: int, data: bytes, *, end: bool) -> None:
        """Take input from `position` on, once."""
        if position > len(self.stdin) or self.is_stdin_closed:
            return
        fresh = data[len(self.stdin) - position :]
        self.stdin += fresh
        if self.start.argv[0] == "cat":
            if fresh:
                self.print("stdout", fresh)
            if end:
                self.exit_code = 0
        self.is_stdin_closed = end

    def piece(self, position: int, size: int) -> tuple[Name, bytes]:
        """Return output from `position` on, of one stream, at most `size` bytes."""
        at = 0
        for name, data in self.output:
            if position < at + len(data):
                return name, data[position - at :][:size]
            at += len(data)
        return "stdout", b""

    def state(self) -> m.ExecState:
        """Return where it is."""
        return m.ExecState(
            sandbox_id=self.start.sandbox_id,
            exec_id=self.start.exec_id,
            state="exited" if self.is_over else "running",
            pid=7,
            argv=self.start.argv,
            started_at=1.0,
            ended_at=2.0 if self.is_over else None,
            exit_code=self.exit_code,
            signal=self.signal,
            output_bytes=self.size,
            stdin_bytes=len(self.stdin),
            stdin_closed=self.is_stdin_closed,
        )


@dataclass(slots=True)
class Stream:
    """One client attached to a command."""

    command: Command
    deliver: str
    window_bytes: int
    position: int
    taken: int
    is_over: bool = False
    most_under_way: int = 0
    """Most output that was sent and not taken yet."""


class ScriptedNode:
    """The node; open one with `ScriptedNode.serve`."""

    def __init__(self, bus: Bus, name: str) -> None:
        self.bus = bus
        self.name = name
        self.commands: dict[str, Command] = {}
        self.streams: dict[str, Stream] = {}
        self.files: dict[str, bytes] = {}
        self.uploads: dict[str, bytearray] = {}
        self.attached: list[m.ExecAttach] = []
        self.asked: list[m.Message] = []
        self.lose = 0
        """How many of the next DATA frames are lost on the way."""
        self.lose_inputs = 0
        """How many of the next STDIN frames are lost on the way."""
        self.ignores_credit = False
        self.reading = asyncio.Event()
        self.reading.set()
        self._stack: AsyncExitStack | None = None
        self._subscriptions: list[Subscription] = []

    @classmethod
    @asynccontextmanager
    async def serve(cls, bus: Bus, name: str) -> AsyncGenerator[ScriptedNode]:
        """Serve the subjects of node `name` until the block ends."""
        node = cls(bus, name)
        await node.wake()
        try:
            yield node
        finally:
            await node.sleep()

    async def wake(self) -> None:
        """Serve, as after a start; commands go on, streams are forgotten."""
        self.streams.clear()
        handlers = (
            (s.EXEC_START, self._exec_start),
            (s.EXEC_WAIT, self._exec_wait),
            (s.EXEC_SIGNAL, self._exec_signal),
            (s.EXEC_RESIZE, self._exec_resize),
            (s.EXEC_ATTACH, self._exec_attach),
            (s.FILE_STAT, self._file_stat),
            (s.FILE_READ, self._file_read),
            (s.FILE_WRITE, self._file_write),
            (s.STOP, self._stop),
        )
        for subject, handler in handlers:
            self._subscriptions.append(
                await self.bus.serve(subject, handler, node=self.name)  # pyright: ignore[reportArgumentType]
            )
        await self.bus.flush()

    async def sleep(self) -> None:
        """Serve nothing, as when the service is down."""
        for subscription in self._subscriptions:
            await subscription.close()
        self._subscriptions.clear()
        self.streams.clear()
        await self.bus.flush()

    # ---------------------------------------------------------------- commands

    async def _exec_start(self, body: m.ExecStart) -> m.ExecState:
        self.asked.append(body)
        command = self.commands.get(body.exec_id)
        if command is None:
            command = self.commands[body.exec_id] = Command(body)
            self._begin(command)
        return command.state()

    def _begin(self, command: Command) -> None:
        match command.start.argv:
            case ["echo", text]:
                command.print("stdout", text.encode())
                command.print("stderr", b"!")
                command.exit_code = 0
            case ["flood", size]:
                for at in range(0, int(size), 65536):
                    command.print("stdout", pattern(at, min(65536, int(size) - at)))
                command.exit_code = 0
            case ["cat"] | ["sleep"]:
                pass
            case argv:
                raise NotFound(f"there is no program {argv[0]!r}")

    async def _exec_wait(self, body: m.ExecWait) -> m.ExecState:
        self.asked.append(body)
        return self._command(body.exec_id).state()

    async def _exec_signal(self, body: m.ExecSignal) -> m.ExecState:
        self.asked.append(body)
        command = self._command(body.exec_id)
        command.signal = body.signal
        await self._push_all(command)
        return command.state()

    async def _exec_resize(self, body: m.ExecResize) -> m.Ok:
        command = self._command(body.exec_id)
        command.sizes.append((body.size.rows, body.size.cols))
        return m.Ok()

    async def _exec_attach(self, body: m.ExecAttach) -> m.ExecState:
        self.attached.append(body)
        command = self._command(body.exec_id)
        stream = Stream(command, body.deliver, body.window_bytes, body.position, body.position)

        async def on_frame(_: str, data: bytes) -> None:
            await self._hear(stream, StreamFrame.decode(data))

        self._subscriptions.append(
            await self.bus.subscribe_raw(s.io_subject(self.name, body.stream), on_frame)
        )
        await self.bus.flush()
        self.streams[body.stream] = stream
        await self._push(stream)
        return command.state()

    async def print(self, exec_id: str, data: bytes) -> None:
        """Let a command print."""
        command = self.commands[exec_id]
        command.print("stdout", data)
        await self._push_all(command)

    async def _hear(self, stream: Stream, frame: StreamFrame) -> None:
        if stream not in self.streams.values():
            return
        await self.reading.wait()
        if frame.kind is Kind.DETACH:
            self.streams = {k: v for k, v in self.streams.items() if v is not stream}
        elif frame.kind is Kind.TAKEN:
            stream.taken = max(stream.taken, frame.position)
            await self._push(stream)
        elif self.lose_inputs:
            self.lose_inputs -= 1
        else:
            command = stream.command
            command.feed(frame.position, frame.payload, end=bool(frame.flags & Flag.CLOSED))
            closed = Flag.CLOSED if command.is_stdin_closed else Flag(0)
            await self._tell(stream, StreamFrame(Kind.INPUT, len(command.stdin), b"", closed))
            await self._push_all(command)

    async def _push_all(self, command: Command) -> None:
        for stream in list(self.streams.values()):
            if stream.command is command:
                await self._push(stream)

    async def _push(self, stream: Stream) -> None:
        command = stream.command
        while stream.position < command.size and not stream.is_over:
            room = stream.taken + stream.window_bytes - stream.position
            if self.ignores_credit:
                room = DATA_BYTES
            if room <= 0:
                return
            name, data = command.piece(stream.position, min(room, DATA_BYTES))
            flags = Flag.STDERR if name == "stderr" else Flag(0)
            frame = StreamFrame(Kind.DATA, stream.position, data, flags)
            stream.position += len(data)
            stream.most_under_way = max(stream.most_under_way, stream.position - stream.taken)
            if self.lose:
                self.lose -= 1
            else:
                await self._tell(stream, frame)
        if command.is_over and not stream.is_over:
            stream.is_over = True
            await self._tell(stream, StreamFrame(Kind.END, command.size, command.state().encode()))

    async def _tell(self, stream: Stream, frame: StreamFrame) -> None:
        await self.bus.publish_raw(stream.deliver, frame.encode())

    def _command(self, exec_id: str) -> Command:
        if exec_id not in self.commands:
            raise NotFound(f"there is no command {exec_id}")
        return self.commands[exec_id]

    # ------------------------------------------------------------------- files

    async def _file_stat(self, body: m.FileStat) -> m.FileEntry:
        size = len(self._file(body.path))
        return m.FileEntry(
            name=body.path.rpartition("/")[2],
            path=body.path,
            type=m.FileType.FILE,
            size=size,
            mode=0o644,
            uid=0,
            gid=0,
            modified_at=time.time(),
        )

    async def _file_read(self, body: m.FileRead) -> m.FileData:
        content = self._file(body.path)
        end = body.position + body.length
        return m.FileData(
            data=content[body.position : end], position=body.position, end=end >= len(content)
        )

    async def _file_write(self, body: m.FileWrite) -> m.Ok:
        self.asked.append(body.model_copy(update={"data": b""}))
        part = self.uploads.setdefault(body.upload, bytearray())
        if body.position != len(part):
            raise Conflict(f"{len(part)} comes next, not {body.position}")
        part += body.data
        if body.end:
            self.files[body.path] = bytes(self.uploads.pop(body.upload))
        return m.Ok()

    def _file(self, path: str) -> bytes:
        if path not in self.files:
            raise FileProblem(f"{path}: no such file", errno="ENOENT", path=path)
        return self.files[path]

    async def _stop(self, body: m.SandboxStop) -> m.SandboxInfo:
        self.asked.append(body)
        raise NotFound(f"there is no sandbox {body.sandbox_id}")
