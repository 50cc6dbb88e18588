"""Small pieces of blocking work, several in one trip to a thread.

A trip costs more than such a piece: a queue, two switches of threads, a wake-up of the
loop. What is asked for while all lanes are busy waits and goes together.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor

from sandfleet_common.errors import SandfleetError

_TOGETHER = 4
"""Pieces in one trip: the first is answered when the last is done."""

Piece = tuple[Callable[[], None], asyncio.Future[None]]


class Batching:
    """Runs pieces of work in an executor, in the order they came, over a few lanes."""

    def __init__(self, executor: Executor, lanes: int) -> None:
        self._executor = executor
        self._free = lanes
        self._waiting: deque[Piece] = deque()

    def run(self, work: Callable[[], None]) -> asyncio.Future[None]:
        """Have work done in a thread; the future has its exception. Cancelling it stops nothing."""
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((work, done))
        self._send()
        return done

    def _send(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            pieces = [self._waiting.popleft() for _ in range(min(_TOGETHER, len(self._waiting)))]
            trip = asyncio.get_running_loop().run_in_executor(self._executor, _do, pieces)
            trip.add_done_callback(lambda trip, pieces=pieces: self._back(trip, pieces))

    def _back(self, trip: asyncio.Future[list[BaseException | None]], pieces: list[Piece]) -> None:
        self._free += 1
        self._send()
        broken = RuntimeError("the threads have stopped") if trip.cancelled() else trip.exception()
        problems = [broken] * len(pieces) if broken is not None else trip.result()
        for (_, done), problem in zip(pieces, problems, strict=True):
            if done.done():
                continue
            if problem is None:
                done.set_result(None)
            else:
                done.set_exception(problem)


def _do(pieces: list[Piece]) -> list[BaseException | None]:
    problems: list[BaseException | None] = []
    for work, _ in pieces:
        try:
            work()
        except (OSError, SandfleetError) as problem:
            problems.append(problem)
        else:
            problems.append(None)
    return problems
