"""Prometheus metrics under one naming scheme, and the endpoint that shows them.

Names are `sandfleet_<service>_<what>[_<unit>][_total]`, units seconds or bytes;
labels never hold a sandbox id, so the number of series does not grow with use.
Each service declares all of its metrics in its own `metrics.py` with these
helpers, and serves /metrics, /healthz and /readyz on `metrics_port`.
"""

from __future__ import annotations

import asyncio
import json
from bisect import bisect_left
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.registry import Collector

from .lifecycle import Health

FAST_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Distribution:
    """How many of some things are how large at this moment, as cumulative buckets.

    What `histogram_quantile` reads, without `rate`: unlike a histogram's, these counts fall, too.
    """

    def __init__(self, gauge: Gauge, bounds: Sequence[float]) -> None:
        self._bounds = tuple(sorted(bounds))
        self._buckets = [gauge.labels(str(float(b))) for b in self._bounds]
        self._buckets.append(gauge.labels("+Inf"))

    def set(self, values: Iterable[float]) -> None:
        """Replace what was counted before."""
        counts = [0] * len(self._buckets)
        for value in values:
            counts[bisect_left(self._bounds, value)] += 1
        total = 0
        for bucket, count in zip(self._buckets, counts, strict=True):
            total += count
            bucket.set(total)


class Metrics:
    """The metrics of one service, in a registry of its own."""

    def __init__(self, service: str) -> None:
        self.registry = CollectorRegistry()
        self.on_page: list[Callable[[], None]] = []
        """Called before a page is made, to bring up to date what is not counted as it happens."""
        self._prefix = f"sandfleet_{service}_"

    def counter(self, name: str, text: str, *labels: str) -> Counter:
        """Declare a counter; its name gets `_total`."""
        return Counter(self._prefix + name, text, labels, registry=self.registry)

    def gauge(self, name: str, text: str, *labels: str) -> Gauge:
        """Declare a gauge."""
        return Gauge(self._prefix + name, text, labels, registry=self.registry)

    def seconds(self, name: str, text: str, *labels: str) -> Histogram:
        """Declare a histogram of durations; its name gets `_seconds`."""
        return Histogram(
            f"{self._prefix}{name}_seconds",
            text,
            labels,
            registry=self.registry,
            buckets=FAST_SECONDS,
        )

    def distribution(self, name: str, text: str, bounds: Sequence[float]) -> Distribution:
        """Declare how some things are distributed now; its name gets `_bucket`."""
        return Distribution(self.gauge(f"{name}_bucket", text, "le"), bounds)

    def page(self) -> bytes:
        """Return all metrics in the exposition format."""
        for hear in self.on_page:
            hear()
        return generate_latest(self.registry)


class HealthMetrics(Collector):
    """A service's health as metrics, under the same names for all services.

    `sandfleet_health_ready`, and `sandfleet_health_check` for each check (1: fine, 0: not).
    """

    def __init__(self, health: Health) -> None:
        self._health = health

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """Run the checks and return what they say."""
        yield GaugeMetricFamily(
            "sandfleet_health_ready", "1 when requests are taken", value=self._health.is_ready
        )
        problems = self._health.problems() | self._health.warned()
        checks = GaugeMetricFamily(
            "sandfleet_health_check", "1 when the check finds nothing wrong", labels=["check"]
        )
        # A check and a warning may share a name; two samples of it would spoil the page.
        for name in self._health.checks | self._health.warnings:
            checks.add_metric([name], name not in problems)
        yield checks


@asynccontextmanager
async def exposed(metrics: Metrics, health: Health, *, host: str, port: int) -> AsyncGenerator[int]:
    """Serve /metrics, /healthz and /readyz while the block runs; yields the port.

    What `health` says is among the metrics (see HealthMetrics).

    The server speaks just enough HTTP/1.1 for a scraper: one GET per connection.
    """

    async def on_connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(5):
                request = await reader.readuntil(b"\r\n\r\n")
                status, kind, body = _respond(request, metrics.page, health)
                head = (
                    f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\n"
                    f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
                )
                writer.write(head.encode() + body)
                await writer.drain()
        except (
            TimeoutError,
            ConnectionError,
            asyncio.IncompleteReadError,
            asyncio.LimitOverrunError,
        ):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(on_connection, host, port, limit=16_384)
    by_health = HealthMetrics(health)
    metrics.registry.register(by_health)
    try:
        async with server:
            yield int(server.sockets[0].getsockname()[1])
    finally:
        metrics.registry.unregister(by_health)


def _respond(request: bytes, page: Callable[[], bytes], health: Health) -> tuple[str, str, bytes]:
    words = request.split(b" ", 2)
    path = words[1].split(b"?")[0] if len(words) == 3 and words[0] == b"GET" else b""
    if path == b"/metrics":
        return "200 OK", CONTENT_TYPE_LATEST, page()
    if path in (b"/healthz", b"/readyz"):
        problems = health.problems()
        fine = not problems and (health.is_ready or path == b"/healthz")
        told = {"ready": health.is_ready, "problems": problems, "warnings": health.warned()}
        body = json.dumps(told).encode()
        return ("200 OK" if fine else "503 Service Unavailable"), "application/json", body
    return "404 Not Found", "text/plain", b"not found\n"
