"""Files as raw bytes through the gateway."""

from __future__ import annotations

import asyncio

import httpx
import pytest
from running_gateway import (
    KEY,
    NODE,
    Running,
    failure,
    until,
)
from scripted_commands import ScriptedNode

from sandfleet_common import messages as m
from sandfleet_common.ids import new_sandbox_id

pytestmark = pytest.mark.integration


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
