"""For tests of the build network: hosts to reach, and the real proxy in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sandfleet_common.ids import new_sandbox_id
from sandfleet_node.egress.orders import Add, Counts, Limits, Refused, Remove, RuleGiven, Rules
from sandfleet_node.egress.policy import Rule
from sandfleet_node.egress.proxylink import ProxyLink, connect
from sandfleet_node.launcherprocess import peer_pid


def certificate(directory: Path, name: str) -> tuple[Path, Path]:
    """Return a certificate of one host and its key."""
    cert, key = directory / "cert.pem", directory / "key.pem"
    argv = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]
    argv += ["-nodes", "-days", "2", "-subj", f"/CN={name}"]
    argv += ["-addext", f"subjectAltName=DNS:{name}"]
    try:
        subprocess.run(
            [*argv, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
        )
    except FileNotFoundError:
        pytest.skip("needs openssl: apt-get install openssl")
    return cert, key


class Origin:
    """A host on loopback that writes down what it is sent."""

    def __init__(self) -> None:
        self.port = 0
        self.connections = 0
        self.heads: list[bytes] = []
        self.bodies: list[bytes] = []
        self.pushed_bytes = 0
        """Sent of an answer without an end."""
        self._serving: set[asyncio.Task[None]] = set()

    async def on_client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        serving = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(serving)
        await asyncio.wait({serving})
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
        self._serving.discard(serving)

    async def close(self) -> None:
        """Break off what is still served."""
        for serving in self._serving:
            serving.cancel()
        while self._serving:
            await asyncio.sleep(0.001)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                length = 0
                for line in head.lower().split(b"\r\n"):
                    if line.startswith(b"content-length:"):
                        length = int(line.partition(b":")[2])
                self.bodies.append(await reader.readexactly(length))
                await self._answer(head.split(b" ")[1], writer)

    async def _answer(self, path: bytes, writer: asyncio.StreamWriter) -> None:
        if path == b"/endless":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n")
            while True:
                writer.write(bytes(65536))
                await writer.drain()
                self.pushed_bytes += 65536
        if path == b"/chunked":
            writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            writer.write(b"3\r\nabc\r\n0\r\n\r\n")
        elif path == b"/until-closed":
            writer.write(b"HTTP/1.0 200 OK\r\n\r\nall of it")
            writer.close()
        elif path == b"/broken":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabc")
        elif path == b"/silent":
            await asyncio.sleep(60)
        else:
            body = b"you asked for " + path
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n" % len(body))
            writer.write(b"Connection: keep-alive\r\nX-Origin: yes\r\n\r\n" + body)
        await writer.drain()


@asynccontextmanager
async def origin(context: ssl.SSLContext | None = None) -> AsyncGenerator[Origin]:
    """Run one, with TLS if it has a context."""
    host = Origin()
    server = await asyncio.start_server(host.on_client, "127.0.0.1", 0, ssl=context)
    host.port = server.sockets[0].getsockname()[1]
    try:
        yield host
    finally:
        server.close()
        await host.close()


_ORPHAN_SECONDS = 5


class Proxied:
    """A proxy, seen from a sandbox: its door is an ordinary socket on loopback here."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.link: ProxyLink | None = None
        self.door = 0
        self.sandbox_id = new_sandbox_id("node")
        self.refused: list[Refused] = []
        self.sent: dict[str, int] = {}
        self.received = 0
        self._hearing: asyncio.Task[None] | None = None

    async def connect(self) -> ProxyLink:
        """Connect as a node does."""
        self.link = await ProxyLink.open(self.directory, _ORPHAN_SECONDS)
        self._hearing = asyncio.ensure_future(self._hear(self.link))
        return self.link

    async def _hear(self, link: ProxyLink) -> None:
        with contextlib.suppress(OSError):
            while (report := await link.receive()) is not None:
                if isinstance(report, Refused):
                    if report.sandbox_id == self.sandbox_id:
                        self.refused.append(report)
                else:
                    self._count(report)

    def _count(self, counts: Counts) -> None:
        self.sent |= counts.sent
        self.received += counts.received

    async def leave(self) -> None:
        """Go away as a node that is killed does."""
        if self._hearing is not None:
            self._hearing.cancel()
        if self.link is not None:
            self.link.close()
        self.link = None

    async def rule(self, *rules: Rule, **limits: float) -> None:
        """Give it a policy."""
        assert self.link is not None
        given = tuple(RuleGiven.of(rule) for rule in rules)
        await self.link.send(Rules(rules=given, limits=Limits.model_validate(limits)))

    async def add(self) -> None:
        """Give it the sandbox, with a new door."""
        assert self.link is not None
        with socket.create_server(("127.0.0.1", 0)) as sock:
            await self.link.send(Add(sandbox_id=self.sandbox_id), sock.fileno())
            self.door = int(sock.getsockname()[1])

    async def open(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Connect as a program in the sandbox does."""
        return await asyncio.open_connection("127.0.0.1", self.door)

    async def say(self, data: bytes) -> bytes:
        """Send bytes, and return all that comes back until the connection's end."""
        reader, writer = await self.open()
        try:
            writer.write(data)
            return await reader.read()
        except ConnectionError:
            return b""
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    def pid(self) -> int:
        """Return the proxy's process."""
        with connect(self.directory) as sock:
            return peer_pid(sock)

    async def drop(self) -> None:
        """End the sandbox, if the proxy is there."""
        if self.link is not None:
            await self.link.send(Remove(sandbox_id=self.sandbox_id))


@asynccontextmanager
async def proxied(directory: Path) -> AsyncGenerator[Proxied]:
    """Connect to the proxy of a directory, or start it, with one sandbox and no policy yet."""
    proxy = Proxied(directory)
    try:
        await proxy.connect()
        await proxy.rule()
        await proxy.add()
        yield proxy
        await proxy.drop()
    finally:
        await proxy.leave()
