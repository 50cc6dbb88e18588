"""Which hosts the build network reaches, and how its requests are read."""

from __future__ import annotations

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_node.egress.clienthello import NotTls, server_name
from sandfleet_node.egress.discovery import hosts_linked, pip_settings
from sandfleet_node.egress.outfit import Found, bare, certificates_of, files, variables
from sandfleet_node.egress.policy import Policy, Reach, Rule, is_reachable, normal_host, parse_port
from sandfleet_node.egress.targets import BadTarget, Target, passed_on, read_target, request_headers

HOST = [(b"host", b"mirror.example")]


def policy(*rules: str) -> Policy:
    return Policy(Rule.parse(rule) for rule in rules)


# -------------------------------------------------------------------- policy


def test_a_named_host_is_reached_at_the_usual_ports_only() -> None:
    rules = policy("mirror.example")
    assert [rules.reach("mirror.example", port) for port in (80, 443)] == [Reach.ANY] * 2
    assert rules.reach("mirror.example", 22) is None
    assert rules.reach("other.example", 443) is None
    assert rules.reach("sub.mirror.example", 443) is None


def test_a_rule_with_a_port_is_for_that_port() -> None:
    rules = policy("mirror.example:8443")
    assert rules.reach("mirror.example", 8443) is Reach.ANY
    assert rules.reach("mirror.example", 443) is None


def test_a_suffix_covers_what_is_below_it_and_never_private_addresses() -> None:
    rules = policy("*.files.example")
    assert rules.reach("a.b.files.example", 443) is Reach.PUBLIC
    assert rules.reach("files.example", 443) is None
    assert rules.reach("evilfiles.example", 443) is None


def test_the_most_generous_rule_decides_where_a_host_may_be() -> None:
    assert policy("*.files.example", "a.files.example").reach("a.files.example", 80) is Reach.ANY


@pytest.mark.parametrize(
    "text", ["", "*", "*.example", "*.*.example", "a b", "host:0", "host:65536", "host:http",
             "host:080", "http://host", "host/path", "user@host", "[::1", "-a.example", "::1"],
)  # fmt: skip
def test_what_is_no_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"\S"):
        Rule.parse(text)


@pytest.mark.parametrize("text", ["a.example", "*.b.example:81", "[::1]:8080", "10.0.0.1", "[::1]"])
def test_a_rule_is_written_as_it_was_read(text: str) -> None:
    assert str(Rule.parse(text)) == text


@given(st.text(max_size=300))
def test_a_normal_host_is_its_own_normal_form(text: str) -> None:
    host = normal_host(text)
    if host is not None and ":" not in host:
        assert normal_host(host) == host
        assert host == host.lower()
        assert set(host) <= set("abcdefghijklmnopqrstuvwxyz0123456789-_.")


@given(st.text(max_size=8))
def test_a_port_has_one_form(text: str) -> None:
    port = parse_port(text)
    assert port is None or (str(port) == text and 0 < port < 65536)


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.9.9.9", "0.0.0.0", "169.254.169.254", "224.0.0.1", "::1", "::",
                "fe80::1", "::ffff:127.0.0.1", "::127.0.0.1", "64:ff9b::7f00:1", "2002:7f00:1::",
                "255.255.255.255", "::ffff:169.254.169.254"],
)  # fmt: skip
def test_this_machine_and_its_link_are_reached_only_when_named(address: str) -> None:
    found = ipaddress.ip_address(address)
    assert not is_reachable(found, Reach.PUBLIC)
    assert not is_reachable(found, Reach.SITE)
    assert is_reachable(found, Reach.ANY)


@pytest.mark.parametrize(
    "address",
    ["10.1.2.3", "192.168.0.1", "172.31.0.1", "100.64.0.1", "fd00::1", "::ffff:10.0.0.1"],
)
def test_private_networks_are_for_what_the_machine_is_set_up_with(address: str) -> None:
    found = ipaddress.ip_address(address)
    assert not is_reachable(found, Reach.PUBLIC)
    assert is_reachable(found, Reach.SITE)


@given(st.ip_addresses())
def test_a_public_address_is_never_one_that_python_calls_local(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> None:
    if is_reachable(address, Reach.PUBLIC):
        assert not (address.is_loopback or address.is_link_local or address.is_multicast)
        assert not address.is_unspecified


# ------------------------------------------------------------------- targets


def test_an_absolute_target_says_host_port_and_path() -> None:
    assert read_target(b"GET", b"http://Mirror.Example:8080/a?b=http://c/", HOST) == Target(
        "mirror.example", 8080, b"/a?b=http://c/"
    )
    assert read_target(b"GET", b"http://mirror.example", HOST).path == b"/"
    assert read_target(b"GET", b"http://mirror.example?x", HOST).path == b"/?x"


def test_a_tunnel_names_host_and_port() -> None:
    assert read_target(b"CONNECT", b"mirror.example:443", HOST) == Target("mirror.example", 443)
    assert read_target(b"CONNECT", b"[0:0::1]:443", HOST) == Target("::1", 443)


@pytest.mark.parametrize(
    ("method", "target"),
    [
        (b"CONNECT", b"mirror.example"),
        (b"CONNECT", b"mirror.example:"),
        (b"CONNECT", b"user@mirror.example:443"),
        (b"CONNECT", b"mirror.example:443/path"),
        (b"CONNECT", b"http://mirror.example:443"),
        (b"CONNECT", b"[fe80::1%25eth0]:443"),
        (b"GET", b"/only/a/path"),
        (b"GET", b"*"),
        (b"GET", b"https://mirror.example/"),
        (b"GET", b"ftp://mirror.example/"),
        (b"GET", b"http://user:word@mirror.example/"),
        (b"GET", b"http://mirror.example@other.example/"),
        (b"GET", b"http://mirror.example\\@other.example/"),
        (b"GET", b"http://mirror.example:80:80/"),
        (b"GET", b"http://mirror.example:-1/"),
        (b"GET", b"http:///path"),
        (b"GET", b"http://mirror.example/#fragment"),
        (b"GET", b"http://mirror.example/a b"),
        (b"GET", b"http://mirror.example/\r\nx: y"),
        (b"GET", b"http://m\xc3\xafrror.example/"),
        (b"TRACE", b"http://mirror.example/"),
        (b"PRI", b"http://mirror.example/"),
        (b"GET", b"http://mirror.example/" + b"a" * 9000),
    ],
)
def test_a_target_that_could_mean_two_things_is_refused(method: bytes, target: bytes) -> None:
    with pytest.raises(BadTarget):
        read_target(method, target, HOST)


def test_two_lengths_and_bodies_of_tunnels_are_refused() -> None:
    both = [*HOST, (b"content-length", b"3"), (b"transfer-encoding", b"chunked")]
    with pytest.raises(BadTarget, match="two lengths"):
        read_target(b"POST", b"http://mirror.example/", both)
    with pytest.raises(BadTarget, match="body"):
        read_target(b"CONNECT", b"mirror.example:443", both[:2])


@given(st.binary(max_size=200), st.sampled_from([b"GET", b"CONNECT"]))
def test_any_target_is_read_or_refused(target: bytes, method: bytes) -> None:
    try:
        found = read_target(method, target, HOST)
    except BadTarget:
        return
    again = normal_host(f"[{found.host}]" if ":" in found.host else found.host)
    assert found.host == again
    assert all(0x20 < byte < 0x7F for byte in found.path)


def test_headers_of_one_hop_stay_behind_and_the_host_is_the_targets() -> None:
    sent = [
        (b"host", b"elsewhere.example"), (b"connection", b"X-Own, close, host, content-length"),
        (b"x-own", b"1"), (b"proxy-authorization", b"secret"), (b"content-length", b"3"),
        (b"upgrade", b"h2c"), (b"te", b"trailers"), (b"accept", b"*/*"),
    ]  # fmt: skip
    assert request_headers(sent, Target("mirror.example", 8080, b"/")) == [
        (b"host", b"mirror.example:8080"),
        (b"content-length", b"3"),
        (b"accept", b"*/*"),
    ]


@given(st.lists(st.sampled_from([b"host", b"transfer-encoding", b"x-a", b"content-length"])))
def test_no_connection_header_takes_away_what_frames_a_message(named: list[bytes]) -> None:
    headers = [(b"transfer-encoding", b"chunked"), (b"connection", b", ".join(named))]
    assert passed_on(headers) == headers[:1]


# ---------------------------------------------------------------------- tls


def extension(kind: int, body: bytes) -> bytes:
    return kind.to_bytes(2) + len(body).to_bytes(2) + body


def names(*hosts: bytes) -> bytes:
    entries = b"".join(b"\0" + len(host).to_bytes(2) + host for host in hosts)
    return extension(0, len(entries).to_bytes(2) + entries)


def hello(extensions: bytes, record: int = 16_384) -> bytes:
    body = b"\3\3" + bytes(32) + b"\0" + b"\0\2\x13\1" + b"\1\0"
    body += len(extensions).to_bytes(2) + extensions
    message = b"\1" + len(body).to_bytes(3) + body
    parts = [message[i : i + record] for i in range(0, len(message), record)]
    return b"".join(b"\x16\3\1" + len(part).to_bytes(2) + part for part in parts)


def test_a_client_hello_says_whom_it_is_for() -> None:
    whole = extension(43, b"\2\3\4") + names(b"Mirror.Example") + extension(16, b"\0\0")
    assert server_name(hello(whole)) == "mirror.example"
    assert server_name(hello(whole, record=7)) == "mirror.example"
    assert server_name(hello(extension(43, b"\2\3\4"))) == ""


@given(st.integers(min_value=0, max_value=400))
def test_a_part_of_a_client_hello_is_waited_for(length: int) -> None:
    whole = hello(names(b"mirror.example"), record=20)
    assert server_name(whole[:length]) == (None if length < len(whole) else "mirror.example")


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"SSH-2.0-x\r\n",
        b"\x16\3\1\0\0",
        b"\x16\3\1\0\4\2\0\0\0",
        b"\x17\3\3\0\1a",
        b"\x16\3\1\xff\xff" + bytes(100),
        b"\x16\3\1\0\4\1\xff\xff\xff",
        hello(names(b"a.example", b"b.example")),
        hello(names(b"a.example") + names(b"b.example")),
        hello(names(b"\xff\xfe")),
        hello(b"\0\0\0\x30"),
    ],
)
def test_what_is_no_single_client_hello_is_not_tls(data: bytes) -> None:
    with pytest.raises(NotTls):
        server_name(data)


@given(st.binary(max_size=600))
def test_any_bytes_are_tls_or_not(data: bytes) -> None:
    for start in (data, hello(data)):
        try:
            server_name(start)
        except NotTls:
            continue


# ------------------------------------------------------------------- outfit


PEM = b"-----BEGIN CERTIFICATE-----\nTUlJ\n-----END CERTIFICATE-----"


def test_a_bundle_gives_its_certificates_once_and_nothing_else() -> None:
    key = b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"
    assert certificates_of([b"# a comment\n" + key + PEM + b"\n" + PEM, PEM]) == PEM + b"\n"


def test_credentials_of_an_index_stay_on_the_host() -> None:
    assert bare("https://user:word@mirror.example:8443/simple?a=b") == (
        "https://mirror.example:8443/simple?a=b"
    )
    found = Found(pip_index="https://user:word@mirror.example/simple")
    assert variables(found)["PIP_INDEX_URL"] == "https://mirror.example/simple"


def test_only_what_is_set_up_is_given() -> None:
    plain = variables(Found())
    assert plain["https_proxy"] == "http://127.0.0.1:3128"
    assert not plain.keys() & {"PIP_INDEX_URL", "NPM_CONFIG_REGISTRY", "SSL_CERT_FILE"}
    assert list(files(Found())) == ["/run/sandfleet/apt.conf"]
    trusting = Found(certificates=PEM)
    assert variables(trusting)["PIP_CERT"] == "/run/sandfleet/ca.pem"
    assert files(trusting)["/run/sandfleet/ca.pem"] == PEM


def test_what_was_found_can_be_written_down_and_read_again() -> None:
    found = Found(certificates=PEM, npm_registry="https://registry.example/", problems=("x",))
    assert Found.model_validate_json(found.model_dump_json()) == found


def test_pip_settings_closer_to_a_command_win() -> None:
    told = {
        ":env:.index-url": "https://c.example",
        "global.index-url": "https://a.example",
        "install.index-url": "https://b.example",
        "global.cert": "/ca.pem",
        "list.format": "json",
    }
    assert pip_settings(told) == {"index-url": "https://c.example", "cert": "/ca.pem"}


def test_an_index_page_tells_where_its_files_are() -> None:
    page = "https://index.example/simple/pip/"
    html = '<a href="https://files.example/a.whl#sha256=0">a</a><a href="../../b.whl">b</a>'
    assert hosts_linked(html, page) == [
        "https://files.example/a.whl#sha256=0",
        "https://index.example/b.whl",
    ]
    assert hosts_linked('{"files": [{"url": "https://files.example/a.whl"}]}', page) == [
        "https://files.example/a.whl"
    ]
    assert hosts_linked("nothing", page) == []
