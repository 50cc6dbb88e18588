"""The gateway's own pages, limits, metrics and end."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
from pathlib import Path

import httpx
import psutil
import pytest
from running_gateway import (
    KEY,
    NODE,
    Running,
    ScriptedScheduler,
    failure,
    key_line,
    running_gateway,
    until,
)
from scripted_commands import ScriptedNode
from servers import Connect, Servers, free_port

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.logs import Logger

pytestmark = pytest.mark.integration


async def test_its_own_pages_need_no_key(gateway: Running) -> None:
    async with gateway.client(key=None) as http:
        assert (await http.get("/")).json()["name"] == "Sandfleet gateway"
        assert (await http.get("/healthz")).status_code == 200
        assert (await http.get("/readyz")).json()["ready"] is True
        assert "/v1/sandboxes" in (await http.get("/openapi.json")).json()["paths"]


async def test_it_is_not_ready_while_the_bus_is_down(
    gateway: Running, servers: Servers, http: httpx.AsyncClient
) -> None:
    servers.nats.stop()

    async def status_is(path: str, status: int) -> bool:
        return (await http.get(path)).status_code == status

    await until(lambda: status_is("/readyz", 503))
    assert "bus" in (await http.get("/readyz")).json()["problems"]
    servers.nats.start()
    await until(lambda: status_is("/v1/sandboxes", 200))


async def test_too_many_requests_at_once_are_turned_away(
    servers: Servers, tmp_path: Path, log: Logger, connect: Connect
) -> None:
    bus = await connect("scheduler")
    release = asyncio.Event()

    async def slow(_: m.NodeList) -> m.NodePage:
        await release.wait()
        return m.NodePage(nodes=[])

    await bus.serve(s.NODE_LIST, slow)
    await bus.flush()
    async with (
        running_gateway(servers, tmp_path, log, requests_max=2) as gateway,
        gateway.client() as http,
        asyncio.TaskGroup() as group,
    ):
        tasks = [group.create_task(http.get("/v1/nodes")) for _ in range(3)]
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        refused = done.pop().result()
        failure(refused, 429, "busy")
        assert refused.headers["retry-after"] == "1"
        release.set()
    assert sorted(task.result().status_code for task in tasks) == [200, 200, 429]


async def _is_closed(port: int) -> bool:
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", port)
    except OSError:
        return True
    writer.close()
    return False


async def test_a_drained_gateway_finishes_its_requests(
    servers: Servers, tmp_path: Path, log: Logger, connect: Connect
) -> None:
    bus = await connect("scheduler")
    asked, release = asyncio.Event(), asyncio.Event()

    async def slow(_: m.NodeList) -> m.NodePage:
        asked.set()
        await release.wait()
        return m.NodePage(nodes=[])

    await bus.serve(s.NODE_LIST, slow)
    await bus.flush()
    async with (
        running_gateway(servers, tmp_path, log, drain_seconds=10) as gateway,
        gateway.client() as http,
        asyncio.TaskGroup() as group,
    ):
        request = group.create_task(http.get("/v1/nodes"))
        await asked.wait()
        draining = group.create_task(gateway.gateway.drain())
        await until(lambda: _is_closed(gateway.gateway.port))
        release.set()
        assert (await request).status_code == 200
        await draining


async def test_answers_are_not_held_back_by_nagles_algorithm(
    gateway: Running, http: httpx.AsyncClient
) -> None:
    await http.get("/healthz")
    theirs = [
        connection.fd
        for connection in psutil.Process().net_connections("tcp")
        if connection.laddr.port == gateway.gateway.port and connection.raddr
    ]
    assert theirs
    for fd in theirs:
        with socket.socket(fileno=os.dup(fd)) as served:
            assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


async def test_its_metrics_name_routes_and_not_paths(
    gateway: Running, http: httpx.AsyncClient, node: ScriptedNode
) -> None:
    sandbox = new_sandbox_id(NODE)
    await http.get(f"/v1/sandboxes/{sandbox}/commands/e1")
    page = (await http.get(f"http://127.0.0.1:{gateway.metrics_port}/metrics")).text
    route = 'route="/v1/sandboxes/{sandbox_id}/commands/{exec_id}",status="404"'
    assert f'sandfleet_gateway_requests_total{{method="GET",{route}}} 1.0' in page
    assert sandbox not in page


async def test_the_process_serves_until_it_is_told_to_stop(
    servers: Servers, scheduler: ScriptedScheduler, tmp_path: Path
) -> None:
    keys, port = tmp_path / "keys", str(free_port())
    keys.write_text(key_line("tester", KEY))
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sandfleet_gateway",
        env=servers.environment("gateway", port=port, api_keys_file=str(keys)),
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    async for line in process.stderr:
        if json.loads(line)["event"] == "service.ready":
            break
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as http:
        assert (await http.get("/v1/sandboxes", headers={"X-API-Key": KEY})).status_code == 200
        process.terminate()
        _, rest = await process.communicate()
    assert process.returncode == 0
    events = [json.loads(line) for line in rest.decode().splitlines()]
    assert events[-1]["event"] == "service.stopped"
    assert all(event["level"] == "info" for event in events), "it stops without complaint"


async def test_a_setting_that_does_not_fit_stops_the_start_and_is_named(servers: Servers) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "sandfleet_gateway",
        env=servers.environment("gateway", requests_max="0", prot="1"),
        stderr=asyncio.subprocess.PIPE,
    )
    _, text = await process.communicate()
    assert process.returncode == 2
    assert b"requests_max" in text
    assert b"prot" in text
