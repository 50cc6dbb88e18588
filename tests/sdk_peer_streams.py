"""A command of the peer's, a real process of this host, and the streams that carry its bytes."""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.ids import node_of
from sandfleet_common.streams import DATA_BYTES, Flag, Kind, StreamFrame

if TYPE_CHECKING:
    from sdk_peer import Peer


@dataclass
class Command:
    """One process and all it has printed."""

    request: m.ExecStart
    process: asyncio.subprocess.Process
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    output: list[tuple[Flag, bytes]] = field(default_factory=list[tuple[Flag, bytes]])
    size: int = 0
    dropped: int = 0
    stdin_bytes: int = 0
    stdin_closed: bool = False
    timed_out: bool = False
    change: asyncio.Condition = field(default_factory=asyncio.Condition)

    def state(self, position: int = 0) -> m.ExecState:
        code = self.process.returncode if self.ended_at else None
        return m.ExecState(
            sandbox_id=self.request.sandbox_id,
            exec_id=self.request.exec_id,
            state="running" if self.ended_at is None else "exited",
            pid=self.process.pid,
            argv=self.request.argv,
            started_at=self.started_at,
            ended_at=self.ended_at,
            exit_code=code if code is not None and code >= 0 else None,
            signal=-code if code is not None and code < 0 else None,
            timed_out=self.timed_out,
            output_bytes=self.size,
            dropped_bytes=self.dropped,
            stdin_bytes=self.stdin_bytes,
            stdin_closed=self.stdin_closed,
            position=position,
        )

    def chunks(self, position: int, most: int) -> list[tuple[Flag, bytes]]:
        """Return output from `position` on, at most `most` bytes of it."""
        found: list[tuple[Flag, bytes]] = []
        at = 0
        for flag, data in self.output:
            piece = data[max(0, position - at) :][:most]
            at += len(data)
            if piece and at > position:
                found.append((flag, piece))
                most -= len(piece)
            if most <= 0:
                break
        return found

    async def add(self, flag: Flag, data: bytes) -> None:
        async with self.change:
            kept = data[: max(0, self.request.output_limit_bytes - self.size)]
            self.dropped += len(data) - len(kept)
            if kept:
                self.output.append((flag, kept))
                self.size += len(kept)
            self.change.notify_all()


class Stream:
    """One attachment: output under credit to the client, input from it."""

    def __init__(self, peer: Peer, command: Command, body: m.ExecAttach) -> None:
        self._peer = peer
        self._command = command
        self._body = body
        self._taken = body.position
        self._position = body.position
        self._told_input = -1
        self._is_over: bool = False

    async def run(self) -> None:
        bus = self._peer.node_bus
        io = s.io_subject(node_of(self._body.sandbox_id), self._body.stream)
        inbound = await bus.subscribe_raw(io, self._on_frame)
        command = self._command
        try:
            while not self._is_over:
                async with command.change:
                    await command.change.wait_for(self._has_work)
                await self._send_all()
        finally:
            await inbound.close()

    def _has_work(self) -> bool:
        command = self._command
        room: bool = self._taken + self._body.window_bytes > self._position
        if command.size > self._position and room:
            return True
        if command.ended_at is not None and self._position >= command.size:
            return True
        if command.stdin_bytes != self._told_input:
            return True
        return self._is_over

    async def _send_all(self) -> None:
        command = self._command
        if command.stdin_bytes != self._told_input:
            self._told_input = command.stdin_bytes
            closed = Flag.CLOSED if command.stdin_closed else Flag(0)
            await self._send(StreamFrame(Kind.INPUT, command.stdin_bytes, b"", closed))
        room = self._taken + self._body.window_bytes - self._position
        for flag, data in command.chunks(self._position, min(room, DATA_BYTES)):
            frame = StreamFrame(Kind.DATA, self._position, data, flag)
            self._position += len(data)
            peer = self._peer
            beyond = self._position - self._taken
            peer.sent_most_beyond_credit = max(peer.sent_most_beyond_credit, beyond)
            peer.sent_frames += 1
            if peer.sent_frames not in peer.lose_frames:
                await self._send(frame)
        if command.ended_at is not None and self._position >= command.size:
            await self._send(StreamFrame(Kind.END, 0, command.state().encode()))
            self._is_over = True

    async def _send(self, frame: StreamFrame) -> None:
        await self._peer.node_bus.publish_raw(self._body.deliver, frame.encode())

    async def _on_frame(self, _: str, payload: bytes) -> None:
        frame = StreamFrame.decode(payload)
        command = self._command
        async with command.change:
            if frame.kind is Kind.TAKEN:
                self._taken = max(self._taken, frame.position)
            elif frame.kind is Kind.DETACH:
                self._is_over = True
            elif frame.kind is Kind.STDIN:
                await self._feed(frame)
            command.change.notify_all()

    async def _feed(self, frame: StreamFrame) -> None:
        command = self._command
        assert command.process.stdin is not None
        fresh = frame.payload[command.stdin_bytes - frame.position :]
        if frame.position <= command.stdin_bytes and fresh:
            command.process.stdin.write(fresh)
            with contextlib.suppress(ConnectionError):
                await command.process.stdin.drain()
            command.stdin_bytes += len(fresh)
        if frame.flags & Flag.CLOSED and not command.stdin_closed:
            command.stdin_closed = True
            command.process.stdin.close()
            self._told_input = -1
