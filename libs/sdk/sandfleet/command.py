"""A command that runs in a sandbox: its output as it comes, its input, its end.

    command = await sandbox.start("make -j4")
    async for chunk in command:
        print(chunk.data.decode(), end="")
    result = await command.wait()

The command belongs to the sandbox, not to this object: a reader may go away, and
another may attach to the same `exec_id` and read on from any position.
"""

from __future__ import annotations

import asyncio
import random
from typing import Self

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import Conflict, SandfleetError, Unavailable
from sandfleet_common.streams import KEEPALIVE_SECONDS, StreamFrame

from .calls import CALL_SECONDS, call, pause
from .connection import Connection
from .results import Result, result_of
from .stream import Gap, Output, StreamState
from .transport import WINDOW_BYTES, Link, LinkLost

HOLD_SECONDS = 10.0
"""How long a node holds its answer to a wait; then the wait is asked again. Short enough
that a node service that dies meanwhile does not hold its askers up for long."""
QUIET_SECONDS = 5.0
"""A stream that says nothing for so long is looked after."""
LONGEST_QUIET_SECONDS = 60.0


def quiet_seconds(fruitless: int) -> float:
    """Return how long a stream may be silent after so many links that brought nothing."""
    return min(QUIET_SECONDS * 2 ** min(fruitless, 8), LONGEST_QUIET_SECONDS)


class AsyncCommand:
    """A command in a sandbox. Iterating gives its output, stdout and stderr in order."""

    def __init__(
        self,
        connection: Connection,
        state: m.ExecState,
        *,
        position: int = 0,
        window_bytes: int = WINDOW_BYTES,
    ) -> None:
        self._connection = connection
        self._start = position
        self._state = state
        self._is_read = False
        output = Output(window_bytes, position=position, taken=position)
        output.credit()
        self._stream = StreamState(output)
        self._stream.input.position = self._stream.input.acknowledged = state.stdin_bytes
        self._link: Link | None = None
        self._pump: asyncio.Task[None] | None = None
        self._change = asyncio.Event()
        self._result: Result | None = None

    @property
    def exec_id(self) -> str:
        """Its name in the sandbox: attach to it from anywhere, at any time."""
        return self._state.exec_id

    @property
    def sandbox_id(self) -> str:
        """The sandbox it runs in."""
        return self._state.sandbox_id

    @property
    def pid(self) -> int | None:
        """Its process id inside the sandbox."""
        return self._state.pid

    @property
    def position(self) -> int:
        """How many bytes of output were read; attaching from here continues."""
        return self._stream.output.taken

    # ------------------------------------------------------------------ output

    def __aiter__(self) -> Self:
        """Iterate over its output until it ends."""
        return self

    async def __anext__(self) -> m.Chunk:
        """Return the next piece of output: `chunk.stream`, `chunk.data`."""
        self._is_read = True
        self._open()
        stream = self._stream
        while (chunk := stream.output.take()) is None:
            if stream.failure is not None:
                raise stream.failure
            if stream.end is not None:
                raise StopAsyncIteration
            await self._changed()
        if stream.output.owes_credit():
            await self._send([stream.output.credit()])
        return chunk

    async def wait(self) -> Result:
        """Wait until it ends, and return how.

        Unless somebody has iterated over the command, the result has its output.

        Raises:
            Interrupted: its node cannot tell how it ended.
            SandboxGone, NodeLost: its sandbox ended first.
        """
        if self._result is None:
            self._result = await self._wait()
        return self._result

    async def state(self) -> m.ExecState:
        """Return where it is now: running or not, bytes so far, exit code."""
        at = self._stream.output.position
        self._state = await self._ask_state(at, wait_seconds=0)
        return self._state.model_copy(update={"output": []})

    async def output(self) -> list[m.Chunk]:
        """Return what it has printed so far and nobody has iterated over; does not wait."""
        chunks: list[m.Chunk] = []
        at = self._stream.output.position
        while True:
            state = await self._ask_state(at, wait_seconds=0)
            chunks += state.output
            at += sum(len(chunk.data) for chunk in state.output)
            if not state.output or at >= state.output_bytes:
                return chunks

    # ------------------------------------------------------------------- input

    async def write(self, data: bytes | str) -> None:
        """Send input; waits while the command is slow to take it.

        Raises:
            Conflict: it takes no input, or has ended.
        """
        rest = memoryview(data.encode() if isinstance(data, str) else data)
        self._open()
        flow = self._stream.input
        while rest:
            self._check_input()
            if room := flow.room():
                piece, rest = bytes(rest[:room]), rest[room:]
                await self._send(flow.add(piece))
            else:
                await self._changed()

    async def close_stdin(self) -> None:
        """End its input; returns when all of it has reached the sandbox."""
        self._open()
        flow = self._stream.input
        if not flow.is_closed:
            await self._send(flow.close())
        while not flow.is_settled() and not self._stream.is_over:
            await self._changed()

    async def feed(self, data: bytes | str) -> None:
        """Send all of its input and close it; a command that stops reading early is fine."""
        try:
            await self.write(data)
            await self.close_stdin()
        except Conflict:
            return

    # ----------------------------------------------------------------- control

    async def signal(self, number: int) -> None:
        """Send a signal to its process group: `await command.signal(signal.SIGINT)`."""
        await self._signal(number, tree=False)

    async def kill(self) -> None:
        """Kill it and all that it started, however it forked."""
        await self._signal(9, tree=True)

    async def resize(self, rows: int, cols: int) -> None:
        """Tell it that its terminal has another size."""
        body = m.ExecResize.of(
            sandbox_id=self.sandbox_id,
            exec_id=self.exec_id,
            size=m.PtySize.of(rows=rows, cols=cols),
        )
        await call(self._connection.transport, s.EXEC_RESIZE, body)

    async def detach(self) -> None:
        """Let go of its stream; the command goes on."""
        if self._pump is not None:
            self._pump.cancel()
            await asyncio.wait([self._pump])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.detach()

    # ---------------------------------------------------------------- internal

    async def _wait(self) -> Result:
        chunks: list[m.Chunk] = []
        at = self._start
        state = self._stream.end or await self._ask_state(at, wait_seconds=HOLD_SECONDS)
        while True:
            if not self._is_read:
                chunks += state.output
                at += sum(len(chunk.data) for chunk in state.output)
            over = state.state != "running"
            if over and (self._is_read or at >= state.output_bytes or state.state == "lost"):
                self._state = state
                return result_of(state, chunks)
            state = await self._ask_state(at, wait_seconds=0 if over else HOLD_SECONDS)

    async def _ask_state(self, position: int, *, wait_seconds: float) -> m.ExecState:
        body = m.ExecWait(
            sandbox_id=self.sandbox_id,
            exec_id=self.exec_id,
            position=position,
            wait_seconds=wait_seconds,
        )
        return await call(
            self._connection.transport,
            s.EXEC_WAIT,
            body,
            within=CALL_SECONDS + wait_seconds,
            held=wait_seconds,
        )

    async def _signal(self, number: int, *, tree: bool) -> None:
        body = m.ExecSignal.of(
            sandbox_id=self.sandbox_id, exec_id=self.exec_id, signal=int(number), tree=tree
        )
        self._state = await call(self._connection.transport, s.EXEC_SIGNAL, body)

    def _check_input(self) -> None:
        stream = self._stream
        if stream.failure is not None:
            raise stream.failure
        if stream.input.is_closed:
            raise Conflict(f"the input of {self.exec_id} was closed already")
        if stream.end is not None or stream.input.is_refused:
            raise Conflict(f"{self.exec_id} takes no more input: it has ended or closed it")

    def _open(self) -> None:
        if self._pump is None or (self._pump.done() and not self._stream.is_over):
            self._pump = self._connection.tasks.start(self._carry(), f"stream {self.exec_id}")

    async def _changed(self) -> None:
        self._change.clear()
        await self._change.wait()

    async def _send(self, frames: list[StreamFrame]) -> None:
        link = self._link
        if link is None:
            return  # a new link is being made; it begins with all that is not acknowledged
        try:
            for frame in frames:
                await link.send(frame)
        except LinkLost:
            return

    async def _carry(self) -> None:
        """Keep a link until the stream is over; the only reader of frames."""
        stream = self._stream
        fruitless = 0
        try:
            while not stream.is_over:
                before = (stream.output.position, stream.input.acknowledged)
                link = await self._attach()
                try:
                    await self._send(stream.attached(link.state))
                    await self._receive(link, quiet_seconds(fruitless))
                except (Gap, LinkLost):
                    moved = (stream.output.position, stream.input.acknowledged) != before
                    fruitless = 0 if moved else fruitless + 1
                finally:
                    self._link = None
                    await link.close()
                if fruitless:
                    await asyncio.sleep(pause(fruitless, random.random()))
        except SandfleetError as problem:
            stream.failure = problem
        finally:
            self._change.set()

    async def _attach(self) -> Link:
        output = self._stream.output
        link = await self._connection.attach(
            self.sandbox_id,
            self.exec_id,
            position=output.position,
            window_bytes=output.window_bytes,
        )
        self._link = link
        return link

    async def _receive(self, link: Link, quiet: float) -> None:
        stream = self._stream
        loop = asyncio.get_running_loop()
        speak_at = loop.time() + KEEPALIVE_SECONDS
        while not stream.is_over:
            try:
                async with asyncio.timeout(quiet):
                    frame = await link.receive()
            except TimeoutError:
                await self._look_after()
            else:
                stream.handle(frame)
                self._change.set()
            if loop.time() >= speak_at:
                speak_at = loop.time() + KEEPALIVE_SECONDS
                await link.send(stream.output.credit())

    async def _look_after(self) -> None:
        """Find out whether a silent stream was forgotten, by a node that started anew, say.

        Raises:
            Gap: there is more than has arrived.
        """
        output = self._stream.output
        if output.position - output.taken >= output.window_bytes // 2:
            return  # silent because its reader is slow
        try:
            state = await self._ask_state(output.position, wait_seconds=0)
        except Unavailable:
            raise Gap from None
        flow = self._stream.input
        if (
            state.state != "running"
            or state.output_bytes > output.position
            or not flow.is_settled()  # the command is slow to read, or its node never got it
            or (flow.is_closed and not state.stdin_closed)
        ):
            raise Gap
