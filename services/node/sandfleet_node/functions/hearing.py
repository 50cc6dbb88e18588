"""Listening for calls: on the subject of each environment that this node has."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from sandfleet_common.bus import Bus, Subscription
from sandfleet_common.errors import Unreachable
from sandfleet_common.ids import environment_token
from sandfleet_common.logs import Logger
from sandfleet_common.subjects import FUNCTION_CALL, FUNCTION_QUEUE

from .calls import FunctionCalls

_LOOK_SECONDS = 1.0
_ALL = "*"
CALL_SECONDS = 2400.0
"""A call has deadlines of its own; this is only the last resort."""


class Hearing:
    """Follows the environments that come and go. A draining node hears no calls.

    Of more environments than it follows one by one it hears the calls of all.
    """

    def __init__(
        self,
        bus: Bus,
        calls: FunctionCalls,
        environments: Callable[[], list[str] | None],
        log: Logger,
    ) -> None:
        """Prepare.

        Args:
            bus: where calls are heard.
            calls: serves them.
            environments: their names; None: more than can be followed.
            log: where trouble is told.
        """
        self._bus = bus
        self._calls = calls
        self._environments = environments
        self._log = log
        self._heard: dict[str, Subscription] = {}
        self._is_closed = False

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            try:
                await self.look()
            except Unreachable as problem:
                self._log.warning("function.unheard", error=problem.message)
            self._calls.sweep()
            await asyncio.sleep(_LOOK_SECONDS)

    async def look(self) -> None:
        """Listen to what there is, and to nothing else.

        Raises:
            Unreachable: the bus is down; look again later.
        """
        names = [] if self._is_closed else self._environments()
        wanted = {_ALL} if names is None else {environment_token(name) for name in names}
        for token in sorted(wanted - set(self._heard)):
            self._heard[token] = await self._bus.serve(
                FUNCTION_CALL,
                self._calls.call,
                queue=FUNCTION_QUEUE,
                within=CALL_SECONDS,
                **({} if token == _ALL else {"environment": token}),
            )
        # Last, so that none is unheard between: one group gets each call once in any case.
        for token in set(self._heard) - wanted:
            await self._heard.pop(token).finish()

    async def close(self) -> None:
        """Hear no more calls."""
        self._is_closed = True
        await self.look()
