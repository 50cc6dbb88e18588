"""The gateway's HTTP API, in front of real NATS and a peer that serves nodes and schedulers."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path

import httpx
import psutil
import pytest
import pytest_asyncio
from running_gateway import (
    KEY,
    OTHER_KEY,
    Running,
    ScriptedScheduler,
    key_line,
    running_gateway,
    until,
)
from scripted_commands import ScriptedNode
from servers import Connect, Servers

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Delivery
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.states import Origin, State

pytestmark = pytest.mark.integration

NODE = "n1"


@pytest_asyncio.fixture
async def scheduler(connect: Connect) -> AsyncGenerator[ScriptedScheduler]:
    async with ScriptedScheduler.serve(await connect("scheduler")) as scheduler:
        yield scheduler


@pytest_asyncio.fixture
async def node(connect: Connect) -> AsyncGenerator[ScriptedNode]:
    async with ScriptedNode.serve(await connect("node"), NODE) as node:
        yield node


@pytest_asyncio.fixture
async def gateway(
    servers: Servers, tmp_path: Path, scheduler: ScriptedScheduler
) -> AsyncGenerator[Running]:
    log = Logger("gateway", out=io.StringIO())
    async with running_gateway(servers, tmp_path, log) as gateway:
        yield gateway


@pytest_asyncio.fixture
async def http(gateway: Running) -> AsyncGenerator[httpx.AsyncClient]:
    async with gateway.client() as client:
        yield client


def failure(response: httpx.Response, status: int, code: str) -> str:
    """Check an error's status and code, and return its sentence."""
    assert response.status_code == status, response.text
    body = m.Failure.decode(response.content)
    assert body.code == code
    return body.message


# ------------------------------------------------------------------------ keys


async def test_without_a_key_nobody_comes_in(gateway: Running) -> None:
    async with gateway.client(key=None) as http:
        response = await http.get("/v1/nodes")
        assert "API key is needed" in failure(response, 401, "denied")
        assert response.headers["www-authenticate"].startswith("Bearer")
        # The right key in the wrong place is no key.
        assert (await http.get(f"/v1/sandboxes?api_key={KEY}")).status_code == 401


async def test_an_unknown_key_is_refused(gateway: Running) -> None:
    async with gateway.client(key="sfk-unknown") as http:
        assert "not known" in failure(await http.get("/v1/sandboxes"), 401, "denied")


async def test_a_key_may_stand_in_either_header(gateway: Running) -> None:
    async with gateway.client(key=None) as http:
        assert (await http.get("/v1/sandboxes", headers={"X-API-Key": KEY})).status_code == 200
        basic = {"Authorization": f"bearer {OTHER_KEY}"}
        assert (await http.get("/v1/sandboxes", headers=basic)).status_code == 200


async def test_a_changed_key_file_is_read_again(gateway: Running, http: httpx.AsyncClient) -> None:
    assert (await http.get("/v1/sandboxes")).status_code == 200
    gateway.keys.write_text(key_line("new", "sfk-new") + "# the old one is gone\n")

    async def is_refused() -> bool:
        return (await http.get("/v1/sandboxes")).status_code == 401

    await until(is_refused)
    async with gateway.client(key="sfk-new") as fresh:
        assert (await fresh.get("/v1/sandboxes")).status_code == 200


async def test_a_missing_key_file_lets_nobody_in(gateway: Running, http: httpx.AsyncClient) -> None:
    gateway.keys.unlink()

    async def is_refused() -> bool:
        return (await http.get("/v1/sandboxes")).status_code == 401

    await until(is_refused)
    ready = await http.get("/readyz")
    assert ready.status_code == 503
    assert "keys" in ready.json()["problems"]


async def test_loopback_may_be_open_but_not_to_foreign_pages(
    servers: Servers, tmp_path: Path, log: Logger, scheduler: ScriptedScheduler
) -> None:
    options = {"api_keys_file": None, "open_to_loopback": True}
    async with (
        running_gateway(servers, tmp_path, log, **options) as gateway,
        gateway.client(key=None) as http,
    ):
        assert (await http.get("/v1/sandboxes")).status_code == 200
        for headers in (
            {"Origin": "https://elsewhere.example"},
            {"Host": "rebound.example"},
            {"X-Forwarded-For": "203.0.113.9"},
        ):
            assert (await http.get("/v1/sandboxes", headers=headers)).status_code == 401


async def test_keys_are_never_logged(
    servers: Servers, tmp_path: Path, scheduler: ScriptedScheduler
) -> None:
    out = io.StringIO()
    async with (
        running_gateway(servers, tmp_path, Logger("gateway", out=out)) as gateway,
        gateway.client() as http,
    ):
        await http.get(f"/v1/sandboxes?api_key={KEY}")
        await http.get("/v1/sandboxes", headers={"X-API-Key": KEY})
        await http.post("/v1/sandboxes", json={"api_key": KEY})
        offer = [f"sandfleet.key.{KEY}"]
        async with gateway.session(new_sandbox_id(NODE), key=None, subprotocols=offer):
            pass
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [line["caller"] for line in lines if line["event"] == "http.request"]
    assert KEY not in out.getvalue()


# -------------------------------------------------------------------- requests


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


async def test_an_endless_body_ends_with_its_connection(gateway: Running) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.gateway.port)
    head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\n"
    writer.write(f"{head}Transfer-Encoding: chunked\r\n\r\n".encode())

    async def send() -> None:
        try:
            while True:
                writer.write(b"10000\r\n" + b" " * 65536 + b"\r\n")
                await writer.drain()
        except ConnectionError:
            return

    async with asyncio.TaskGroup() as group:
        group.create_task(send())
        assert (await reader.readuntil(b"\r\n")).startswith(b"HTTP/1.1 413")
    writer.close()


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


# -------------------------------------------------------------- a silent node


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


# ------------------------------------------------------------------------ jobs


async def test_a_job_is_queued_once(
    http: httpx.AsyncClient, connect: Connect, log: Logger, scheduler: ScriptedScheduler
) -> None:
    admin = await connect("admin")
    await admin.ensure_streams()
    headers = {"Idempotency-Key": "job-mine"}
    first = await http.post("/v1/jobs", json={"count": 3}, headers=headers)
    again = await http.post("/v1/jobs", json={"count": 3, "job_id": "job-mine"})
    assert (first.status_code, first.json()) == (202, {"job_id": "job-mine", "is_new": True})
    assert (again.status_code, again.json()) == (202, {"job_id": "job-mine", "is_new": False})
    queued: asyncio.Queue[m.JobSubmit] = asyncio.Queue()

    async def work(delivery: Delivery) -> None:
        await queued.put(m.JobSubmit.decode(delivery.payload))
        await delivery.done()

    async with Tasks(log) as tasks:
        tasks.start(admin.take("SF_JOBS", "test", work, at_once=2), "take")
        job = await queued.get()
        assert (job.job_id, job.count) == ("job-mine", 3)
        assert queued.empty()


def _job(state: m.JobState, ready: int = 0) -> m.JobInfo:
    return m.JobInfo(job_id="job-1", state=state, count=4, ready=ready, failed=1, submitted_at=1.0)


async def _events(response: httpx.Response) -> AsyncIterator[m.JobEvent]:
    async for line in response.aiter_lines():
        if line.startswith("data: "):
            yield m.JobEvent.decode(line.removeprefix("data: ").encode())


async def test_job_events_begin_with_what_is_on_record_and_tell_a_slot_once(
    http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    slots = [scheduler.record("n1", job_id="job-1", slot=k) for k in range(4)]
    failed = m.SlotFailure(slot=3, code="no_capacity", message="full")
    scheduler.jobs["job-1"] = _job(m.JobState.PLACING)
    scheduler.slots["job-1"] = {0: slots[0], 3: failed}
    told: list[int | None] = []
    async with http.stream("GET", "/v1/jobs/job-1/events") as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        events = _events(response)
        first = await anext(events)
        told += [info.slot for info in first.ready] + [f.slot for f in first.failed]
        # One live event tells a slot of the record again, another one is lost.
        live = m.JobEvent(job=_job(m.JobState.PLACING), ready=[slots[0], slots[1]])
        await scheduler.bus.publish(s.JOB_EVENTS, live, job="job-1")
        scheduler.slots["job-1"] |= {1: slots[1], 2: slots[2]}
        scheduler.jobs["job-1"] = _job(m.JobState.DONE, ready=3)
        done = m.JobEvent(job=_job(m.JobState.DONE, ready=3))
        await scheduler.bus.publish(s.JOB_EVENTS, done, job="job-1")
        async for event in events:
            told += [info.slot for info in event.ready] + [f.slot for f in event.failed]
    assert sorted(slot for slot in told if slot is not None) == [0, 1, 2, 3]


async def test_a_stream_of_events_ends_with_its_client_and_with_the_gateway(
    servers: Servers, tmp_path: Path, log: Logger, scheduler: ScriptedScheduler
) -> None:
    scheduler.jobs["job-1"] = _job(m.JobState.PLACING)
    scheduler.slots["job-1"] = {}
    async with running_gateway(servers, tmp_path, log) as gateway, gateway.client() as http:

        async def streams_are(count: int) -> bool:
            return await gateway.metric("event_streams") == count

        async with http.stream("GET", "/v1/jobs/job-1/events") as response:
            await anext(_events(response))
            assert await streams_are(1)
        await until(lambda: streams_are(0))
        async with http.stream("GET", "/v1/jobs/job-1/events") as response:
            events = _events(response)
            await anext(events)
            async with asyncio.TaskGroup() as group:
                group.create_task(gateway.gateway.drain())
                assert [event async for event in events] == []


async def test_events_lost_with_the_bus_are_read_from_the_record(
    servers: Servers, http: httpx.AsyncClient, scheduler: ScriptedScheduler
) -> None:
    scheduler.jobs["job-1"] = _job(m.JobState.PLACING)
    scheduler.slots["job-1"] = {}
    async with http.stream("GET", "/v1/jobs/job-1/events") as response:
        events = _events(response)
        await anext(events)
        servers.nats.stop()
        scheduler.slots["job-1"] = {0: scheduler.record("n1", job_id="job-1", slot=0)}
        scheduler.jobs["job-1"] = _job(m.JobState.DONE, ready=1)
        servers.nats.start()
        told = [info.slot async for event in events for info in event.ready]
    assert told == [0]


async def test_events_of_an_unknown_job_are_not_found(http: httpx.AsyncClient) -> None:
    failure(await http.get("/v1/jobs/job-2/events"), 404, "not_found")


# ----------------------------------------------------------------------- files


async def test_a_file_goes_in_and_out_as_raw_bytes(
    http: httpx.AsyncClient, node: ScriptedNode
) -> None:
    content = bytes(range(256)) * 8192 + b"end"
    path = f"/v1/sandboxes/{new_sandbox_id(NODE)}/files/content"
    put = await http.put(path, params={"path": "/a b", "mode": "0755"}, content=content)
    assert put.json() == {"path": "/a b", "size": len(content)}
    writes = [b for b in node.asked if isinstance(b, m.FileWrite)]
    assert [w.end for w in writes] == [False] * (len(writes) - 1) + [True]
    assert len(writes) > 1
    assert writes[0].mode == 0o755
    got = await http.get(path, params={"path": "/a b"})
    assert got.content == content
    assert int(got.headers["content-length"]) == len(content)
    part = await http.get(path, params={"path": "/a b"}, headers={"Range": "bytes=1000-1003"})
    assert (part.status_code, part.content) == (206, content[1000:1004])
    assert part.headers["content-range"] == f"bytes 1000-1003/{len(content)}"
    beyond = await http.get(path, params={"path": "/a b"}, headers={"Range": "bytes=9999999-"})
    assert beyond.status_code == 416
    head = await http.head(path, params={"path": "/a b"})
    assert int(head.headers["content-length"]) == len(content)


async def test_an_empty_file_is_a_file(http: httpx.AsyncClient, node: ScriptedNode) -> None:
    path = f"/v1/sandboxes/{new_sandbox_id(NODE)}/files/content"
    assert (await http.put(path, params={"path": "/e"}, content=b"")).status_code == 200
    assert node.files == {"/e": b""}
    got = await http.get(path, params={"path": "/e"})
    assert (got.status_code, got.content) == (200, b"")


async def test_an_upload_that_breaks_off_makes_no_file(
    gateway: Running, node: ScriptedNode
) -> None:
    path = f"/v1/sandboxes/{new_sandbox_id(NODE)}/files/content?path=/half"
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.gateway.port)
    head = f"PUT {path} HTTP/1.1\r\nHost: x\r\nX-API-Key: {KEY}\r\nContent-Length: 9000000\r\n\r\n"
    writer.write(head.encode() + bytes(2_000_000))
    await writer.drain()
    await until(lambda: node.uploads)
    writer.close()
    await writer.wait_closed()
    del reader
    async with gateway.client() as http:  # whatever is to come has come
        assert (await http.get("/healthz")).status_code == 200
    await asyncio.sleep(0.2)
    assert node.files == {}
    assert all(not b.end for b in node.asked if isinstance(b, m.FileWrite))


async def test_a_file_that_shrinks_while_it_is_read_breaks_off(
    http: httpx.AsyncClient, node: ScriptedNode
) -> None:
    path = f"/v1/sandboxes/{new_sandbox_id(NODE)}/files/content"
    node.files["/log"] = bytes(40_000_000)
    with pytest.raises(httpx.RemoteProtocolError):
        async with http.stream("GET", path, params={"path": "/log"}) as response:
            async for _ in response.aiter_raw():
                node.files["/log"] = b"short"
    assert (await http.get(path, params={"path": "/log"})).content == b"short"


async def test_a_missing_file_is_an_error_with_a_status(
    http: httpx.AsyncClient, node: ScriptedNode
) -> None:
    path = f"/v1/sandboxes/{new_sandbox_id(NODE)}/files/content"
    failure(await http.get(path, params={"path": "/none"}), 422, "file_error")
    failure(await http.get(path), 400, "bad_request")
    failure(await http.get(path, params={"pth": "/none"}), 400, "bad_request")
    failure(await http.put(path, params={"path": "/a\0b"}), 400, "bad_request")


# --------------------------------------------------------------- its own pages


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
