"""The node's end of one warm sandbox: requests in, answers out, through its agent's frames.

Nothing touches the disk: the zygote is a command that no table of commands knows, and what
it writes is read here. All of it may come from an attacker; what makes no sense ends it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from sandfleet_common import wire
from sandfleet_common.errors import Busy, NotFound, SandboxFailed
from sandfleet_common.wire import Frame, FrameFlag, FrameType, Tag
from sandfleet_node.agentlink import error_of
from sandfleet_node.sandbox import Sandbox

from .answers import Answer, Hello, Misbehaved, Reader, read_answer, read_hello
from .inside.frames import HELLO, RESULT, SETTLED

_ACK_BYTES = 128 * 1024
_COMPLAINT_BYTES = 2000


class Gone(Exception):
    """The sandbox ended, or answered nonsense; the message says which."""


class Warm:
    """One warm sandbox with its zygote."""

    def __init__(self, sandbox: Sandbox, on_settled: Callable[[Warm, str], None]) -> None:
        self.sandbox = sandbox
        self.number = sandbox.next_id()
        self.calls = 0
        self.oom_kills = 0
        """As last looked at."""
        self.started_at = time.monotonic()
        self.is_counted = False
        """The metrics know of it."""
        self.hello: Hello | None = None
        self.settling_since: float | None = None
        """Since when an answer is here and the sandbox is not ready again."""
        self.is_over = False
        self._on_settled = on_settled
        self._greeting: asyncio.Future[Hello] | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._reader = Reader()
        self._complaint = bytearray()
        self._got = self._acked = 0
        self._waiting = bytearray()
        self._sent = self._taken = 0
        sandbox.tap = self

    async def start(self, command: tuple[str, ...], opening: bytes, within: float) -> Hello:
        """Start the zygote and wait until it can be called.

        Raises:
            NotFound: the environment has no Python.
            SandboxFailed: it did not come up; says why.
        """
        self._greeting = asyncio.get_running_loop().create_future()
        fields: list[tuple[Tag, bytes | int | str]] = [(Tag.ARG, text) for text in command]
        ground = self.sandbox.ground
        fields += [(Tag.ENV, f"{name}={value}") for name, value in ground.env.items()]
        fields += [(Tag.ENV, f"{name}=1") for name in _ONE_THREAD]
        fields.append((Tag.CWD, "/"))
        self.sandbox.agent().send(
            FrameType.EXEC, self.number, flags=FrameFlag.STDIN, payload=wire.pack_fields(fields)
        )
        self._write(opening)
        try:
            async with asyncio.timeout(within):
                self.hello = await self._greeting
        except TimeoutError:
            raise SandboxFailed(f"its zygote was not ready within {within:g} s") from None
        except Gone as problem:
            raise SandboxFailed(f"its zygote did not start: {problem}") from None
        finally:
            self._greeting = None
        return self.hello

    async def call(self, request: bytes, within: float) -> Answer:
        """Send a request and return the answer.

        Raises:
            Gone: there will be none.
        """
        if self.is_over:
            raise Gone("the sandbox has ended")
        self.calls += 1
        answer = self._answer = asyncio.get_running_loop().create_future()
        self._acknowledge()
        self._write(request)
        try:
            async with asyncio.timeout(within):
                return await answer
        except TimeoutError:
            raise Gone(f"it did not answer within {within:g} s") from None
        finally:
            # The next call may have begun between the answer and now.
            if self._answer is answer:
                self._answer = None

    def end(self, reason: str) -> None:
        """Give it up: whoever waits for it is told."""
        self.is_over = True
        self._let_go()
        self.sandbox.tap = None
        for future in (self._greeting, self._answer):
            if future is not None and not future.done():
                future.set_exception(Gone(reason))
                future.exception()  # whoever waited may have gone

    def _let_go(self) -> None:
        """Take note that clearing up is over."""
        if self.settling_since is None:
            return
        self.settling_since = None
        self.sandbox.uses -= 1
        if not self.sandbox.uses and self.sandbox.turn is not None:
            self.sandbox.turn.is_quiet()

    # ------------------------------------------------------------ to the zygote

    def _write(self, data: bytes) -> None:
        self._waiting += data
        self._push()

    def _push(self) -> None:
        """Send as much as the agent's window allows."""
        link = self.sandbox.link
        while self._waiting and link is not None:
            room = self._taken + wire.WINDOW_BYTES - self._sent
            part = bytes(self._waiting[: min(room, wire.FRAME_DATA_MAX_BYTES)])
            if room <= 0:
                return
            try:
                link.send(FrameType.STDIN, self.number, position=self._sent, payload=part)
            except Busy:
                self._lost("its agent does not read")
                return
            self._sent += len(part)
            del self._waiting[: len(part)]

    def _acknowledge(self) -> None:
        link = self.sandbox.link
        if link is not None and self._got > self._acked:
            self._acked = self._got
            try:
                link.send(FrameType.ACK, self.number, position=self._got)
            except Busy:
                self._lost("its agent does not read")

    # ---------------------------------------------------------- from the zygote

    def on_frame(self, frame: Frame) -> None:
        """Take a frame of the zygote's command."""
        if frame.type is FrameType.OUTPUT:
            self._on_output(frame)
        elif frame.type is FrameType.STDIN_ACK:
            self._taken = max(self._taken, min(frame.position, self._sent))
            self._push()
        elif frame.type is FrameType.EXIT:
            self._forget()
            said = self._complaint.decode("utf-8", "replace").strip().rpartition("\n")[2]
            self._lost(f"the zygote ended{': ' if said else ''}{said}")
        elif frame.type is FrameType.ERROR:
            self._on_error(frame)

    def _forget(self) -> None:
        link = self.sandbox.link
        if link is not None:
            link.tell(FrameType.FORGET, self.number)

    def _on_error(self, frame: Frame) -> None:
        problem = error_of(frame)
        if problem.fields.get("errno") == "ENOENT" and self._greeting is not None:
            if not self._greeting.done():
                self._greeting.set_exception(
                    NotFound("the environment has no python3, which function calls need")
                )
            return
        self._lost(problem.message)

    def _on_output(self, frame: Frame) -> None:
        self._got = max(self._got, frame.position + len(frame.payload))
        if self._got - self._acked >= _ACK_BYTES:
            self._acknowledge()
        if frame.flags & FrameFlag.STDERR:
            self._complaint += frame.payload
            del self._complaint[:-_COMPLAINT_BYTES]
            return
        try:
            for kind, payload in self._reader.feed(frame.payload):
                self._on_message(kind, payload)
        except Misbehaved as problem:
            self._lost(f"its zygote sent {problem}")

    def _on_message(self, kind: int, payload: bytes) -> None:
        if kind == HELLO and self._greeting is not None and not self._greeting.done():
            self._greeting.set_result(read_hello(payload))
        elif kind == RESULT and self._answer is not None and not self._answer.done():
            answer = read_answer(payload)
            self.settling_since = asyncio.get_running_loop().time()
            self.sandbox.uses += 1  # it is not to be frozen while it clears up
            self._answer.set_result(answer)
        elif kind == SETTLED and self.settling_since is not None:
            self._let_go()
            self._on_settled(self, payload.decode("utf-8", "replace"))
        else:
            raise Misbehaved(f"a frame of kind {kind} that nobody asked for")

    def _lost(self, reason: str) -> None:
        if not self.is_over:
            self.end(reason)
            self._on_settled(self, reason)


_ONE_THREAD = (
    "OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS",
)  # fmt: skip
"""A process with threads cannot be forked safely; calls run beside each other anyway."""
