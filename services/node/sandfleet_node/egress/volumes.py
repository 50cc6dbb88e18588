"""What the proxy has carried and refused, between two reports to the node."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator

from .orders import IDS_EACH, Counts, Refused
from .streams import Stream

_TOLD_EACH_SECOND = 5
"""Refusals of one sandbox: one that asks in vain all the time does not hide the others'."""


class Volumes:
    """Counts bytes for each sandbox, and everything else for all of them."""

    def __init__(self, tell: Callable[[Refused], None]) -> None:
        self._tell = tell
        self.sent: dict[str, int] = {}
        """Bytes that each sandbox has sent to hosts; a sandbox that is held is in it."""
        self._changed: set[str] = set()
        self._opened = 0
        self._received = 0
        self._refused: Counter[str] = Counter()
        self._told_second = 0
        self._told: Counter[str] = Counter()
        self.connections = 0
        """From sandboxes, open now."""
        self._connections_told = 0

    def upstream(self, sandbox_id: str, sock: socket.socket, idle_seconds: float) -> Stream:
        """Return a connection to a host whose bytes count for a sandbox."""
        self._opened += 1

        def on_sent(count: int) -> None:
            if sandbox_id in self.sent:
                self.sent[sandbox_id] += count
                self._changed.add(sandbox_id)

        return Stream(sock, idle_seconds, on_sent=on_sent, on_received=self._on_received)

    def _on_received(self, count: int) -> None:
        self._received += count

    def refuse(self, sandbox_id: str, kind: str, host: str, reason: str) -> None:
        """Count a refusal, and tell of it if there are not too many."""
        self._refused[kind] += 1
        second = int(time.monotonic())
        if second != self._told_second:
            self._told_second = second
            self._told.clear()
        if self._told[sandbox_id] < _TOLD_EACH_SECOND:
            self._told[sandbox_id] += 1
            self._tell(Refused(sandbox_id=sandbox_id, kind=kind, host=host, reason=reason))

    def everything(self) -> Iterator[Counts]:
        """Return what every sandbox has sent; for a node that has just connected."""
        names = list(self.sent)
        for start in range(0, len(names), IDS_EACH):
            yield Counts(sent={n: self.sent[n] for n in names[start : start + IDS_EACH]})

    def news(self) -> Iterator[Counts]:
        """Return what has changed since the last time."""
        names = [name for name in self._changed if name in self.sent]
        self._changed.clear()
        is_new = self._opened or self._received or self._refused
        if not names and not is_new and self.connections == self._connections_told:
            return
        self._connections_told = self.connections
        yield Counts(
            sent={n: self.sent[n] for n in names[:IDS_EACH]},
            opened=self._opened,
            received=self._received,
            refused=dict(self._refused),
            connections=self.connections,
        )
        self._opened = self._received = 0
        self._refused.clear()
        for start in range(IDS_EACH, len(names), IDS_EACH):
            part = {n: self.sent[n] for n in names[start : start + IDS_EACH]}
            yield Counts(sent=part, connections=self.connections)
