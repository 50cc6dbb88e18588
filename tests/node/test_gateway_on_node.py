"""Through the gateway to a real sandbox: real scheduler, node, launcher and agent."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from node.nodes import ENVIRONMENT, RunningNode
from processes import SchedulerProcess
from running_gateway import KEY, Running, Talk, running_gateway, until
from servers import Servers

from sandfleet import AsyncClient, AsyncSandbox, SandboxGone
from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxSpec
from sandfleet_common.streams import Flag, Kind, StreamFrame

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(90)]


@pytest_asyncio.fixture
async def gateway(
    servers: Servers, tmp_path: Path, node: RunningNode, log: Logger
) -> AsyncGenerator[Running]:
    scheduler = await SchedulerProcess.start(servers)
    try:
        async with running_gateway(servers, tmp_path, log, quiet_seconds=0.5) as gateway:

            async def is_known() -> bool:
                async with gateway.client() as http:
                    return bool((await http.get("/v1/nodes")).json().get("nodes"))

            await until(is_known)
            yield gateway
    finally:
        await scheduler.kill()


@pytest_asyncio.fixture
async def sandbox(gateway: Running) -> AsyncGenerator[AsyncSandbox]:
    async with (
        AsyncClient(url=gateway.url, api_key=KEY) as client,
        await client.create(SandboxSpec(environment=ENVIRONMENT)) as sandbox,
    ):
        yield sandbox


async def test_a_sandbox_lives_and_ends_through_the_gateway(sandbox: AsyncSandbox) -> None:
    result = await sandbox.run("cat; echo problem >&2; exit 3", input=b"\xff\0text")
    assert (result.stdout, result.stderr, result.exit_code) == (b"\xff\0text", b"problem\n", 3)
    content = hashlib.sha256(b"seed").digest() * 70_000
    await sandbox.files.write("/tmp/big", content)
    assert await sandbox.files.read("/tmp/big") == content
    assert [entry.name for entry in await sandbox.files.list("/tmp")] == ["big"]
    await sandbox.stop()
    with pytest.raises(SandboxGone, match="stopped by its user"):
        await sandbox.run("true")


async def test_raw_bytes_reach_a_real_file_and_come_back_in_part(
    gateway: Running, sandbox: AsyncSandbox
) -> None:
    path = f"/v1/sandboxes/{sandbox.id}/files/content"
    content = hashlib.sha256(b"raw").digest() * 50_000
    async with gateway.client() as http:
        put = await http.put(
            path, params={"path": "/root/new/file", "mode": "0750"}, content=content
        )
        assert put.status_code == 200, put.text
        part = await http.get(
            path, params={"path": "/root/new/file"}, headers={"Range": "bytes=700001-700032"}
        )
        assert (part.status_code, part.content) == (206, content[700_001:700_033])
        whole = await http.get(path, params={"path": "/root/new/file"})
        assert whole.content == content
        kernel = await http.get(path, params={"path": "/proc/version"})
        assert b"Linux" in kernel.content, "a file of the kernel says that it is empty"
        folder = await http.get(path, params={"path": "/root"})
        assert (folder.status_code, folder.json()["code"]) == (422, "file_error")
    stat = await sandbox.run("stat -c %a /root/new/file")
    assert stat.text.strip() == "750"


async def test_a_session_drives_a_terminal_and_comes_back_to_it(
    gateway: Running, sandbox: AsyncSandbox
) -> None:
    async with gateway.session(sandbox.id) as socket:
        talk = Talk(socket)
        await talk.command(
            "start", 1, argv=["sh", "-c", "stty size 2>/dev/null; cat"], exec_id="shell",
            pty={"rows": 33, "cols": 99}, stdin_open=True,
        )  # fmt: skip
        await talk.state(1)
        first = await talk.output(1, until=7)
        await talk.frame(1, Kind.STDIN, 0, b"hello\n")
        first += await talk.output(1, 7, until=21)
        socket.transport.abort()
    async with gateway.session(sandbox.id) as socket:
        talk = Talk(socket)
        await talk.command("attach", 5, exec_id="shell", position=len(first))
        state = await talk.state(5)
        assert state.stdin_bytes == 6
        await talk.frame(5, Kind.STDIN, 6, b"again\n")
        second = await talk.output(5, len(first), until=35)
        await talk.command("signal", 5, signal=9, tree=True)
        rest = await talk.output(5, len(first) + len(second))
    assert first + second + rest == b"33 99\r\nhello\r\nhello\r\nagain\r\nagain\r\n"


async def test_a_large_output_waits_for_its_reader_and_comes_whole(
    gateway: Running, sandbox: AsyncSandbox
) -> None:
    program = "i=0; while [ $i -lt 60000 ]; do echo line-$i-of-many; i=$((i+1)); done"
    expected = b"".join(b"line-%d-of-many\n" % i for i in range(60_000))
    whole = bytearray()
    for stop in (200_000, 700_000, None):
        async with gateway.session(sandbox.id) as socket:
            talk = Talk(socket)
            if not whole:
                await talk.command("start", 1, argv=["sh", "-c", program], exec_id="many")
            else:
                await talk.command("attach", 1, exec_id="many", position=len(whole))
            await talk.state(1)
            whole += await talk.output(1, len(whole), until=stop)
            if stop is not None:
                socket.transport.abort()
    assert bytes(whole) == expected


async def test_a_long_input_goes_in_under_credit(gateway: Running, sandbox: AsyncSandbox) -> None:
    content = hashlib.sha256(b"in").digest() * 40_000
    async with gateway.session(sandbox.id) as socket:
        talk = Talk(socket)
        await talk.command("start", 1, argv=["wc", "-c"], exec_id="count", stdin_open=True)
        await talk.state(1)
        sent = taken = 0
        output = b""
        while True:
            while sent < len(content) and sent + 65_536 - taken <= 262_144:
                piece = content[sent : sent + 65_536]
                sent += len(piece)
                last = Flag.CLOSED if sent == len(content) else Flag(0)
                await talk.frame(1, Kind.STDIN, sent - len(piece), piece, last)
            _, frame = await talk.next()
            assert isinstance(frame, StreamFrame), frame
            if frame.kind is Kind.INPUT:
                taken = max(taken, frame.position)
            elif frame.kind is Kind.DATA:
                output += frame.payload
            elif frame.kind is Kind.END:
                break
    assert int(output) == len(content)
