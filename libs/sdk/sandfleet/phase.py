"""What a sandbox does for its trainer at the moment, which decides its share of the CPU."""

from __future__ import annotations

import asyncio
from typing import Self

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import Lost, SandfleetError

from .calls import call
from .connection import Connection

LEAVE_SECONDS = 10.0
"""What leaving a phase may take when the caller is on its way out."""


class AsyncPhase:
    """A phase of a sandbox. It lasts as long as the block, and then follows its commands again."""

    def __init__(self, connection: Connection, sandbox_id: str, phase: m.SandboxPhase) -> None:
        self._connection = connection
        self._sandbox_id = sandbox_id
        self._phase = phase

    async def __aenter__(self) -> Self:
        await self._set(self._phase)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            async with asyncio.timeout(LEAVE_SECONDS):
                await self._set(m.SandboxPhase.AUTO)
        except (SandfleetError, TimeoutError) as problem:
            # A sandbox that is gone needs no phase, and the caller's own error matters more.
            if kind is None and not isinstance(problem, Lost):
                raise

    async def _set(self, phase: m.SandboxPhase) -> None:
        body = m.SandboxSetPhase(sandbox_id=self._sandbox_id, phase=phase)
        await call(self._connection.transport, s.SET_PHASE, body)
