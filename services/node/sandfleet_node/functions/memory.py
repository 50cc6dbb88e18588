"""Results of lately ended calls, so that a request sent twice runs once."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import Awaitable, Callable

from sandfleet_common.messages import FunctionResult

KEPT_SECONDS = 60.0
KEPT = 512
KEPT_BYTES = 16 * 1024 * 1024


class Recent:
    """Calls under way and their results, by request id."""

    def __init__(self) -> None:
        self._running: dict[str, asyncio.Future[FunctionResult | None] | None] = {}
        self._ended: OrderedDict[str, tuple[float, FunctionResult, int]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._running)

    @property
    def kept_bytes(self) -> int:
        """What is remembered takes about so much."""
        return self._bytes

    async def once(
        self,
        request_id: str,
        run: Callable[[], Awaitable[FunctionResult]],
        clock: Callable[[], float],
    ) -> FunctionResult:
        """Return what `run` returns, or returned when the same id was asked for before.

        What raised an error has not run, and is tried again. A result is kept for a minute
        from the end of its call, by `clock`, which does not go back.
        """
        while request_id in self._running:
            waiting = self._running[request_id]
            if waiting is None:
                waiting = asyncio.get_running_loop().create_future()
                self._running[request_id] = waiting
            result = await asyncio.shield(waiting)
            if result is not None:
                return result
        self._forget(clock())
        known = self._ended.get(request_id)
        if known is not None:
            return known[1]
        return await self._run(request_id, run, clock)

    async def _run(
        self,
        request_id: str,
        run: Callable[[], Awaitable[FunctionResult]],
        clock: Callable[[], float],
    ) -> FunctionResult:
        self._running[request_id] = None
        result: FunctionResult | None = None
        try:
            result = await run()
            self._keep(request_id, result, clock())
            return result
        finally:
            waiting = self._running.pop(request_id)
            if waiting is not None and not waiting.done():
                waiting.set_result(result)

    def _keep(self, request_id: str, result: FunctionResult, now: float) -> None:
        size = _size(result)
        self._ended[request_id] = (now, result, size)
        self._bytes += size
        self._forget(now)

    def _forget(self, now: float) -> None:
        """Drop the oldest while they are too old, too many or too large."""
        while self._ended:
            ended_at = next(iter(self._ended.values()))[0]
            is_fresh = now - ended_at < KEPT_SECONDS
            if is_fresh and len(self._ended) <= KEPT and self._bytes <= KEPT_BYTES:
                return
            self._bytes -= self._ended.popitem(last=False)[1][2]


def _size(result: FunctionResult) -> int:
    size = 1000 + sum(map(len, result.files.values()))
    for step in (result.step, result.compiled):
        if step is not None:
            size += len(step.stdout) + len(step.stderr)
    if result.value is not None:
        size += len(json.dumps(result.value))
    return size + len(result.exception or "")
