"""What the node tells without waiting: events of sandboxes, changes of watched files."""

from __future__ import annotations

import asyncio
from collections import deque

from sandfleet_common.bus import Bus
from sandfleet_common.errors import BadRequest, Unreachable
from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxEvent
from sandfleet_common.subjects import SANDBOX_EVENT

_WAITING_MAX = 65_536


class Outbox:
    """A bounded queue of messages, sent in order.

    When it is full the oldest is dropped: whoever needs certainty asks the records.
    """

    def __init__(self, bus: Bus, log: Logger) -> None:
        self._bus = bus
        self._log = log
        self._queue: deque[tuple[str, bytes]] = deque(maxlen=_WAITING_MAX)
        self._more = asyncio.Event()

    def tell_event(self, event: SandboxEvent) -> None:
        """Announce a transition."""
        self.tell(SANDBOX_EVENT.at(sandbox=event.info.sandbox_id), event.encode())

    def tell(self, subject: str, payload: bytes) -> None:
        """Send a message when its turn comes."""
        self._queue.append((subject, payload))
        self._more.set()

    async def run(self) -> None:
        """Send until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            while self._queue:
                subject, payload = self._queue.popleft()
                try:
                    await self._bus.publish_raw(subject, payload)
                except (Unreachable, BadRequest) as problem:  # down for long; larger than it takes
                    self._log.warning("outbox.dropped", subject=subject, error=problem.message)
