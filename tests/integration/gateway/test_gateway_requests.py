"""The gateway's routes, and what it says for a node that is silent."""

from __future__ import annotations

import asyncio
import base64
import socket
from pathlib import Path

import httpx
import pytest
from running_gateway import (
    KEY,
    NODE,
    Running,
    ScriptedScheduler,
    failure,
    running_gateway,
)
from scripted_commands import ScriptedNode
from servers import Connect, Servers

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.logs import Logger
from sandfleet_common.states import Origin, State

pytestmark = pytest.mark.integration


async def test_a_sandbox_is_created_once_under_one_key(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    headers = {"Idempotency-Key": "attempt-1"}
    body = {"spec": {"environment": "debian", "labels": {"a": "b"}}}
    first = await http.post("/v1/sandboxes", json=body, headers=headers)
    again = await http.post("/v1/sandboxes", json=body, headers=headers)
    assert first.status_code == again.status_code == 201
    assert first.json()["sandbox_id"] == again.json()["sandbox_id"]
    assert first.json()["reason"] is None, "fields that hold their defaults are answered too"
    other = await http.post("/v1/sandboxes", json={"key": "2"}, headers=headers)
    assert "Idempotency-Key" in failure(other, 400, "bad_request")


async def test_a_typo_is_named_with_the_nearest_field(http: httpx.AsyncClient) -> None:
    body = {"spec": {"enviroment": "debian"}}
    message = failure(await http.post("/v1/sandboxes", json=body), 400, "bad_request")
    assert message == "spec.enviroment: there is no such field; did you mean 'environment'?"
    message = failure(await http.get("/v1/sandboxes?limt=3"), 400, "bad_request")
    assert message == "limt: there is no such query parameter; did you mean 'limit'?"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b"\xff\xfe", "not JSON"),
        (b'{"spec": {"resources": {"memory_bytes": 0}}}', "spec.resources.memory_bytes"),
        (b'{"spec": {"ttl_seconds": NaN}}', "not JSON"),
        (b'{"deadline_seconds": 1e999}', "deadline_seconds"),
        (b'{"spec": {"env": {"A=B": "x"}}}', "cannot be the name of an environment variable"),
        (b"[" * 100_000, "not JSON"),
    ],
)
async def test_a_bad_body_is_refused_with_a_reason(
    http: httpx.AsyncClient, content: bytes, words: str
) -> None:
    response = await http.post("/v1/sandboxes", content=content)
    assert words in failure(response, 400, "bad_request")


async def test_a_body_that_is_too_large_is_not_read(http: httpx.AsyncClient) -> None:
    response = await http.post("/v1/sandboxes", content=b" " * (4 * 1024 * 1024))
    assert "more than" in failure(response, 413, "bad_request")


def _send_without_end(port: int) -> bytes:
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\n"
        connection.sendall(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())
        try:
            while True:
                connection.sendall(b"10000\r\n" + b" " * 65536 + b"\r\n")
        except ConnectionError:
            return connection.recv(65536)


async def test_an_endless_body_is_answered_and_ends_with_its_connection(gateway: Running) -> None:
    answer = await asyncio.to_thread(_send_without_end, gateway.gateway.port)
    assert answer.startswith(b"HTTP/1.1 413")
    assert b"connection: close" in answer.lower()


async def test_query_parameters_have_types(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    query = {"ended": "true", "limit": "7", "labels": '{"a": "1"}', "state": "running"}
    assert (await http.get("/v1/sandboxes", params=query)).status_code == 200
    assert (await http.get("/v1/sandboxes?labels=a%3D1&labels=b%3D2")).status_code == 200
    typed, repeated = [b for b in scheduler.asked if isinstance(b, m.SandboxList)]
    assert (typed.ended, typed.limit, typed.labels) == (True, 7, {"a": "1"})
    assert typed.state is State.RUNNING
    assert repeated.labels == {"a": "1", "b": "2"}
    message = failure(await http.get("/v1/sandboxes?limit=many"), 400, "bad_request")
    assert message.startswith("limit: ")
    failure(await http.get("/v1/sandboxes?limit=1&limit=2"), 400, "bad_request")
    failure(await http.get("/v1/sandboxes?node=%ff"), 400, "bad_request")


async def test_a_request_keeps_its_id(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    response = await http.get("/v1/sandboxes", headers={"X-Request-Id": "rq-mine"})
    assert response.headers["x-request-id"] == "rq-mine"
    assert [b.request_id for b in scheduler.asked if isinstance(b, m.Request)] == ["rq-mine"]
    fresh = await http.get("/v1/sandboxes", headers={"X-Request-Id": "bad id"})
    assert fresh.headers["x-request-id"].startswith("rq-")
    assert (await http.get("/nowhere")).headers["x-request-id"]
    named = await http.post("/v1/sandboxes", json={"request_id": "rq-in-the-body"})
    assert named.headers["x-request-id"] == "rq-in-the-body"
    for wrong in ("a\r\nSet-Cookie: b", "\u00e9\u20ac", ""):
        refused = await http.post("/v1/sandboxes", json={"request_id": wrong})
        assert failure(refused, 400, "bad_request").startswith("request_id: ")


async def test_an_unknown_path_and_a_wrong_method_are_named(http: httpx.AsyncClient) -> None:
    assert "/v1/sandbox" in failure(await http.get("/v1/sandbox"), 404, "not_found")
    failure(await http.put("/v1/sandboxes"), 405, "bad_request")
    failure(await http.get("/v1/sandboxes/not-an-id/commands"), 400, "bad_request")
    failure(await http.get("/v1/sandboxes/a%2Fb"), 404, "not_found")


async def test_a_command_runs_on_the_node_its_sandbox_names(
    http: httpx.AsyncClient, node: ScriptedNode
) -> None:
    sandbox = new_sandbox_id(NODE)
    body = {"argv": ["cat"], "stdin": base64.b64encode(b"\xff\xfe?").decode(), "exec_id": "e1"}
    started = await http.post(f"/v1/sandboxes/{sandbox}/commands", json=body)
    assert started.status_code == 201, started.text
    assert started.json()["argv"] == ["cat"]
    asked = node.asked[0]
    assert isinstance(asked, m.ExecStart)
    assert (asked.sandbox_id, asked.stdin) == (sandbox, b"\xff\xfe?")
    state = await http.get(f"/v1/sandboxes/{sandbox}/commands/e1?position=0&wait_seconds=0.5")
    assert state.json()["state"] == "running"
    signal = await http.post(f"/v1/sandboxes/{sandbox}/commands/e1/signal", json={"signal": 9})
    assert signal.json()["signal"] == 9
    missing = await http.get(f"/v1/sandboxes/{sandbox}/commands/e2")
    assert "e2" in failure(missing, 404, "not_found")


async def test_a_sandbox_that_ended_is_gone_with_its_reason(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    info = scheduler.record(
        "n7", state=State.STOPPED, reason="its time was up", origin=Origin.PLATFORM
    )
    response = await http.get(f"/v1/sandboxes/{info.sandbox_id}/commands")
    assert "its time was up" in failure(response, 410, "sandbox_gone")
    assert response.json()["fields"]["state"] == "stopped"


async def test_a_sandbox_whose_node_was_lost_is_answered_as_that(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    info = scheduler.record(
        "n7", state=State.FAILED, reason="n7 fell silent", origin=Origin.NODE_LOST
    )
    response = await http.get(f"/v1/sandboxes/{info.sandbox_id}/processes")
    assert "n7 fell silent" in failure(response, 502, "node_lost")


async def test_a_node_that_is_away_for_a_moment_may_be_asked_again(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    info = scheduler.record("n7")
    response = await http.get(f"/v1/sandboxes/{info.sandbox_id}/processes")
    assert "ask again" in failure(response, 503, "unreachable")
    assert int(response.headers["retry-after"]) >= 1


async def test_the_usage_of_a_node_nobody_knows_is_not_found(
    http: httpx.AsyncClient, gateway: Running, connect: Connect
) -> None:
    response = await http.get("/v1/nodes/n7/usage")
    failure(response, 503, "unreachable")

    async def nodes(body: m.NodeList) -> m.NodePage:
        return m.NodePage(nodes=[])

    bus = await connect("scheduler")
    await bus.serve(s.NODE_LIST, nodes)
    await bus.flush()
    response = await http.get("/v1/nodes/n7/usage")
    assert failure(response, 404, "not_found") == "no node 'n7' is alive"


async def test_a_sandbox_nobody_knows_is_not_found(http: httpx.AsyncClient) -> None:
    response = await http.get(f"/v1/sandboxes/{new_sandbox_id('n7')}/commands")
    failure(response, 404, "not_found")


async def test_ending_a_sandbox_twice_is_no_error(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    info = scheduler.record("n7", state=State.STOPPED, reason="stopped by its user")
    response = await http.delete(f"/v1/sandboxes/{info.sandbox_id}")
    assert (response.status_code, response.json()["state"]) == (200, "stopped")


async def test_without_schedulers_it_is_unreachable(
    servers: Servers, tmp_path: Path, log: Logger
) -> None:
    async with running_gateway(servers, tmp_path, log) as gateway, gateway.client() as http:
        failure(await http.get("/v1/nodes"), 503, "unreachable")
