"""What all objects of one client share: its transport and the tasks it owns."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import TimedOut, Unavailable
from sandfleet_common.lifecycle import Tasks

from .calls import ATTEMPT_SECONDS, CALL_SECONDS, call, pause
from .transport import Link, Transport


@dataclass(frozen=True, slots=True)
class Connection:
    """An open connection to the platform."""

    transport: Transport
    tasks: Tasks

    async def attach(
        self, sandbox_id: str, exec_id: str, *, position: int, window_bytes: int
    ) -> Link:
        """Open a stream to a command, trying again while its node is away.

        Raises:
            TimedOut, Unreachable: its node did not come back in time.
            SandboxGone, NodeLost: its sandbox is no more; says why.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + CALL_SECONDS
        attempt = 0
        while True:
            try:
                return await self.transport.attach(
                    sandbox_id,
                    exec_id,
                    position=position,
                    window_bytes=window_bytes,
                    within=ATTEMPT_SECONDS,
                )
            except Unavailable as problem:
                attempt += 1
                wait = pause(attempt, random.random())
                left = ends - loop.time() - wait
                if left <= 0:
                    raise
                await asyncio.sleep(wait)
                if not isinstance(problem, TimedOut):  # ask why; raises when it is gone
                    await call(
                        self.transport,
                        s.EXEC_WAIT,
                        m.ExecWait(sandbox_id=sandbox_id, exec_id=exec_id, position=position),
                        within=left,
                    )
