"""Python functions that run in warm sandboxes.

    @client.function(timeout_s=5)
    def solve(n: int) -> list[int]:
        import math
        return [math.isqrt(i) for i in range(n)]

    await solve(3)        # there
    solve.local(3)        # here
    async for answer in solve.map(range(1000)): ...

A function's source is sent, never a pickle; its arguments and what it returns are
JSON values.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Generic, ParamSpec, TypeVar

from sandfleet_common import messages as m
from sandfleet_common.errors import BadRequest, SandfleetError

from .calling import BULK_SECONDS, CALLS_AT_ONCE, Call, ask
from .connection import Connection
from .results import CallResult, call_result_of
from .sources import check_json, source_of

P = ParamSpec("P")
R = TypeVar("R")

AHEAD = 4
"""How many times as many calls as run at once may be ahead of the one that is awaited."""


class AsyncFunction(Generic[P, R]):
    """A Python function that runs in a warm sandbox when it is called."""

    def __init__(
        self,
        function: Callable[P, R],
        template: m.FunctionCall,
        connection: Callable[[], Connection],
    ) -> None:
        self._function = function
        self._template = template
        self._connection = connection
        self.__doc__ = function.__doc__

    @property
    def name(self) -> str:
        """The function's name."""
        return self._template.function or ""

    @property
    def source(self) -> str:
        """What is sent: the function and what was named with it."""
        return self._template.code

    async def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it in a warm sandbox and return what it returns.

        Raises:
            CallFailed: it raised, or ran into a limit; has the traceback.
            BadRequest: an argument is not a JSON value.
            SandfleetError: the call could not be made.
        """
        return (await self.call(*args, **kwargs)).check().value

    async def call(self, *args: P.args, **kwargs: P.kwargs) -> CallResult:
        """Call it and return the whole result: what it printed, how long it took.

        What the function raises is in the result, and no error here.

        Raises:
            BadRequest: an argument is not a JSON value.
            SandfleetError: the call could not be made.
        """
        message = self._message(list(args), dict(kwargs))
        return call_result_of(await ask(self._connection().transport, message))

    def local(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call it here, in this process."""
        return self._function(*args, **kwargs)

    async def map(
        self, items: Iterable[Any], *, concurrency: int = CALLS_AT_ONCE
    ) -> AsyncIterator[R]:
        """Call it with each of `items` and yield what it returns, in their order.

        Raises:
            CallFailed: it raised for an item; what comes after is dropped.
            BadRequest: an item is not a JSON value.
            SandfleetError: a call could not be made.
        """
        if concurrency < 1:
            raise BadRequest("concurrency must be 1 or more", field="concurrency")
        connection = self._connection()
        gate = asyncio.Semaphore(concurrency)

        async def one(message: m.FunctionCall) -> CallResult | SandfleetError:
            try:
                reply = await ask(connection.transport, message, patience=BULK_SECONDS)
                return call_result_of(reply)
            except SandfleetError as problem:  # for the one who waits for it, in its turn
                return problem
            finally:
                gate.release()

        running: deque[asyncio.Task[CallResult | SandfleetError]] = deque()
        try:
            for item in items:
                message = self._message([item], {})
                await gate.acquire()
                running.append(connection.tasks.start(one(message), f"call {self.name}"))
                while running and (running[0].done() or len(running) >= AHEAD * concurrency):
                    yield _value(await running.popleft())
            while running:
                yield _value(await running.popleft())
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def __repr__(self) -> str:
        return f"<AsyncFunction {self.name} in {self._template.environment}>"

    def _message(self, arguments: list[Any], keywords: dict[str, Any]) -> m.FunctionCall:
        for number, value in enumerate(arguments):
            check_json(f"argument {number + 1} of {self.name}", value)
        for name, value in keywords.items():
            check_json(f"argument {name!r} of {self.name}", value)
        fields = {name: getattr(self._template, name) for name in _KEPT}
        return m.FunctionCall.of(**fields, arguments=arguments, keywords=keywords)


class AsyncFunctionMaker:
    """What `client.function(...)` returns: put it before a `def`."""

    def __init__(
        self, call: Call, with_source: Sequence[Any], connection: Callable[[], Connection]
    ) -> None:
        self._call = call
        self._with_source = with_source
        self._connection = connection

    def __call__(self, function: Callable[P, R]) -> AsyncFunction[P, R]:
        """Make a function one that runs in warm sandboxes.

        Raises:
            BadRequest: it cannot run elsewhere (a closure, a lambda, a name from
                outside); says why, and what to do.
        """
        code = source_of(function, self._with_source)
        fields = {name: getattr(self._call.message(), name) for name in _KEPT}
        template = m.FunctionCall.of(**(fields | {"code": code, "function": function.__name__}))
        return AsyncFunction(function, template, self._connection)


def _value(result: CallResult | SandfleetError) -> Any:
    if isinstance(result, SandfleetError):
        raise result
    return result.check().value


_KEPT = ("environment", "code", "function", "env", "limits", "queue_seconds")
"""Fields that all calls of a function share."""
