"""Function calls: code that runs in a warm sandbox and leaves nothing behind.

A call goes to any node that has the environment, and its answer comes when the code
has ended. It is sent again only when nobody heard it, or where a queue was full.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import (
    BadRequest,
    Busy,
    NoCapacity,
    NotFound,
    Refused,
    SandfleetError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from sandfleet_common.ids import environment_token

from .calls import ATTEMPT_SECONDS, may_repeat, pause
from .connection import Connection
from .results import CallResult, call_result_of
from .transport import Transport

BULK_SECONDS = 3600.0
"""How long a call of many is offered again to queues that are full."""
CALLS_AT_ONCE = 64
MARGIN_SECONDS = 20.0
"""More than a node gives a call beyond its own limits, to say what came of it."""

MAIN = {
    "python": "main.py",
    "bash": "main.sh",
    "c": "main.c",
    "cpp": "main.cpp",
    "javascript": "main.js",
}
"""The file that is the code, where only files are given."""


@dataclass(frozen=True, slots=True)
class Call:
    """What is to be run, and how: one of the many of `call_many`.

    Files are `{name: text or bytes}`, names relative to the call's directory.
    """

    code: str | None = None
    """None: the file `main.py` (.sh .c .cpp .js) of `files`."""
    language: m.Language = "python"
    stdin: str | bytes | None = None
    files: Mapping[str, str | bytes] | None = None
    fetch: Sequence[str] = ()
    env: Mapping[str, str] | None = None
    timeout_s: float | None = None
    memory: int | None = None
    """Bytes."""
    limits: m.CallLimits = field(default_factory=m.CallLimits)
    """All caps; `timeout_s` and `memory` have the last word on theirs."""
    environment: str = "debian"
    queue_s: float = 30
    """Seconds it may wait for a warm sandbox."""

    def message(self) -> m.FunctionCall:
        """Return the message that asks for it.

        Raises:
            BadRequest: a value does not fit; says which and why.
        """
        if isinstance(self.fetch, str):
            raise BadRequest("fetch is a list of names, not one name", field="fetch")
        files = {name: _bytes(content) for name, content in (self.files or {}).items()}
        return m.FunctionCall.of(
            environment=self.environment,
            language=self.language,
            code=self._code(files),
            files=files,
            fetch=list(self.fetch),
            stdin=_bytes(self.stdin or b""),
            env=dict(self.env or {}),
            limits=self.capped(),
            queue_seconds=self.queue_s,
        )

    def capped(self) -> m.CallLimits:
        """Return the caps, `timeout_s` and `memory` among them.

        Raises:
            BadRequest: one is out of range.
        """
        if self.timeout_s is None and self.memory is None:
            return self.limits
        given = {"wall_seconds": self.timeout_s, "memory_bytes": self.memory}
        chosen = {name: value for name, value in given.items() if value is not None}
        return m.CallLimits.of(**(self.limits.model_dump() | chosen))

    def _code(self, files: dict[str, bytes]) -> str:
        if self.code is not None:
            return self.code
        name = MAIN.get(self.language, "main")
        if name not in files:
            raise BadRequest(f"give code, or a file {name!r} that is the code", field="code")
        try:
            return files.pop(name).decode()
        except UnicodeDecodeError:
            raise BadRequest(f"{name} is not UTF-8 text", field="files") from None


def held_seconds(call: m.FunctionCall) -> float:
    """Return how long the answer may be held back: the wait, the compiler, the program."""
    compiler = 0.0
    if call.language in ("c", "cpp"):
        compiler = (call.compile_limits or call.limits).wall_seconds
    return call.queue_seconds + compiler + call.limits.wall_seconds


async def absent(transport: Transport, environment: str) -> NotFound | None:
    """Return the error that names the environments there are, if this one is on no node.

    None also where nobody knows, or where no node at all is alive.
    """
    try:
        page = await transport.call(s.NODE_LIST, m.NodeList(), within=ATTEMPT_SECONDS)
    except SandfleetError:
        return None
    known = sorted({name for node in page.nodes for name in node.environments})
    token = environment_token(environment)
    if not page.nodes or token in {environment_token(name) for name in known}:
        return None
    return NotFound(
        f"no node has an environment {environment[:80]!r}; there are: "
        f"{', '.join(known) or 'none yet (build one)'}",
        environment=environment,
    )


async def ask(
    transport: Transport, call: m.FunctionCall, *, patience: float | None = None
) -> m.FunctionResult:
    """Have a call made, and return how it ended.

    `patience` is for how many seconds it is offered again to nodes that are busy or
    away; without it, and to nodes without room, as long as it may wait for a sandbox.
    What the code does wrong is a status of the result, never an error.

    Raises:
        NotFound: no node has the environment; names those that exist.
        Busy, NoCapacity: no sandbox was free in time.
        TimedOut: no answer came, though one was due; it may have run.
        Unreachable: no node answered.
    """
    loop = asyncio.get_running_loop()
    gives_up = loop.time() + call.queue_seconds
    ends = gives_up if patience is None else loop.time() + patience
    attempt = 0
    while True:
        within = held_seconds(call) + MARGIN_SECONDS
        try:
            return await transport.call(s.FUNCTION_CALL, call, within=within)
        except Unavailable as problem:
            is_full = isinstance(problem, NoCapacity)  # another node may have room
            if isinstance(problem, TimedOut):
                raise TimedOut(
                    f"the call was not answered within {within:g} s, so its node may have died; "
                    "it may have run, and may be made again",
                ) from problem
            if not is_full and not may_repeat(s.FUNCTION_CALL, problem):
                raise
            attempt += 1
            if attempt > 1 and (missing := await _absent_after(problem, transport, call)):
                raise missing from problem
            wait = max(pause(attempt, random.random()), _retry_after(problem))
            left = (gives_up if is_full else ends) - loop.time() - wait
            if left < 0:
                raise (await _absent_after(problem, transport, call) or problem) from None
            await asyncio.sleep(wait)
            if patience is None:  # what it waited here, it does not wait there
                call = call.model_copy(update={"queue_seconds": min(call.queue_seconds, left)})


async def many(
    connection: Connection, calls: Iterable[str | Call], *, at_once: int = CALLS_AT_ONCE
) -> AsyncIterator[tuple[int, CallResult]]:
    """Make many calls, `at_once` of them at a time; yield each result with its number.

    A call that the platform could not make is a result with its `error`.

    Raises:
        Refused: a call cannot be met, and so probably none: the rest is not made.
    """
    if at_once < 1:
        raise BadRequest("concurrency must be 1 or more", field="concurrency")
    numbered = enumerate(calls)
    running: set[asyncio.Task[tuple[int, CallResult | Refused]]] = set()
    over: asyncio.Queue[asyncio.Task[tuple[int, CallResult | Refused]]] = asyncio.Queue()
    is_more = True
    try:
        while True:
            while is_more and len(running) < at_once:
                number, item = next(numbered, (-1, None))
                if item is None:
                    is_more = False
                    break
                call = (item if isinstance(item, Call) else Call(item)).message()
                work = _one_of_many(connection.transport, number, call)
                task = connection.tasks.start(work, "call")
                running.add(task)
                task.add_done_callback(over.put_nowait)
            if not running:
                return
            done = await over.get()
            running.discard(done)
            number, result = done.result()
            if isinstance(result, Refused):
                raise result
            yield number, result
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


async def _one_of_many(
    transport: Transport, number: int, call: m.FunctionCall
) -> tuple[int, CallResult | Refused]:
    try:
        return number, call_result_of(await ask(transport, call, patience=BULK_SECONDS))
    except Refused as problem:
        return number, problem
    except SandfleetError as problem:
        return number, CallResult(status="lost", error=problem)


async def _absent_after(
    problem: Unavailable, transport: Transport, call: m.FunctionCall
) -> NotFound | None:
    """Return why nobody heard a call, if it is for want of its environment."""
    if not isinstance(problem, Unreachable):
        return None
    return await absent(transport, call.environment)


def _retry_after(problem: Unavailable) -> float:
    if not isinstance(problem, Busy):
        return 0.0
    seconds: Any = problem.fields.get("retry_after_seconds")
    return float(seconds) if isinstance(seconds, (int, float)) else 0.0


def _bytes(content: str | bytes) -> bytes:
    return content.encode() if isinstance(content, str) else bytes(content)
