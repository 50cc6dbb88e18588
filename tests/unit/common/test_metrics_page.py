"""The metrics endpoint."""

from __future__ import annotations

import asyncio
import json

from sandfleet_common.lifecycle import Health
from sandfleet_common.metrics import Metrics, exposed


async def fetch(port: int, request: bytes) -> tuple[int, bytes]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    return int(head.split(b" ")[1]), body


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()


async def test_metrics_are_named_after_their_service() -> None:
    metrics = Metrics("demo")
    metrics.counter("things", "Things by kind", "kind").labels("odd").inc(2)
    metrics.seconds("work", "How long").observe(0.003)
    metrics.gauge("room_bytes", "Room").set(7)
    async with exposed(metrics, Health(), host="127.0.0.1", port=0) as port:
        status, body = await fetch(port, get("/metrics"))
    assert status == 200
    for line in (
        b'sandfleet_demo_things_total{kind="odd"} 2.0',
        b'sandfleet_demo_work_seconds_bucket{le="0.005"} 1.0',
        b"sandfleet_demo_room_bytes 7.0",
    ):
        assert line in body.splitlines()


async def test_readiness_follows_the_checks() -> None:
    health = Health()
    problem: str | None = None
    health.checks["bus"] = lambda: problem
    async with exposed(Metrics("demo"), health, host="127.0.0.1", port=0) as port:
        assert (await fetch(port, get("/readyz")))[0] == 503
        health.is_ready = True
        assert (await fetch(port, get("/readyz?x=1")))[0] == 200
        problem = "NATS is away"
        status, body = await fetch(port, get("/readyz"))
    assert status == 503
    assert json.loads(body)["problems"] == {"bus": "NATS is away"}


async def test_anything_else_is_not_found() -> None:
    async with exposed(Metrics("demo"), Health(), host="127.0.0.1", port=0) as port:
        for request in (get("/"), b"POST /metrics HTTP/1.1\r\n\r\n", b"rubbish\r\n\r\n"):
            assert (await fetch(port, request))[0] == 404


def test_a_distribution_counts_what_is_there_now() -> None:
    metrics = Metrics("demo")
    each = metrics.distribution("each_bytes", "Things by size", (1, 10))
    each.set([0, 1, 5, 10, 11])
    each.set([1, 2, 11, 12])
    assert [line for line in metrics.page().decode().splitlines() if line[0] != "#"] == [
        'sandfleet_demo_each_bytes_bucket{le="1.0"} 1.0',
        'sandfleet_demo_each_bytes_bucket{le="10.0"} 2.0',
        'sandfleet_demo_each_bytes_bucket{le="+Inf"} 4.0',
    ]


def test_what_is_not_counted_as_it_happens_is_measured_for_each_page() -> None:
    metrics = Metrics("demo")
    room = metrics.gauge("room_bytes", "Room")
    metrics.on_page.append(lambda: room.inc(2))
    metrics.page()
    assert b"sandfleet_demo_room_bytes 4.0" in metrics.page()
