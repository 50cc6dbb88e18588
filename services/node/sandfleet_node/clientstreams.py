"""Streams of output and input between clients and commands, with credit; see `streams`."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

from sandfleet_common.errors import BadRequest, NotFound, SandfleetError
from sandfleet_common.logs import Logger
from sandfleet_common.messages import ExecAttach, Failure
from sandfleet_common.states import State
from sandfleet_common.streams import DATA_BYTES, SILENCE_SECONDS, Flag, Kind, StreamFrame

from .commands import Command
from .sandbox import Sandbox

Publish = Callable[[str, bytes], Awaitable[None]]
Start = Callable[[Coroutine[Any, Any, None], str], object]
Awake = Callable[[Sandbox], Awaitable[None]]
"""Resumes a sandbox that is paused."""

_INBOX = re.compile(r"_INBOX(?:\.[A-Za-z0-9_-]+){1,8}")


def check_inbox(subject: str) -> str:
    """Return `subject` if it is a client's inbox: a node publishes nowhere else on request.

    Raises:
        BadRequest: it is not.
    """
    if _INBOX.fullmatch(subject) is None:
        raise BadRequest("deliver: must be an inbox, _INBOX.<user>.<...>", field="deliver")
    return subject


class ClientStream:
    """One client's view of one command. Sends what the client has room for, in order."""

    __slots__ = (
        "_owner",
        "_told",
        "command",
        "deliver",
        "heard_at",
        "is_over",
        "is_pumping",
        "sandbox",
        "sent",
        "taken",
        "token",
        "window",
    )

    def __init__(
        self, owner: ClientStreams, sandbox: Sandbox, command: Command, body: ExecAttach, now: float
    ) -> None:
        self._owner = owner
        self._told = (0, False)
        self.sandbox = sandbox
        self.command = command
        self.token = body.stream
        self.deliver = body.deliver
        self.window = body.window_bytes
        self.sent = self.taken = body.position
        self.heard_at = now
        self.is_over = False
        self.is_pumping = False

    def wake(self) -> None:
        """Something is new: send what can be sent."""
        if not self.is_pumping and not self.is_over and self._has_work():
            self.is_pumping = True
            self._owner.start(self._pump(), f"stream {self.token}")

    def input_state(self) -> tuple[int, bool]:
        """Return what an INPUT frame says."""
        return self.command.stdin_taken, self.command.stdin_closed

    def _has_work(self) -> bool:
        if self.input_state() != self._told:
            return True
        if self.sent < self.command.log.end:
            return self.sent < self.taken + self.window
        return not self.command.is_running

    async def _pump(self) -> None:
        try:
            while not self.is_over and self._has_work():
                await self._send_next()
        except FileNotFoundError:
            gone = NotFound("the command's output is no longer on record")
            await self._owner.close(self, gone)
        except SandfleetError:
            self._owner.drop(self)  # the bus is closed: the client attaches again
        finally:
            self.is_pumping = False
        if not self.is_over and self._has_work():
            self.wake()

    async def _send_next(self) -> None:
        if self.input_state() != self._told:
            self._told = self.input_state()
            await self.tell_input()
        elif self.sent < self.command.log.end:
            room = min(self.taken + self.window - self.sent, DATA_BYTES)
            for is_stderr, data in self.command.log.read(self.sent, room):
                flags = Flag.STDERR if is_stderr else Flag(0)
                await self._send(StreamFrame(Kind.DATA, self.sent, data, flags))
                self.sent += len(data)
            self.sandbox.touch()
        else:
            state = self.command.as_message(self.sandbox.id)
            self._owner.drop(self)
            await self._send(StreamFrame(Kind.END, self.sent, state.encode()))

    async def tell_input(self) -> None:
        """Say how much input was taken."""
        taken, closed = self.input_state()
        flags = Flag.CLOSED if closed else Flag(0)
        await self._send(StreamFrame(Kind.INPUT, taken, b"", flags))

    async def _send(self, frame: StreamFrame) -> None:
        await self._owner.publish(self.deliver, frame.encode())


class ClientStreams:
    """All streams of the node's commands, by token."""

    def __init__(self, publish: Publish, start: Start, awake: Awake, log: Logger) -> None:
        self.publish = publish
        self.start = start
        self._awake = awake
        self._log = log
        self._streams: dict[str, ClientStream] = {}

    def __len__(self) -> int:
        return len(self._streams)

    def attach(self, sandbox: Sandbox, command: Command, body: ExecAttach) -> None:
        """Open a stream; the same token again opens it anew.

        Raises:
            BadRequest: `deliver` is no inbox, or the position is beyond the output.
        """
        check_inbox(body.deliver)
        if body.position > command.log.end:
            raise BadRequest(
                f"position: {body.position} is beyond the {command.log.end} bytes of output",
                field="position",
            )
        known = self._streams.get(body.stream)
        if known is not None:
            self.drop(known)
        stream = ClientStream(self, sandbox, command, body, time.monotonic())
        self._streams[body.stream] = stream
        command.watchers = [*(command.watchers or ()), stream]
        stream.wake()

    async def on_message(self, token: str, payload: bytes) -> None:
        """Take one frame from a client. What makes no sense is dropped."""
        stream = self._streams.get(token)
        if stream is None:
            return
        try:
            frame = StreamFrame.decode(payload)
        except BadRequest as problem:
            self._log.warning("stream.bad_frame", error=problem.message)
            return
        stream.heard_at = time.monotonic()
        if frame.kind is Kind.TAKEN:
            stream.taken = max(stream.taken, min(frame.position, stream.sent))
            stream.wake()
        elif frame.kind is Kind.STDIN:
            if stream.sandbox.state is State.PAUSED:
                # Beside the others' frames: they shall not wait for this sandbox.
                self.start(self._resume_and_feed(stream, frame), f"resume {stream.sandbox.id}")
            else:
                await self._feed(stream, frame)
        elif frame.kind is Kind.DETACH:
            self.drop(stream)

    async def _resume_and_feed(self, stream: ClientStream, frame: StreamFrame) -> None:
        try:
            await self._awake(stream.sandbox)
        except SandfleetError:
            return  # it is ending, as its streams will be told
        await self._feed(stream, frame)

    async def _feed(self, stream: ClientStream, frame: StreamFrame) -> None:
        link = stream.sandbox.link
        if link is None:
            return
        stream.sandbox.touch()
        closes = bool(frame.flags & Flag.CLOSED)
        end = frame.position + len(frame.payload)
        follows = stream.command.feed(link, frame.position, frame.payload, closes=closes)
        # A gap, or more than the window: the client sends again from what was taken.
        if not follows or end > stream.command.stdin_sent:
            await stream.tell_input()

    def drop(self, stream: ClientStream) -> None:
        """Forget a stream; its command goes on."""
        stream.is_over = True
        if self._streams.get(stream.token) is stream:
            del self._streams[stream.token]
        watchers = stream.command.watchers
        if watchers is not None and stream in watchers:
            stream.command.watchers = [w for w in watchers if w is not stream] or None

    async def close(self, stream: ClientStream, error: SandfleetError) -> None:
        """Tell the client that its stream is over, and why."""
        self.drop(stream)
        frame = StreamFrame(Kind.GONE, stream.sent, Failure.from_error(error).encode())
        try:
            await self.publish(stream.deliver, frame.encode())
        except SandfleetError as problem:
            self._log.warning("stream.gone_untold", error=problem.message)

    def forget(self, sandbox: Sandbox, error: SandfleetError) -> None:
        """Close the streams of a sandbox that ends."""
        for stream in [s for s in self._streams.values() if s.sandbox is sandbox]:
            self.drop(stream)
            self.start(self.close(stream, error), f"close stream {stream.token}")

    def expire(self, now: float) -> None:
        """Forget streams whose clients have been silent for a minute."""
        for stream in list(self._streams.values()):
            if now - stream.heard_at > SILENCE_SECONDS:
                self.drop(stream)
