"""The proxy of the build network under attack, and at work: its real process, real sockets."""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from egress_peers import Origin, Proxied, certificate, origin, proxied
from requirements import need_root

from sandfleet_node.egress.orders import Remove
from sandfleet_node.egress.policy import Reach, Rule
from sandfleet_node.egress.proxylink import connect, end

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Generator[Path]:
    """Return where the proxy of these tests is; it ends after them."""
    need_root()
    directory = tmp_path_factory.mktemp("egress")
    yield directory
    end(directory)


@pytest_asyncio.fixture
async def proxy(directory: Path) -> AsyncGenerator[Proxied]:
    async with proxied(directory) as running:
        yield running


@pytest_asyncio.fixture
async def host() -> AsyncGenerator[Origin]:
    async with origin() as running:
        yield running


@pytest_asyncio.fixture
async def forbidden() -> AsyncGenerator[Origin]:
    """Return a service of the host that no sandbox may reach, as its NATS and Redis are."""
    async with origin() as running:
        yield running


def get(url: str, *headers: str, close: bool = True) -> bytes:
    lines = [f"GET {url} HTTP/1.1", "Host: anything", *headers]
    return "\r\n".join([*lines, "Connection: close"] if close else lines).encode() + b"\r\n\r\n"


def read(path: Path) -> str:
    return path.read_text()


def status(answer: bytes) -> int:
    return int(answer.split(b" ")[1]) if answer.startswith(b"HTTP/1.1 ") else 0


# ------------------------------------------------------------------- attacks

_ELSEWHERE = [
    "CONNECT 127.0.0.1:{bad} HTTP/1.1",
    "CONNECT localhost:{bad} HTTP/1.1",
    "CONNECT LOCALHOST.:{bad} HTTP/1.1",
    "CONNECT [::1]:{bad} HTTP/1.1",
    "CONNECT [::ffff:127.0.0.1]:{bad} HTTP/1.1",
    "CONNECT 2130706433:{bad} HTTP/1.1",
    "CONNECT 0x7f000001:{bad} HTTP/1.1",
    "CONNECT 0177.0.0.1:{bad} HTTP/1.1",
    "CONNECT 127.1:{bad} HTTP/1.1",
    "CONNECT 0:{bad} HTTP/1.1",
    "CONNECT 169.254.169.254:80 HTTP/1.1",
    "CONNECT 127.0.0.1:0{good} HTTP/1.1",
    "CONNECT user@localhost:{good} HTTP/1.1",
    "CONNECT localhost:{good}@127.0.0.1:{bad} HTTP/1.1",
    "CONNECT localhost:{good}#127.0.0.1:{bad} HTTP/1.1",
    "GET http://127.0.0.1:{bad}/ HTTP/1.1",
    "GET http://localhost:{bad}/ HTTP/1.1",
    "GET http://169.254.169.254/latest/meta-data/ HTTP/1.1",
    "GET http://localhost:{good}@127.0.0.1:{bad}/ HTTP/1.1",
    "GET http://localhost:{good}\\@127.0.0.1:{bad}/ HTTP/1.1",
    "GET http://localhost:{good}#@127.0.0.1:{bad}/ HTTP/1.1",
    "GET http://127.0.0.1:{bad}?http://localhost:{good}/ HTTP/1.1",
    "GET https://localhost:{good}/ HTTP/1.1",
    "GET ftp://localhost:{good}/ HTTP/1.1",
    "GET / HTTP/1.1",
    "TRACE http://localhost:{good}/ HTTP/1.1",
    "GET http://localhost:{good}/\x0bx HTTP/1.1",
    "GET  http://localhost:{good}/ HTTP/1.1",
    "PING",
    "INFO {bad}",
]  # fmt: skip


@pytest.mark.parametrize("line", _ELSEWHERE)
async def test_nothing_but_the_named_host_is_reached(
    proxy: Proxied, host: Origin, forbidden: Origin, line: str
) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    first = line.format(good=host.port, bad=forbidden.port)
    answer = await proxy.say(f"{first}\r\nHost: localhost:{host.port}\r\n\r\n".encode())
    assert status(answer) in (400, 403), answer
    assert (host.connections, forbidden.connections) == (0, 0)


async def test_a_refusal_names_the_policy_and_the_host(proxy: Proxied, forbidden: Origin) -> None:
    answer = await proxy.say(get(f"http://127.0.0.1:{forbidden.port}/"))
    assert answer.endswith(b"the policy `build` does not allow 127.0.0.1:%d\n" % forbidden.port)
    while not proxy.refused:
        await asyncio.sleep(0.01)
    told = proxy.refused[0]
    assert (told.sandbox_id, told.kind) == (proxy.sandbox_id, "host")
    assert told.host == f"127.0.0.1:{forbidden.port}"


@pytest.mark.parametrize("reach", [Reach.PUBLIC, Reach.SITE])
@pytest.mark.parametrize("form", ["CONNECT {0} HTTP/1.1", "GET http://{0}/ HTTP/1.1"])
async def test_a_name_that_leads_to_this_machine_is_refused(
    proxy: Proxied, forbidden: Origin, reach: Reach, form: str
) -> None:
    await proxy.rule(Rule("localhost", forbidden.port, reach))
    line = form.format(f"localhost:{forbidden.port}")
    answer = await proxy.say(f"{line}\r\nHost: x\r\n\r\n".encode())
    assert status(answer) == 403
    assert b"on this machine" in answer
    assert forbidden.connections == 0


@pytest.mark.parametrize(
    "headers",
    [
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: +5",
        "Content-Length: 5, 6",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: xchunked",
        "Transfer-Encoding : chunked",
        "Transfer-Encoding: chunked\r\n folded",
        "X: a\0b",
        "X: a\rb",
        "no colon",
        "Host: another",
        "\r\n".join(f"X-{i}: 1" for i in range(200)),
        f"X: {'a' * 70_000}",
    ],
)
async def test_messages_with_two_readings_go_nowhere(
    proxy: Proxied, host: Origin, headers: str
) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    start = f"POST http://localhost:{host.port}/ HTTP/1.1\r\nHost: x\r\n{headers}\r\n\r\n"
    hidden = f"0\r\n\r\nGET http://localhost:{host.port}/hidden HTTP/1.1\r\nHost: x\r\n\r\n"
    answer = await proxy.say((start + hidden).encode())
    assert status(answer) in (0, 400, 431, 501), answer
    assert host.heads == []


async def test_a_request_inside_a_body_stays_a_body(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    body = get(f"http://localhost:{host.port}/hidden")
    start = f"POST http://localhost:{host.port}/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    answer = await proxy.say(f"{start}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    assert status(answer) == 200
    assert (len(host.heads), host.bodies) == (1, [body])


async def test_a_host_header_does_not_choose_the_host(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    sent = get(f"http://localhost:{host.port}/a", "Proxy-Authorization: s3cret", "Upgrade: h2c")
    assert status(await proxy.say(sent)) == 200
    head = host.heads[0].lower()
    assert b"\r\nhost: localhost:%d\r\n" % host.port in head
    assert b"anything" not in head
    assert b"s3cret" not in head
    assert b"upgrade" not in head


@pytest.mark.parametrize("first", [b"GET / HTTP/1.1\r\nHost: evil\r\n\r\n", b"SSH-2.0-x\r\n"])
@pytest.mark.parametrize("together", [True, False])
async def test_a_tunnel_carries_only_tls(
    proxy: Proxied, host: Origin, first: bytes, together: bool
) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    ask = f"CONNECT localhost:{host.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    reader, writer = await proxy.open()
    writer.write(ask + first if together else ask)
    assert status(await reader.readuntil(b"\r\n\r\n")) == 200
    if not together:
        writer.write(first)
    assert await reader.read() == b""
    writer.close()
    assert host.heads == []


async def test_a_slow_head_is_not_waited_for(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY), head_seconds=0.2)
    reader, writer = await proxy.open()
    writer.write(b"GET http://localhost:%d/ HTTP/1.1\r\n" % host.port)

    async def drip() -> None:
        while True:
            writer.write(b"X: y\r\n")
            await asyncio.sleep(0.02)

    dripping = asyncio.ensure_future(drip())
    try:
        assert await reader.read() == b""
    except ConnectionError:
        pass
    finally:
        dripping.cancel()
        writer.close()
    assert host.connections == 0


async def test_a_silent_host_is_given_up(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY), idle_seconds=0.2)
    answer = await proxy.say(get(f"http://localhost:{host.port}/silent"))
    assert status(answer) == 502


async def test_connections_over_the_limit_wait_for_their_turn(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY), connections_each=2)
    await proxy.add()
    held = [await proxy.open() for _ in range(2)]
    for reader, writer in held:
        writer.write(get(f"http://localhost:{host.port}/", close=False))
        assert status(await reader.readuntil(b"\r\n\r\n")) == 200
    third = asyncio.ensure_future(proxy.say(get(f"http://localhost:{host.port}/third")))
    await asyncio.sleep(0.1)
    assert not any(b"/third" in head for head in host.heads)
    held[0][1].close()
    assert status(await third) == 200
    held[1][1].close()


async def test_a_client_that_does_not_read_stops_its_host(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.door, limit=1024)
    writer.write(get(f"http://localhost:{host.port}/endless"))
    assert await reader.readexactly(1)
    seen = -1
    while seen != host.pushed_bytes or not seen:
        seen = host.pushed_bytes
        await asyncio.sleep(0.3)
    assert seen < 64 * 1024**2
    writer.close()


async def test_the_process_has_no_rights_and_no_secrets(proxy: Proxied) -> None:
    process = Path(f"/proc/{proxy.pid()}")
    fields = dict(line.split(":", 1) for line in read(process / "status").splitlines())
    assert fields["Uid"].split() == fields["Gid"].split() == ["65534"] * 4
    assert fields["Groups"].split() == []
    assert int(fields["CapEff"], 16) == int(fields["CapPrm"], 16) == 0
    assert fields["NoNewPrivs"].strip() == "1"
    assert [name.split("=")[0] for name in read(process / "environ").split("\0")] == ["PATH", ""]


# -------------------------------------------------------------------- at work


async def test_requests_in_one_packet_are_answered_in_order(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    url = f"http://localhost:{host.port}"
    answer = await proxy.say(
        get(f"{url}/1", close=False) + get(f"{url}/2", close=False) + get(f"{url}/3")
    )
    assert [answer.index(b"you asked for /%d" % i) > 0 for i in (1, 2, 3)] == [True] * 3
    assert answer.index(b"/1") < answer.index(b"/2") < answer.index(b"/3")
    assert host.connections == 1


@pytest.mark.parametrize(
    ("path", "body"), [("/chunked", b"3\r\nabc\r\n0\r\n\r\n"), ("/until-closed", b"all of it")]
)
async def test_answers_without_a_length_arrive_whole(
    proxy: Proxied, host: Origin, path: str, body: bytes
) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    answer = await proxy.say(get(f"http://localhost:{host.port}{path}"))
    assert status(answer) == 200
    assert body in answer


async def test_an_answer_with_two_lengths_is_not_passed_on(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    assert status(await proxy.say(get(f"http://localhost:{host.port}/broken"))) == 502


async def test_a_client_is_told_to_go_on_with_its_body(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    reader, writer = await proxy.open()
    start = f"POST http://localhost:{host.port}/ HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
    writer.write(f"{start}Connection: close\r\nContent-Length: 3\r\n\r\n".encode())
    assert status(await reader.readuntil(b"\r\n\r\n")) == 100
    writer.write(b"abc")
    assert status(await reader.read()) == 200
    writer.close()
    assert host.bodies == [b"abc"]


async def test_a_host_that_closed_meanwhile_is_connected_to_anew(
    proxy: Proxied, host: Origin
) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    reader, writer = await proxy.open()
    for path in ("/until-closed", "/again"):
        writer.write(get(f"http://localhost:{host.port}{path}", close=path == "/again"))
    assert b"you asked for /again" in await reader.read()
    writer.close()
    assert host.connections == 2


async def test_a_tunnel_carries_tls_to_its_host_and_no_other(
    proxy: Proxied, tmp_path: Path
) -> None:
    cert, key = certificate(tmp_path, "localhost")
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(cert, key)
    trusting = ssl.create_default_context(cafile=str(cert))
    async with origin(serving) as host:
        await proxy.rule(Rule("localhost", host.port, Reach.ANY))
        ask = f"CONNECT localhost:{host.port} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
        reader, writer = await proxy.open()
        writer.write(ask)
        await reader.readuntil(b"\r\n\r\n")
        await writer.start_tls(trusting, server_hostname="localhost")
        writer.write(b"GET /secret HTTP/1.1\r\n\r\n")
        assert b"you asked for /secret" in await reader.read(4096)
        writer.close()
        while proxy.sent.get(proxy.sandbox_id, 0) < 300:
            await asyncio.sleep(0.01)

        reader, writer = await proxy.open()
        writer.write(ask)
        await reader.readuntil(b"\r\n\r\n")
        with pytest.raises((ConnectionError, ssl.SSLError)):
            await writer.start_tls(trusting, server_hostname="fronted.example")
        writer.close()
        while not proxy.refused:
            await asyncio.sleep(0.01)
        assert proxy.refused[0].kind == "tunnel"
        assert "fronted.example" in proxy.refused[0].reason
        assert len(host.heads) == 1


async def test_a_node_that_comes_back_finds_its_sandboxes(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    reader, writer = await proxy.open()
    writer.write(get(f"http://localhost:{host.port}/1", close=False))
    assert status(await reader.readuntil(b"\r\n\r\n")) == 200
    await proxy.leave()
    writer.write(get(f"http://localhost:{host.port}/2"))
    assert b"you asked for /2" in await reader.read()
    writer.close()
    link = await proxy.connect()
    assert list(link.sent) == [proxy.sandbox_id]
    assert link.sent[proxy.sandbox_id] > 0


async def test_a_sandbox_that_ended_has_no_door(proxy: Proxied, host: Origin) -> None:
    await proxy.rule(Rule("localhost", host.port, Reach.ANY))
    reader, writer = await proxy.open()
    writer.write(get(f"http://localhost:{host.port}/", close=False))
    await reader.readuntil(b"\r\n\r\n")
    assert proxy.link is not None
    await proxy.link.send(Remove(sandbox_id=proxy.sandbox_id))
    await reader.read()  # the connection ends, too
    writer.close()
    with pytest.raises(ConnectionRefusedError):
        await proxy.open()


async def test_a_proxy_that_nobody_comes_for_ends(tmp_path: Path) -> None:
    need_root()
    proxy = Proxied(tmp_path)
    await proxy.connect()
    pid = proxy.pid()
    await proxy.leave()
    await asyncio.to_thread(os.waitpid, pid, 0)
    with pytest.raises(OSError, match="refused"):
        connect(tmp_path)
