"""Sandboxes with the build network: what they reach through the proxy, and what survives."""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest
import pytest_asyncio
from egress_peers import Origin, origin
from node.nodes import NodeHouse, RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_node.egress.discovery import discover
from sandfleet_node.egress.proxylink import connect
from sandfleet_node.launcherprocess import peer_pid


@pytest_asyncio.fixture
async def host() -> AsyncGenerator[Origin]:
    async with origin() as running:
        yield running


@pytest_asyncio.fixture
async def node(house: NodeHouse, host: Origin) -> AsyncGenerator[RunningNode]:
    """Return a node whose policy names one host, on loopback."""
    async with house.running(build_hosts_auto=False, build_hosts=[named(host)]) as node:
        yield node


def named(host: Origin) -> str:
    return f"localhost:{host.port}"


_FETCH = (
    "printf 'GET %s HTTP/1.1\\r\\nHost: x\\r\\nConnection: close\\r\\n\\r\\n' \"$0\""
    " | /bin/busybox nc -w 10 127.0.0.1 3128"
)


async def fetch(node: RunningNode, sandbox: str, url: str) -> bytes:
    """Return what a program in a sandbox gets when it asks its proxy for a URL."""
    return output(await node.run(sandbox, "sh", "-c", _FETCH, url))


async def until_fetched(node: RunningNode, sandbox: str, url: str) -> None:
    while b"you asked for" not in await fetch(node, sandbox, url):
        await asyncio.sleep(0.05)


def proxy_pid(house: NodeHouse) -> int:
    with connect(house.state_dir / "node" / house.name / "run") as sock:
        return peer_pid(sock)


def handles_of(pid: int) -> int:
    return len([*Path(f"/proc/{pid}/fd").iterdir()])


async def test_a_build_sandbox_reaches_a_host_of_the_policy(
    node: RunningNode, host: Origin
) -> None:
    sandbox = await node.create(network="build")
    got = await fetch(node, sandbox, f"http://localhost:{host.port}/package")
    assert got.startswith(b"HTTP/1.1 200 ")
    assert got.endswith(b"you asked for /package")


async def test_it_reaches_nothing_else(node: RunningNode, host: Origin) -> None:
    sandbox = await node.create(network="build")
    async with origin() as other:
        refused = await fetch(node, sandbox, f"http://localhost:{other.port}/")
        direct = await node.run(sandbox, "/bin/busybox", "nc", "-w", "1", "127.0.0.1", "4222")
        assert refused.startswith(b"HTTP/1.1 403 ")
        assert direct.exit_code == 1
        assert other.connections == 0
    interfaces = await node.run(sandbox, "sh", "-c", "cat /proc/net/dev | tail -n +3 | wc -l")
    assert output(interfaces).strip() == b"1"


async def test_sandboxes_do_not_reach_one_another(node: RunningNode, host: Origin) -> None:
    one, two = await node.create(network="build"), await node.create(network="build")
    argv = ["/bin/busybox", "nc", "-l", "-p", str(host.port + 1), "-e", "/bin/echo", "mine"]
    serving = m.ExecStart(sandbox_id=one, argv=argv, background=True)
    await node.ask(s.EXEC_START, serving)
    direct = await node.run(two, "/bin/busybox", "nc", "-w", "1", "127.0.0.1", str(host.port + 1))
    through = await fetch(node, two, f"http://127.0.0.1:{host.port + 1}/")
    assert direct.exit_code == 1
    assert through.startswith(b"HTTP/1.1 403 ")


async def test_ordinary_sandboxes_have_none_of_it(node: RunningNode, house: NodeHouse) -> None:
    sandbox = await node.create()
    assert b"proxy" not in output(await node.run(sandbox, "env")).lower()
    there = await node.run(sandbox, "/bin/busybox", "nc", "-w", "1", "127.0.0.1", "3128")
    assert there.exit_code == 1
    with pytest.raises(OSError, match=r"No such file|refused"):
        proxy_pid(house)


async def test_commands_get_its_variables_beneath_their_own(
    node: RunningNode, host: Origin
) -> None:
    sandbox = await node.create(network="build", env={"NO_PROXY": "mine"})
    seen = output(await node.run(sandbox, "env", env={"http_proxy": "theirs"})).decode().split()
    assert {"NO_PROXY=mine", "http_proxy=theirs", "https_proxy=http://127.0.0.1:3128"} <= {*seen}
    assert (await node.run(sandbox, "cat", "/run/sandfleet/apt.conf")).exit_code == 0
    cafile = ssl.get_default_verify_paths().cafile
    if cafile and Path(cafile).is_file():  # noqa: ASYNC240
        assert "SSL_CERT_FILE=/run/sandfleet/ca.pem" in seen
        bundle = await node.run(sandbox, "grep", "-c", "BEGIN CERT", "/run/sandfleet/ca.pem")
        assert int(output(bundle)) > 0


async def test_what_it_sends_is_its_egress(node: RunningNode, host: Origin) -> None:
    sandbox = await node.create(network="build")
    usage = m.SandboxUsageGet(sandbox_id=sandbox)
    assert (await node.ask(s.USAGE, usage)).egress_bytes == 0
    await fetch(node, sandbox, f"http://localhost:{host.port}/{'x' * 3000}")
    while (await node.ask(s.USAGE, usage)).egress_bytes < 3000:
        await asyncio.sleep(0.05)
    await node.stop(sandbox)
    await node.until_gone(sandbox)
    assert (await node.ask(s.USAGE, usage)).egress_bytes >= 3000


async def test_a_proxy_that_is_killed_is_replaced(
    node: RunningNode, house: NodeHouse, host: Origin
) -> None:
    sandbox = await node.create(network="build")
    url = f"http://localhost:{host.port}/"
    await until_fetched(node, sandbox, url)
    before = proxy_pid(house)
    os.kill(before, signal.SIGKILL)
    await until_fetched(node, sandbox, url)
    assert proxy_pid(house) != before


async def test_a_paused_sandbox_has_it_again_when_it_resumes(
    node: RunningNode, host: Origin
) -> None:
    sandbox = await node.create(network="build")
    await node.ask(s.PAUSE, m.SandboxPause(sandbox_id=sandbox))
    got = await fetch(node, sandbox, f"http://localhost:{host.port}/again")
    assert got.endswith(b"you asked for /again")


async def test_its_door_goes_with_the_sandbox(
    node: RunningNode, house: NodeHouse, host: Origin
) -> None:
    url = f"http://localhost:{host.port}/"
    await until_fetched(node, await node.create(network="build"), url)
    pid = proxy_pid(house)
    before = handles_of(pid)
    ended = await node.create(network="build")
    await until_fetched(node, ended, url)
    await node.stop(ended)
    await node.until_gone(ended)
    while handles_of(pid) > before:
        await asyncio.sleep(0.02)


async def test_it_outlives_the_node_service(house: NodeHouse, host: Origin) -> None:
    settings = {"build_hosts_auto": "false", "build_hosts": named(host)}
    url = f"http://localhost:{host.port}/"
    async with house.process(**settings) as (process, node):
        sandbox = await node.create(network="build")
        await until_fetched(node, sandbox, url)
        before = proxy_pid(house)
        await process.kill()
        await process.start()
        await until_fetched(node, sandbox, url)
        assert proxy_pid(house) == before
        assert b"https_proxy" in output(await node.run(sandbox, "env"))

        await process.kill()
        os.kill(before, signal.SIGKILL)
        await process.start()
        await until_fetched(node, sandbox, url)
        assert proxy_pid(house) != before


async def test_a_host_that_is_no_host_stops_the_start(house: NodeHouse) -> None:
    with pytest.raises(ValueError, match=r"https://mirror\.example/"):
        house.settings(build_hosts=["https://mirror.example/"])


async def test_this_machines_own_mirrors_are_reached(house: NodeHouse) -> None:
    """The one test that needs a network: what apt or pip here use, through a sandbox."""
    found = await discover()
    plain = [given for given in found.rules if given.port == 80]
    if not plain:
        pytest.skip("no package manager of this machine uses a host over http")
    try:
        async with asyncio.timeout(3):
            _, writer = await asyncio.open_connection(plain[0].host, 80)
            writer.close()
            await writer.wait_closed()
    except OSError as problem:
        pytest.skip(f"the mirror of this machine cannot be reached: {problem}")
    async with house.running() as node:
        sandbox = await node.create(network="build")
        got = await fetch(node, sandbox, f"http://{plain[0].host}/")
        assert got.startswith(b"HTTP/1.1 ")
        assert b"the policy" not in got
