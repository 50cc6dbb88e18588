"""One command on one session: the bridge between a socket's channel and a node's stream.

The command belongs to its sandbox. A channel that goes away detaches from it, and
the command goes on; a stream that breaks, because the bus was down or the node
service started anew, is opened again without the client noticing.
"""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass
from typing import Any

from sandfleet.calls import pause
from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import (
    Broken,
    Busy,
    Conflict,
    SandfleetError,
    Unavailable,
    Unreachable,
)
from sandfleet_common.logs import Logger
from sandfleet_common.streams import KEEPALIVE_SECONDS, Flag, Kind, StreamFrame

from .asking import Upstream
from .bodies import build
from .config import GatewaySettings
from .envelope import AttachBody, Command, binary, error_text, gone, state_text
from .flow import Flow, Gap
from .metrics import GatewayMetrics
from .nodestream import NodeStream
from .outlet import Item, Outlet

GAPS_MAX = 20
"""Streams opened anew in a row without a byte of progress, before it is given up."""
COMMANDS_WAITING = 32
"""Text messages of one channel that may wait for those before them."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What the channels of a session share."""

    sandbox_id: str
    request_id: str
    upstream: Upstream
    outlet: Outlet
    settings: GatewaySettings
    metrics: GatewayMetrics
    log: Logger


class Channel:
    """A command on a session. `run` is its life; the other methods are called by the session."""

    def __init__(self, first: Command, around: Surroundings) -> None:
        self.number = first.channel
        self._first = first
        self._around = around
        self._flow = Flow.at(0, around.settings.window_bytes)
        self._exec_id = ""
        self._stream: NodeStream | None = None
        self._speaking = asyncio.Lock()
        self._is_open = False
        self._is_over = False
        self._is_detached = False
        self._early: list[Item] = []
        self._commands: asyncio.Queue[Command] = asyncio.Queue(COMMANDS_WAITING)
        self._wake = asyncio.Event()
        self._broken: str | None = None
        self._heard = False
        self._gaps = 0

    # ------------------------------------------------- called by the session

    def tell(self, command: Command) -> None:
        """Take a text message; it is worked off after those before it.

        Raises:
            Busy: too many wait.
        """
        try:
            self._commands.put_nowait(command)
        except asyncio.QueueFull:
            raise Busy(f"channel {self.number}: too many messages wait") from None
        self._wake.set()

    def break_off(self, cause: str) -> None:
        """Open the stream anew: frames may have been lost."""
        if self._stream is not None and not self._is_over:
            self._broken = cause
            self._wake.set()

    async def take(self, frame: StreamFrame) -> None:
        """Take a binary frame of the client's.

        Raises:
            SandfleetError: the client does not keep to the protocol; says how.
        """
        if self._is_over:
            return
        if frame.kind is Kind.DETACH:
            self._detach()
            return
        if frame.kind is Kind.STDIN and not self._is_open and self._first.type != "start":
            raise Conflict("input before the answer to `attach`, which says where to go on")
        async with self._speaking:
            onward = self._flow.from_client(frame)
            if onward is None:
                return
            if frame.kind is Kind.STDIN:
                self._around.metrics.channel_bytes.labels("in").inc(len(onward.payload))
            await self._say(onward)

    def fail(self, error: SandfleetError) -> None:
        """End the channel with a frame that says why."""
        if not self._is_over:
            self._put(gone(error))
            self._finish()

    # ------------------------------------------------------------ its own life

    async def run(self) -> None:
        """Open, carry, and let go."""
        self._around.metrics.channels.inc()
        try:
            await self._open(self._first)
            await self._carry()
        except SandfleetError as problem:
            self._around.outlet.put(self.number, Item(error_text(self.number, problem)))
            self.fail(problem)
        finally:
            self.fail(Broken("the gateway failed inside; its log says more"))
            for item in self._early:
                item.drop()
            self._around.metrics.channels.dec()
            await self._let_go()

    async def _open(self, command: Command) -> None:
        body: AttachBody
        if command.type == "start":
            state = await self._start(command)
            body = AttachBody(exec_id=state.exec_id)
        else:
            body = build(AttachBody, {}, command.body)
        self._exec_id = body.exec_id
        window = min(body.window_bytes, self._around.settings.window_bytes)
        # What came for the command's input meanwhile stays.
        self._flow.window_bytes = window
        self._flow.position = self._flow.sent = self._flow.taken = body.position
        state = await self._attach()
        if self._is_detached:
            return
        self._around.outlet.put(self.number, Item(state_text(self.number, state)))
        self._is_open = True
        while self._early:
            self._around.outlet.put(self.number, self._early.pop(0))

    async def _start(self, command: Command) -> m.ExecState:
        fixed: dict[str, Any] = {"sandbox_id": self._around.sandbox_id}
        if "request_id" not in command.body:
            fixed["request_id"] = self._around.request_id
        body = build(m.ExecStart, fixed, command.body)
        # Its output comes by the stream.
        return await self._around.upstream.ask(
            s.EXEC_START, body.model_copy(update={"wait_seconds": 0})
        )

    async def _carry(self) -> None:
        loop = asyncio.get_running_loop()
        speak_at = loop.time() + KEEPALIVE_SECONDS
        while not self._is_over:
            if self._broken is not None:
                await self._attach_again(self._broken)
            while not self._commands.empty() and not self._is_over:
                await self._obey(self._commands.get_nowait())
            if await self._is_quiet():
                self.break_off("quiet")
            if loop.time() >= speak_at:
                speak_at = loop.time() + KEEPALIVE_SECONDS
                async with self._speaking:
                    await self._say(self._flow.credit())

    async def _is_quiet(self) -> bool:
        """Wait for something to do; return whether the node has said nothing for too long."""
        if self._broken is not None or self._is_over or not self._commands.empty():
            return False
        self._wake.clear()
        try:
            async with asyncio.timeout(self._around.settings.quiet_seconds):
                await self._wake.wait()
                return False
        except TimeoutError:
            heard, self._heard = self._heard, False
            return not heard and not self._flow.is_client_slow()

    async def _obey(self, command: Command) -> None:
        fixed: dict[str, Any] = {"sandbox_id": self._around.sandbox_id, "exec_id": self._exec_id}
        put, upstream = self._around.outlet.put, self._around.upstream
        try:
            if command.type == "signal":
                state = await upstream.ask(s.EXEC_SIGNAL, build(m.ExecSignal, fixed, command.body))
                put(self.number, Item(state_text(self.number, state)))
            elif command.type == "resize":
                await upstream.ask(s.EXEC_RESIZE, build(m.ExecResize, fixed, command.body))
            elif command.type == "detach":
                self._detach()
            else:
                raise Conflict(f"channel {self.number} is in use by {self._exec_id}")
        except SandfleetError as problem:
            put(self.number, Item(error_text(self.number, problem)))

    # ------------------------------------------------------------- the stream

    async def _attach(self) -> m.ExecState:
        """Open a stream at what the client has taken."""
        around, flow = self._around, self._flow
        stream = self._stream = NodeStream(
            around.upstream.bus, around.sandbox_id, around.upstream.transport.homes
        )
        await stream.listen(self._hear)
        request = stream.request(self._exec_id, flow, around.request_id)
        state = await around.upstream.ask(s.EXEC_ATTACH, request)
        self._heard = True
        async with self._speaking:
            known = (flow.input_acknowledged, flow.is_input_refused)
            frames = flow.opened(state)
            stream.is_open = True
            for frame in (*frames, flow.credit()):
                await self._say(frame)
        if self._is_open and known != (flow.input_acknowledged, flow.is_input_refused):
            # The frame that said so may have been lost.
            closed = Flag.CLOSED if flow.is_input_refused else Flag(0)
            self._put(StreamFrame(Kind.INPUT, flow.input_acknowledged, b"", closed))
        return state

    async def _attach_again(self, cause: str) -> None:
        around = self._around
        around.metrics.reattached.labels(cause).inc()
        around.log.debug("ws.reattach", channel=self.number, exec=self._exec_id, cause=cause)
        ends = asyncio.get_running_loop().time() + around.settings.reattach_seconds
        attempt = self._gaps = self._gaps + 1 if cause == "gap" else 0
        if attempt > GAPS_MAX:
            raise Unreachable("output keeps getting lost between the node and the gateway")
        while not self._is_over:
            if attempt > 1:
                await asyncio.sleep(pause(attempt, random.random()))
            self._broken = None
            await self._let_go()
            try:
                await self._attach()
                return
            except Unavailable:
                if asyncio.get_running_loop().time() >= ends:
                    raise
            attempt += 1

    def _hear(self, stream: NodeStream, data: bytes) -> None:
        """Take a frame of the node's."""
        if stream is not self._stream or self._is_over or self._broken is not None:
            return
        self._heard = True
        before = self._flow.position
        try:
            frame = self._flow.from_node(StreamFrame.decode(data))
        except Gap:
            self._broken = "gap"
            self._wake.set()
            return
        except SandfleetError as problem:
            self._around.log.error("ws.bad_node_frame", channel=self.number, error=problem)
            self.fail(problem)
            return
        if self._flow.position > before:
            self._gaps = 0
        if frame is None:
            return
        self._put(frame)
        if frame.kind in (Kind.END, Kind.GONE):
            self._finish()

    def _put(self, frame: StreamFrame) -> None:
        metrics, flow = self._around.metrics, self._flow
        size = len(frame.payload) if frame.kind is Kind.DATA else 0
        metrics.held.inc(size)

        def on_sent() -> None:
            flow.was_sent(frame)
            metrics.held.dec(size)
            metrics.channel_bytes.labels("out").inc(size)

        def on_dropped() -> None:
            metrics.held.dec(size)

        item = Item(binary(self.number, frame), on_sent, on_dropped)
        if self._is_open:
            self._around.outlet.put(self.number, item)
        else:
            self._early.append(item)

    async def _say(self, frame: StreamFrame) -> None:
        stream = self._stream
        if stream is None or not stream.is_open or self._broken is not None:
            return  # a new stream begins with all that is not acknowledged
        try:
            await stream.say(frame)
        except Unreachable:
            self.break_off("bus")

    def _detach(self) -> None:
        self._is_detached = True
        self._around.outlet.forget(self.number)
        self._finish()

    def _finish(self) -> None:
        self._is_over = True
        self._wake.set()

    async def _let_go(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            await stream.close()
