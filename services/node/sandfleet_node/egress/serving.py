"""The proxy's process: listening sockets of sandboxes, and the node that gives and takes them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections import deque
from dataclasses import dataclass, field

from pydantic import ValidationError

from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger

from .orders import (
    ORDERS,
    PACKET_BYTES_MAX,
    VERSION,
    Add,
    Counts,
    Hello,
    Quit,
    Refused,
    Remove,
    Rules,
    send_packet,
    until_readable,
)
from .policy import Policy
from .requests import Client
from .streams import Stream
from .upstreams import Upstreams
from .volumes import Volumes

_REPORT_SECONDS = 0.5
_REFUSALS_KEPT = 256
_TROUBLE_SECONDS = 0.5


@dataclass(slots=True)
class _Door:
    """The listening socket of a sandbox, and what came through it."""

    sock: socket.socket
    places: asyncio.Semaphore
    accepting: asyncio.Task[None] | None = None
    clients: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]])


class Serving:
    """Serves sandboxes as one node says. Without a node for `orphan_seconds` it ends."""

    def __init__(self, tasks: Tasks, orphan_seconds: float, log: Logger) -> None:
        self._tasks = tasks
        self._orphan_seconds = orphan_seconds
        self._log = log
        self._upstreams = Upstreams()
        self._refusals: deque[Refused] = deque(maxlen=_REFUSALS_KEPT)
        self._volumes = Volumes(self._refusals.append)
        self._doors: dict[str, _Door] = {}
        self._places = asyncio.Semaphore(self._upstreams.limits.connections)
        self._ended = asyncio.Event()

    async def run(self, listener: socket.socket) -> None:
        """Serve one node after another until one says that it is over, or none comes."""
        listener.setblocking(False)
        serving = self._tasks.start(self._nodes(listener), "nodes")
        ended = self._tasks.start(self._ended.wait(), "ended")
        await asyncio.wait({serving, ended}, return_when=asyncio.FIRST_COMPLETED)

    async def _nodes(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                async with asyncio.timeout(self._orphan_seconds):
                    sock, _ = await loop.sock_accept(listener)
            except TimeoutError:
                self._log.warning("egress.orphaned", seconds=self._orphan_seconds)
                return
            with sock:
                sock.setblocking(False)
                reporting = self._tasks.start(self._report(sock), "reports")
                try:
                    await self._obey(sock)
                finally:
                    reporting.cancel()

    # ----------------------------------------------------------------- orders

    async def _obey(self, sock: socket.socket) -> None:
        """Carry out a node's orders until it goes away."""
        while True:
            try:
                data, handles, _, _ = socket.recv_fds(sock, PACKET_BYTES_MAX, 4)
            except BlockingIOError:
                await until_readable(sock)
                continue
            except OSError:
                return
            if not data:
                return
            try:
                order = ORDERS.validate_json(data)
            except ValidationError:
                self._log.error("egress.strange_order", bytes=len(data))
                _close_all(handles)
                continue
            self._carry_out(order, handles)

    def _carry_out(self, order: Rules | Add | Remove | Quit, handles: list[int]) -> None:
        match order:
            case Rules():
                self._take_rules(order)
            case Add() if len(handles) == 1:
                self._add(order.sandbox_id, socket.socket(fileno=handles.pop()))
            case Remove():
                self._remove(order.sandbox_id)
            case Quit():
                self._ended.set()
            case Add():
                self._log.error("egress.no_socket", sandbox=order.sandbox_id)
        _close_all(handles)

    def _take_rules(self, order: Rules) -> None:
        self._upstreams.policy = Policy(given.rule() for given in order.rules)
        self._upstreams.forward = order.forward
        if order.limits != self._upstreams.limits:
            self._upstreams.limits = order.limits
            self._places = asyncio.Semaphore(order.limits.connections)

    def _add(self, sandbox_id: str, sock: socket.socket) -> None:
        self._close_door(sandbox_id)
        self._volumes.sent.setdefault(sandbox_id, 0)
        sock.setblocking(False)
        door = _Door(sock, asyncio.Semaphore(self._upstreams.limits.connections_each))
        self._doors[sandbox_id] = door
        door.accepting = self._tasks.start(self._accept(sandbox_id, door), f"door {sandbox_id}")

    def _remove(self, sandbox_id: str) -> None:
        self._close_door(sandbox_id)
        self._volumes.sent.pop(sandbox_id, None)

    def _close_door(self, sandbox_id: str) -> None:
        door = self._doors.pop(sandbox_id, None)
        if door is None:
            return
        if door.accepting is not None:
            door.accepting.cancel()
        for client in door.clients:
            client.cancel()
        door.sock.close()

    # ---------------------------------------------------------------- clients

    async def _accept(self, sandbox_id: str, door: _Door) -> None:
        """Take connections while there is room; the kernel keeps those that wait."""
        loop = asyncio.get_running_loop()
        while True:
            await door.places.acquire()
            places = self._places
            await places.acquire()
            try:
                sock, _ = await loop.sock_accept(door.sock)
            except OSError as problem:  # no descriptors left, or a client that has gone again
                self._log.warning("egress.not_accepted", sandbox=sandbox_id, error=str(problem))
                places.release()
                door.places.release()
                await asyncio.sleep(_TROUBLE_SECONDS)
                continue
            except asyncio.CancelledError:
                places.release()
                raise
            client = self._tasks.start(self._serve(sandbox_id, sock), f"client of {sandbox_id}")
            self._volumes.connections += 1
            door.clients.add(client)
            client.add_done_callback(lambda done, held=places: self._leave(door, held, done))

    def _leave(self, door: _Door, places: asyncio.Semaphore, client: asyncio.Task[None]) -> None:
        self._volumes.connections -= 1
        door.clients.discard(client)
        door.places.release()
        places.release()

    async def _serve(self, sandbox_id: str, sock: socket.socket) -> None:
        stream = Stream(sock, self._upstreams.limits.idle_seconds)
        await Client(sandbox_id, stream, self._upstreams, self._volumes).serve()

    # ---------------------------------------------------------------- reports

    async def _report(self, sock: socket.socket) -> None:
        """Tell a node what is held, and then what is new."""
        with contextlib.suppress(OSError):
            await send_packet(sock, Hello(version=VERSION, sandboxes=len(self._doors)))
            for counts in self._volumes.everything():
                await send_packet(sock, counts)
            while True:
                await asyncio.sleep(_REPORT_SECONDS)
                await self._tell_news(sock)

    async def _tell_news(self, sock: socket.socket) -> None:
        news: list[Counts] = list(self._volumes.news())
        for counts in news:
            await send_packet(sock, counts)
        while self._refusals:
            await send_packet(sock, self._refusals.popleft())


def _close_all(handles: list[int]) -> None:
    for handle in handles:
        os.close(handle)
