"""One event loop in a thread of its own, for callers that have none.

All blocking objects of a process share it. It starts with the first call, ends
with the process, and a forked child makes its own.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncIterator, Coroutine, Iterator
from typing import Any, Generic, Self, TypeVar

from sandfleet_common.errors import BadRequest

T = TypeVar("T")
InnerT = TypeVar("InnerT")

CLEANUP_SECONDS = 15.0
"""What an interrupted call may take to clean up behind itself."""


class Portal:
    """Runs coroutines in a background thread and waits for them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._process = 0

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end and return what it returns.

        An interrupted caller (Ctrl-C) cancels it, and waits for its cleanup.
        """
        loop = self._running_loop()
        if threading.current_thread().name == _THREAD and asyncio.get_running_loop() is loop:
            work.close()
            raise BadRequest("a blocking call from a callback would wait for itself for ever")
        finished = threading.Event()
        running: list[asyncio.Task[Any]] = []

        async def watched() -> T:
            task = asyncio.current_task()
            assert task is not None, "runs as a task"
            running.append(task)
            try:
                return await work
            finally:
                finished.set()

        def cancel() -> None:
            for task in running:
                task.cancel()

        try:
            return asyncio.run_coroutine_threadsafe(watched(), loop).result()
        except BaseException:
            # An interrupt may come before there is a future to cancel; the task is there, or will
            # be when the loop gets to this, which it does in order.
            if not finished.is_set():
                loop.call_soon_threadsafe(loop.call_soon, cancel)
                finished.wait(CLEANUP_SECONDS)
            raise

    def each(self, items: AsyncIterator[T]) -> Iterator[T]:
        """Yield what `items` yields; a caller that stops early ends it."""

        async def following() -> tuple[T] | None:
            try:
                return (await anext(items),)
            except StopAsyncIteration:
                return None

        async def close() -> None:
            if (end := getattr(items, "aclose", None)) is not None:
                await end()

        try:
            while (item := self.run(following())) is not None:
                yield item[0]
        finally:
            self.run(close())

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        with self._lock:
            if self._loop is None or self._process != os.getpid():
                self._loop = asyncio.new_event_loop()
                self._process = os.getpid()
                threading.Thread(target=self._loop.run_forever, name=_THREAD, daemon=True).start()
            return self._loop


_THREAD = "sandfleet"
PORTAL = Portal()


class Facade(Generic[InnerT]):
    """The blocking side of an asynchronous object; same methods, same arguments."""

    _inner: InnerT

    def __init__(self) -> None:
        raise BadRequest(f"a {type(self).__name__} is made by a Client")

    @classmethod
    def wrap(cls, inner: InnerT) -> Self:
        """Return the blocking side of `inner`."""
        made = cls.__new__(cls)
        made._inner = inner
        return made

    def __repr__(self) -> str:
        return repr(self._inner).replace("<Async", "<", 1)
