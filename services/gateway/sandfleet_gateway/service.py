"""The service: a web server, its connection to the bus, and how both end."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import time
from collections.abc import Callable, Generator

import uvicorn

from sandfleet.nats_transport import NatsTransport
from sandfleet_common.bus import Bus
from sandfleet_common.lifecycle import Health, Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.metrics import exposed

from .app import build_app
from .asking import Upstream
from .config import GatewaySettings
from .draining import Draining
from .keys import KeyFile
from .metrics import GatewayMetrics
from .sessions import Platform

START_SECONDS = 10.0
BACKLOG = 2048
HEAD_BYTES = 64 * 1024
"""Most bytes of a request's head."""


class _Server(uvicorn.Server):
    """uvicorn without its signal handlers: signals are the service runner's."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say when that is so."""
        await super().startup(sockets)
        self.is_listening.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals alone."""
        yield


class _LogBridge(logging.Handler):
    """Makes what the web server has to say lines of our log."""

    def __init__(self, log: Logger) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record."""
        error = record.exc_info[1] if record.exc_info else None
        self._log.warning("server.message", text=record.getMessage().strip(), error=error)


class Gateway:
    """One replica; run it with `lifecycle.serve`."""

    name = "gateway"

    def __init__(self, settings: GatewaySettings, log: Logger, health: Health) -> None:
        self._settings = settings
        self._log = log
        self._health = health
        self._draining = Draining()
        self._server: _Server | None = None
        self._has_ended = asyncio.Event()
        self.port = 0
        """Where it listens, once it does."""

    async def run(self, ready: Callable[[], None]) -> None:
        """Serve until cancelled or drained."""
        try:
            await self._run(ready)
        finally:
            self._has_ended.set()

    async def _run(self, ready: Callable[[], None]) -> None:
        settings, log = self._settings, self._log
        metrics = GatewayMetrics()
        keys = KeyFile(settings.api_keys_file, log, time.monotonic)
        if settings.api_keys_file is None and not settings.open_to_loopback:
            log.warning("keys.none", text="no api_keys_file is set: every request is refused")
        async with (
            Bus.connect(settings.bus("gateway"), log) as bus,
            Tasks(log) as tasks,
            exposed(
                metrics.metrics,
                self._health,
                host=settings.metrics_host,
                port=settings.metrics_port,
            ),
        ):
            self._health.checks["bus"] = lambda: None if bus.is_connected else "not connected"
            self._health.checks["keys"] = keys.check
            self._health.warnings["keys"] = keys.warning
            upstream = Upstream(bus, NatsTransport(bus, tasks), settings.ask_seconds)
            platform = Platform(upstream, settings, metrics, self._draining, log)
            server = self._server = self._make_server(platform, keys)
            with self._listen() as listener:
                self.port = int(listener.getsockname()[1])
                log.info("gateway.listening", host=settings.host, port=self.port)
                serving = tasks.start(server.serve([listener]), "gateway.serve")
                async with asyncio.timeout(START_SECONDS):
                    await server.is_listening.wait()
                ready()
                await serving

    async def drain(self) -> None:
        """Take nothing new, finish requests, close sessions and long waits."""
        self._draining.begin()
        if self._server is not None:
            self._server.should_exit = True
            await self._has_ended.wait()

    def _listen(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self._settings.host else socket.AF_INET
        # The protocol is named, for asyncio turns off Nagle's algorithm only where it is:
        # an answer's head and body are two writes, and would wait 40 ms for each other.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self._settings.host, self._settings.port))
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
        return listener

    def _make_server(self, platform: Platform, keys: KeyFile) -> _Server:
        for name in ("uvicorn.error", "uvicorn.access", "websockets"):
            logger = logging.getLogger(name)
            logger.handlers = [_LogBridge(self._log)]
            logger.propagate = False
            logger.setLevel(logging.WARNING)
        settings = self._settings
        return _Server(
            uvicorn.Config(
                build_app(platform, keys, self._health),
                lifespan="off",
                interface="asgi3",
                log_config=None,
                access_log=False,
                # The address in the log is the peer's, not what a header claims.
                proxy_headers=False,
                server_header=False,
                ws="websockets-sansio",
                ws_max_size=settings.socket_message_bytes,
                ws_ping_interval=settings.ping_seconds,
                ws_ping_timeout=settings.pong_seconds,
                # Output is mostly small and soon read; zlib would cost more than it saves,
                # and memory for every session.
                ws_per_message_deflate=False,
                h11_max_incomplete_event_size=HEAD_BYTES,
                timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
            )
        )
