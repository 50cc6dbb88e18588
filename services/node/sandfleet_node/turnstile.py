"""How many may do something at once, when that number changes with how the machine is."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType


class Turnstile:
    """Lets so many in at once, in the order they came. Its width may change at any time.

    It becomes narrower as those inside leave; nobody is thrown out.
    """

    def __init__(self, width: int) -> None:
        self._width = width
        self._inside = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def inside(self) -> int:
        """How many are inside."""
        return self._inside

    @property
    def width(self) -> int:
        """How many may be inside."""
        return self._width

    def set_width(self, width: int) -> None:
        """Let so many in from now on."""
        self._width = width
        self._admit()

    async def __aenter__(self) -> None:
        if self._inside < self._width and not self._waiting:
            self._inside += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._leave()  # it was our turn, and nobody will take it
            raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._leave()

    def _leave(self) -> None:
        self._inside -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self._inside < self._width:
            turn = self._waiting.popleft()
            if not turn.done():
                self._inside += 1
                turn.set_result(None)
