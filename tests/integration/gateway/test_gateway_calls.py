"""Function calls over HTTP: POST /v1/calls, and POST /run_code as clients of SandboxFusion ask."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import urllib.request
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from calls_peer import CallsPeer, serving_calls
from running_gateway import KEY, OTHER_KEY, Running, failure, running_gateway
from servers import Connect, Servers

from sandfleet import Call
from sandfleet_common.errors import NoCapacity
from sandfleet_common.logs import Logger
from sandfleet_common.messages import CallStep, FunctionResult
from sandfleet_gateway import asking

pytestmark = pytest.mark.integration


@pytest_asyncio.fixture
async def peer(connect: Connect) -> AsyncGenerator[CallsPeer]:
    async with serving_calls(await connect("node"), await connect("scheduler")) as peer:
        yield peer


def verl(url: str, **fields: Any) -> tuple[int, dict[str, Any]]:
    """Ask as verl's reward function does: this body, these headers, whatever the URL holds."""
    wanted: dict[str, Any] = {
        "compile_timeout": 10,
        "run_timeout": 10,
        "code": "print(input()[::-1])",
        "stdin": "abc",
        "memory_limit_MB": 1024,
        "language": "python",
        "files": {},
        "fetch_files": [],
    }
    headers = {"Content-Type": "application/json", "Accept": "application/json"}
    with httpx.Client() as http:  # credentials in a URL become HTTP Basic, as in requests
        response = http.post(url, headers=headers, content=json.dumps(wanted | fields), timeout=30)
    return response.status_code, response.json()


def with_key(gateway: Running, key: str = KEY) -> str:
    return gateway.url.replace("http://", f"http://verl:{key}@") + "/run_code"


# ------------------------------------------------------------------- /v1/calls


async def test_a_call_is_a_request(http: httpx.AsyncClient, peer: CallsPeer) -> None:
    body = {
        "code": "import sys; print(sys.stdin.read(), open('a').read())",
        "stdin": base64.b64encode(b"in").decode(),
        "files": {"a": base64.b64encode(b"file").decode()},
        "fetch": ["a"],
        "limits": {"wall_seconds": 3},
    }
    response = await http.post("/v1/calls", json=body)
    assert response.status_code == 200, response.text
    told = response.json()
    assert (told["status"], told["step"]["exit_code"]) == ("ok", 0)
    assert base64.b64decode(told["step"]["stdout"]) == b"in file\n"
    assert base64.b64decode(told["files"]["a"]) == b"file"
    assert (told["wait_ms"], told["run_ms"]) == (1, 2)


async def test_a_repetition_goes_by_the_same_name(http: httpx.AsyncClient, peer: CallsPeer) -> None:
    await http.post("/v1/calls", json={"code": "1"}, headers={"Idempotency-Key": "attempt-1"})
    assert peer.asked[0].request_id == "attempt-1"


async def test_a_full_queue_says_when_to_come_again(
    http: httpx.AsyncClient, peer: CallsPeer
) -> None:
    peer.busy, peer.retry_after_seconds = 1, 7
    response = await http.post("/v1/calls", json={"code": "1"})
    failure(response, 429, "busy")
    assert response.headers["retry-after"] == "7"
    assert len(peer.asked) == 1, "asking again is the client's business"


async def test_a_call_that_may_run_longer_than_other_answers_take_is_awaited(
    servers: Servers, tmp_path: Path, log: Logger, peer: CallsPeer
) -> None:
    async with (
        running_gateway(servers, tmp_path, log, ask_seconds=0.2) as gateway,
        gateway.client() as http,
    ):
        code = "import time; time.sleep(1); print(1)"
        response = await http.post("/v1/calls", json={"code": code})
        assert response.json()["status"] == "ok"
        peer.is_silent = True
        brief = {"code": "1", "limits": {"wall_seconds": 0.1}, "queue_seconds": 0}
        failure(await http.post("/v1/calls", json=brief), 504, "timeout")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"code": "1", "limit": {}}, "did you mean 'limits'"),
        ({"code": "1", "limits": {"wall": 1}}, "wall_seconds"),
        ({"code": "1", "files": {"../a": ""}}, "path below"),
        ({"code": "x" * 600_000}, "put larger files into a sandbox"),
        ({"code": "1", "language": "cobol"}, "language"),
        ({"code": "1", "function": "f", "language": "bash"}, "function is for language python"),
    ],
)
async def test_a_body_that_does_not_fit_is_refused_in_words(
    http: httpx.AsyncClient, peer: CallsPeer, body: dict[str, Any], words: str
) -> None:
    assert words in failure(await http.post("/v1/calls", json=body), 400, "bad_request")
    assert peer.asked == []


async def test_an_environment_nobody_has_is_not_found_and_a_silent_one_unreachable(
    http: httpx.AsyncClient, peer: CallsPeer
) -> None:
    missing = await http.post("/v1/calls", json={"code": "1", "environment": "none"})
    assert "there are: debian" in failure(missing, 404, "not_found")
    peer.environment = "none"  # it is on record now, and still nobody serves it
    response = await http.post("/v1/calls", json={"code": "1", "environment": "none"})
    assert "ask again" in failure(response, 503, "unreachable")
    assert int(response.headers["retry-after"]) >= 1


def test_what_is_held_back_is_the_queue_and_the_limits() -> None:
    assert asking.held_seconds(Call("1", timeout_s=5, queue_s=7).message()) == 12


# ------------------------------------------------------------------- /run_code


async def test_verl_is_answered_in_its_words(gateway: Running, peer: CallsPeer) -> None:
    status, told = await asyncio.to_thread(verl, with_key(gateway))
    assert status == 200
    took = told["run_result"].pop("execution_time")
    assert took >= 0
    assert told == {
        "status": "Success",
        "message": "",
        "compile_result": None,
        "run_result": {
            "status": "Finished",
            "return_code": 0,
            "stdout": "cba\n",
            "stderr": "",
        },
        "executor_pod_name": "n1",
        "files": {},
    }
    assert peer.asked[0].limits.memory_bytes == 1024**3


async def test_code_that_fails_and_code_that_is_late_are_answers(
    gateway: Running, peer: CallsPeer
) -> None:
    url = with_key(gateway)
    status, told = await asyncio.to_thread(verl, url, code="raise SystemExit(4)", stdin=None)
    assert (status, told["status"], told["run_result"]["return_code"]) == (200, "Failed", 4)
    peer.result = FunctionResult(status="timeout", step=CallStep(signal=9, stdout=b"a"))
    status, told = await asyncio.to_thread(verl, url)
    assert (status, told["status"]) == (200, "Failed")
    assert told["run_result"]["status"] == "TimeLimitExceeded"
    assert told["run_result"]["return_code"] is None


async def test_files_go_in_and_come_out(gateway: Running, peer: CallsPeer) -> None:
    data = base64.b64encode(b"\xff").decode()
    _, told = await asyncio.to_thread(
        verl, with_key(gateway), code="open('b', 'wb').write(open('a', 'rb').read() * 2)",
        files={"./a": data}, fetch_files=["./b", "/etc/passwd", "none"],
    )  # fmt: skip
    assert told["status"] == "Success"
    assert told["files"] == {"./b": base64.b64encode(b"\xff\xff").decode()}


async def test_what_the_platform_cannot_do_is_a_sandbox_error(
    servers: Servers, tmp_path: Path, log: Logger, gateway: Running, peer: CallsPeer
) -> None:
    status, told = await asyncio.to_thread(verl, with_key(gateway), language="java")
    assert (status, told["status"], told["run_result"]) == (200, "SandboxError", None)
    assert "does not run java" in told["message"]
    async with running_gateway(servers, tmp_path, log, run_code_environment="none") as other:
        status, told = await asyncio.to_thread(verl, with_key(other))
    assert (status, told["status"]) == (200, "SandboxError")
    assert "there are: debian" in told["message"]


async def test_a_body_that_does_not_fit_is_told_as_by_the_original(
    gateway: Running, peer: CallsPeer
) -> None:
    status, told = await asyncio.to_thread(verl, with_key(gateway), language="cobol")
    assert status == 422
    assert told["detail"][0]["loc"] == ["body", "language"]
    status, _ = await asyncio.to_thread(verl, with_key(gateway), code=None)
    assert status == 422


async def test_a_queue_that_stays_full_is_the_status_that_verl_asks_again_after(
    servers: Servers, tmp_path: Path, log: Logger, peer: CallsPeer
) -> None:
    peer.busy = 2
    async with running_gateway(servers, tmp_path, log, run_code_queue_seconds=0.3) as gateway:
        status, told = await asyncio.to_thread(verl, with_key(gateway))
        assert (status, told["status"]) == (200, "Success"), "a short wait is not seen"
        peer.busy = 10_000
        status, told = await asyncio.to_thread(verl, with_key(gateway))
        assert (status, told["code"]) == (504, "busy")
        peer.busy, peer.fails = 0, NoCapacity("no sandbox was free in time")
        status, told = await asyncio.to_thread(verl, with_key(gateway))
        assert (status, told["code"]) == (504, "no_capacity")


async def test_the_key_may_stand_in_a_header_or_in_the_url_and_nowhere_else(
    gateway: Running, peer: CallsPeer, lines: io.StringIO
) -> None:
    url = f"{gateway.url}/run_code"
    assert (await asyncio.to_thread(verl, url))[0] == 401
    assert (await asyncio.to_thread(verl, with_key(gateway, "sfk-wrong")))[0] == 401
    assert (await asyncio.to_thread(verl, f"{url}?key={KEY}"))[0] == 401
    async with gateway.client() as http:
        response = await http.post("/run_code", json={"code": "1", "language": "python"})
        assert response.json()["status"] == "Success"
    basic = httpx.BasicAuth("verl", KEY)
    async with gateway.client(key=None, auth=basic) as http:
        assert (await http.get("/v1/nodes")).status_code == 401, "only where clients need it"
        assert (await http.post("/run_code", json={})).status_code == 422
    assert KEY not in lines.getvalue()
    assert base64.b64encode(f"verl:{KEY}".encode()).decode() not in lines.getvalue()
    assert "/run_code" in lines.getvalue()


async def test_a_key_for_calls_opens_nothing_else(
    servers: Servers, tmp_path: Path, log: Logger, peer: CallsPeer
) -> None:
    async with (
        running_gateway(servers, tmp_path, log, call_keys=["tester"]) as gateway,
        gateway.client() as http,
        gateway.client(OTHER_KEY) as other,
    ):
        assert (await asyncio.to_thread(verl, with_key(gateway)))[1]["status"] == "Success"
        assert (await http.post("/v1/calls", json={"code": "1"})).status_code == 200
        for path in ("/v1/nodes", "/v1/sandboxes", "/run_code/", "/v1/calls/x"):
            refused = await http.get(path)
            assert "function calls only" in failure(refused, 403, "denied")
        assert (await other.get("/v1/nodes")).status_code == 200


async def test_a_program_of_this_machine_needs_no_key_where_that_is_allowed(
    servers: Servers, tmp_path: Path, log: Logger, peer: CallsPeer
) -> None:
    async with running_gateway(servers, tmp_path, log, open_to_loopback=True) as gateway:
        assert (await asyncio.to_thread(verl, f"{gateway.url}/run_code"))[1]["status"] == "Success"


def _ping(url: str) -> object:
    with urllib.request.urlopen(f"{url}/v1/ping", timeout=10) as answer:
        return json.loads(answer.read())


async def test_the_probe_of_its_clients_is_answered_without_a_key(gateway: Running) -> None:
    assert await asyncio.to_thread(_ping, gateway.url) == "pong"
