"""Connections from the host's side to what the policy allows."""

from __future__ import annotations

import asyncio
import base64
import socket
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import unquote, urlsplit

import h11

from .orders import Forward, Limits
from .policy import NAME, Policy, Reach, is_reachable
from .targets import Target

_LOOKUPS_AT_ONCE = 16
_ADDRESSES_TRIED = 4
_EACH_SECONDS = 8.0
_FORWARD_HEAD_BYTES = 16 * 1024

Place = tuple[socket.AddressFamily, tuple[str, int]]


class Refusal(Exception):
    """Why a request is not served: a status, a kind to count it by, one sentence."""

    def __init__(self, status: int, kind: str, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status
        self.kind = kind
        self.sentence = sentence


def _split(url: str) -> tuple[Target, bytes | None]:
    """Return where a proxy is, and the credentials it wants."""
    parts = urlsplit(url if "://" in url else f"http://{url}")
    user = None
    if parts.username is not None:
        pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        user = b"Basic " + base64.b64encode(pair.encode())
    return Target(parts.hostname or "", parts.port or 80), user


class Upstreams:
    """Opens connections to hosts of the policy, and to no others."""

    def __init__(self) -> None:
        self.policy = Policy(())
        self.forward = Forward()
        self.limits = Limits()
        self._lookups = ThreadPoolExecutor(_LOOKUPS_AT_ONCE, thread_name_prefix="lookup")

    def forwarder(self, target: Target, *, is_tunnel: bool) -> tuple[Target, bytes | None] | None:
        """Return the proxy that the host itself needs for a target, with its credentials."""
        url = self.forward.https if is_tunnel else self.forward.http
        for name in self.forward.direct:
            if target.host == name.lstrip(".") or target.host.endswith(f".{name.lstrip('.')}"):
                return None
        return _split(url) if url else None

    async def open(self, target: Target, *, is_tunnel: bool) -> socket.socket:
        """Connect to a target, through the host's own proxy if it has one.

        Raises:
            Refusal: the policy does not name it, it is where it may not be, or unreachable.
        """
        reach = self.policy.reach(target.host, target.port)
        if reach is None:
            raise Refusal(403, "host", f"the policy `{NAME}` does not allow {_shown(target)}")
        forwarder = self.forwarder(target, is_tunnel=is_tunnel)
        try:
            async with asyncio.timeout(self.limits.connect_seconds):
                if forwarder is None:
                    return await self._connect(target, reach)
                sock = await self._connect(forwarder[0], Reach.ANY)
                if is_tunnel:
                    await _ask_for_tunnel(sock, target, forwarder[1])
                return sock
        except TimeoutError:
            raise Refusal(504, "unreachable", f"{_shown(target)} did not answer") from None
        except OSError as problem:
            raise Refusal(
                502, "unreachable", f"{_shown(target)} cannot be reached: {problem}"
            ) from None

    async def _connect(self, target: Target, reach: Reach) -> socket.socket:
        """Look a name up once and connect to what that gave: a second look could differ."""
        places = await self._places(target)
        allowed = [p for p in places if is_reachable(ip_address(p[1][0]), reach)]
        if not allowed:
            raise Refusal(
                403,
                "address",
                f"the policy `{NAME}` does not allow {_shown(target)} where it is: "
                "at a private address, or on this machine",
            )
        problem: OSError | None = None
        for family, address in allowed[:_ADDRESSES_TRIED]:
            try:
                async with asyncio.timeout(_EACH_SECONDS):
                    return await _dial(family, address)
            except OSError as found:
                problem = found
        assert problem is not None
        raise problem

    async def _places(self, target: Target) -> list[Place]:
        found = await asyncio.get_running_loop().run_in_executor(
            self._lookups, _look_up, target.host, target.port
        )
        return list(dict.fromkeys(found))


def _look_up(host: str, port: int) -> list[Place]:
    literal = _literal(host)
    if literal is not None:
        family = socket.AF_INET if literal.version == 4 else socket.AF_INET6
        return [(family, (str(literal), port))]
    found: list[Place] = []
    for family, _, _, _, address in socket.getaddrinfo(host, port, type=socket.SOCK_STREAM):
        where = str(address[0])
        if family in (socket.AF_INET, socket.AF_INET6) and "%" not in where:
            found.append((family, (where, port)))
    return found


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


async def _dial(family: socket.AddressFamily, address: tuple[str, int]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.get_running_loop().sock_connect(sock, address)
    except BaseException:
        sock.close()
        raise
    return sock


async def _ask_for_tunnel(sock: socket.socket, target: Target, user: bytes | None) -> None:
    """Have the host's own proxy connect to a target; closes the socket if it does not."""
    authority = target.authority(0)
    headers = [(b"host", authority)] + ([(b"proxy-authorization", user)] if user else [])
    asked = h11.Connection(h11.CLIENT, max_incomplete_event_size=_FORWARD_HEAD_BYTES)
    loop = asyncio.get_running_loop()
    try:
        head = asked.send(h11.Request(method=b"CONNECT", target=authority, headers=headers))
        end = asked.send(h11.EndOfMessage())
        await loop.sock_sendall(sock, (head or b"") + (end or b""))
        while True:
            event = asked.next_event()
            if event is h11.NEED_DATA:
                # One byte more than the answer would be taken from the tunnel's own.
                asked.receive_data(await loop.sock_recv(sock, 1))
            elif isinstance(event, h11.Response) and 200 <= event.status_code < 300:
                return
            elif not isinstance(event, h11.InformationalResponse):
                raise OSError("the proxy of the host refused the tunnel")
    except h11.RemoteProtocolError as problem:
        sock.close()
        raise OSError(f"the proxy of the host speaks no HTTP: {problem}") from None
    except BaseException:
        sock.close()
        raise


def _shown(target: Target) -> str:
    return f"{target.host}:{target.port}"
