"""What the node tells the proxy's process, and what that says: JSON in sequenced packets."""

from __future__ import annotations

import asyncio
import socket
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from .policy import Reach, Rule

VERSION = 1
"""Of these messages: a service that finds a proxy of another version replaces it."""
SOCKET = "egress.sock"
PORT = 3128
"""Of the proxy inside sandboxes, on 127.0.0.1."""
PACKET_BYTES_MAX = 128 * 1024
IDS_EACH = 256
"""Sandboxes told of in one packet."""


class _Packet(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")


class RuleGiven(_Packet):
    """One rule of the policy."""

    host: str
    port: int | None
    reach: Reach

    @classmethod
    def of(cls, rule: Rule) -> RuleGiven:
        """Return a rule as it is sent."""
        return cls(host=rule.host, port=rule.port, reach=rule.reach)

    def rule(self) -> Rule:
        """Return the rule."""
        return Rule(self.host, self.port, self.reach)


class Forward(_Packet):
    """The proxy that the host itself has to go through."""

    http: str = ""
    """URL for plain requests; empty: none is needed."""
    https: str = ""
    """URL for tunnels; empty: none is needed."""
    direct: tuple[str, ...] = ()
    """Hosts and `.suffixes` that are reached without it."""


class Limits(_Packet):
    """What the proxy allows."""

    connections_each: int = 64
    """Of one sandbox; more wait until one ends."""
    connections: int = 1024
    """Of all together."""
    head_seconds: float = 60.0
    """Until a connection's next request has arrived, with all its headers."""
    idle_seconds: float = 120.0
    """Without a byte in either direction."""
    connect_seconds: float = 20.0
    """Until a host has been looked up and has taken the connection."""


class Rules(_Packet):
    """The policy from now on; connections that are open stay."""

    op: Literal["rules"] = "rules"
    rules: tuple[RuleGiven, ...]
    forward: Forward = Forward()
    limits: Limits = Limits()


class Add(_Packet):
    """Serve a sandbox on the listening socket that comes with this."""

    op: Literal["add"] = "add"
    sandbox_id: str


class Remove(_Packet):
    """Drop a sandbox's connections and its listening socket."""

    op: Literal["remove"] = "remove"
    sandbox_id: str


class Quit(_Packet):
    """End."""

    op: Literal["quit"] = "quit"


class Hello(_Packet):
    """The first packet to a node that connects, before those it holds."""

    op: Literal["hello"] = "hello"
    version: int
    sandboxes: int
    """How many are told of in the packets that follow."""


class Counts(_Packet):
    """Bytes sent so far by some sandboxes, and what all have done since the packet before."""

    op: Literal["counts"] = "counts"
    sent: dict[str, int]
    opened: int = 0
    """Connections and tunnels to hosts."""
    received: int = 0
    """Bytes."""
    refused: dict[str, int] = Field(default_factory=dict)
    """By kind."""
    connections: int = 0
    """Open now."""


class Refused(_Packet):
    """One refusal; of many in a short time only some are told."""

    op: Literal["refused"] = "refused"
    sandbox_id: str
    kind: str
    host: str
    reason: str


Order = Annotated[Rules | Add | Remove | Quit, Field(discriminator="op")]
Report = Annotated[Hello | Counts | Refused, Field(discriminator="op")]
ORDERS: TypeAdapter[Rules | Add | Remove | Quit] = TypeAdapter(Order)
REPORTS: TypeAdapter[Hello | Counts | Refused] = TypeAdapter(Report)


async def send_packet(sock: socket.socket, packet: _Packet, handle: int | None = None) -> None:
    """Send one packet, with a descriptor, as soon as there is room.

    Raises:
        OSError: the other side has gone.
    """
    data = packet.model_dump_json().encode()
    while True:
        try:
            socket.send_fds(sock, [data], [] if handle is None else [handle])
            return
        except BlockingIOError:
            await until_writable(sock)


async def until_writable(sock: socket.socket) -> None:
    """Wait until a socket takes data again."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    loop.add_writer(sock, lambda: waiting.done() or waiting.set_result(None))
    try:
        await waiting
    finally:
        loop.remove_writer(sock)


async def until_readable(sock: socket.socket) -> None:
    """Wait until something can be read from a socket, or its end."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Future[None] = loop.create_future()
    loop.add_reader(sock, lambda: waiting.done() or waiting.set_result(None))
    try:
        await waiting
    finally:
        loop.remove_reader(sock)
