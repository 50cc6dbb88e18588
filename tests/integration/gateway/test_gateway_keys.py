"""Who may come in at the gateway."""

from __future__ import annotations

import io
import json
from pathlib import Path

import httpx
import pytest
from running_gateway import (
    KEY,
    NODE,
    OTHER_KEY,
    Running,
    ScriptedScheduler,
    failure,
    key_line,
    running_gateway,
    until,
)
from servers import Servers

from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.logs import Logger

pytestmark = pytest.mark.integration


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
