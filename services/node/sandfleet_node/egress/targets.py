"""What a request to the proxy asks for, and which of its headers go on. Pure.

The head has been parsed by h11, which refuses what does not follow the grammar; here is
refused what two parsers could understand in two ways, and what a proxy must not pass on.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from .policy import normal_host, parse_port

TARGET_BYTES_MAX = 8192
HEADERS_MAX = 100
HEAD_BYTES_MAX = 32 * 1024
_HTTP = "http://"
_METHODS = frozenset({b"GET", b"HEAD", b"POST", b"PUT", b"PATCH", b"DELETE", b"OPTIONS"})
_OF_ONE_HOP = frozenset({
    b"connection", b"keep-alive", b"te", b"trailer", b"upgrade", b"expect",
    b"proxy-connection", b"proxy-authorization", b"proxy-authenticate",
})  # fmt: skip
_NOT_DROPPED = frozenset({b"host", b"content-length", b"transfer-encoding", b"authorization"})

Headers = list[tuple[bytes, bytes]]


class BadTarget(Exception):
    """A request that no proxy should take; its text is one sentence for the client."""


@dataclass(frozen=True, slots=True)
class Target:
    """Where a request goes."""

    host: str
    port: int
    path: bytes = b""
    """With its query; empty for a tunnel."""

    def authority(self, default_port: int) -> bytes:
        """Return it as a Host header has it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (host if self.port == default_port else f"{host}:{self.port}").encode()


def read_target(method: bytes, raw: bytes, headers: Sequence[tuple[bytes, bytes]]) -> Target:
    """Return where a request goes.

    Args:
        method: of the request.
        raw: its target, as it stood in the request line.
        headers: with names in lower case.

    Raises:
        BadTarget: it cannot be served.
    """
    if len(raw) > TARGET_BYTES_MAX:
        raise BadTarget("the request's target is too long")
    if any(byte <= 0x20 or byte >= 0x7F for byte in raw):
        raise BadTarget("the request's target has characters that a URL cannot have")
    text, names = raw.decode("ascii"), [name for name, _ in headers]
    if sum(len(name) + len(value) for name, value in headers) > HEAD_BYTES_MAX:
        raise BadTarget("the request's headers are too long")
    if len(names) > HEADERS_MAX:
        raise BadTarget(f"the request has more than {HEADERS_MAX} headers")
    if b"content-length" in names and b"transfer-encoding" in names:
        raise BadTarget("the request gives two lengths of its body")
    if method == b"CONNECT":
        if b"content-length" in names or b"transfer-encoding" in names:
            raise BadTarget("a CONNECT request cannot have a body")
        return _authority(text, None)
    if method not in _METHODS:
        raise BadTarget("the method is not one that the proxy serves")
    return _absolute(text)


def _absolute(text: str) -> Target:
    if not text.lower().startswith(_HTTP):
        raise BadTarget("the target is no http:// URL; https goes through CONNECT")
    rest = text[len(_HTTP) :]
    end = next((i for i, letter in enumerate(rest) if letter in "/?#\\"), len(rest))
    authority, path = rest[:end], rest[end:]
    if "#" in path or "\\" in path:
        raise BadTarget("the target has characters that a request's URL cannot have")
    target = _authority(authority, 80)
    return Target(target.host, target.port, (path if path[:1] == "/" else f"/{path}").encode())


def _authority(text: str, default_port: int | None) -> Target:
    if "@" in text:
        raise BadTarget("the target has a user name")
    host_text, colon, port_text = text.rpartition(":")
    if not colon or text.endswith("]"):
        host_text, port_text = text, ""
    port = parse_port(port_text) if port_text else default_port
    host = normal_host(host_text)
    if host is None:
        raise BadTarget("the target's host is neither a name nor an address")
    if port is None:
        raise BadTarget("the target's port is no port")
    return Target(host, port)


def passed_on(headers: Iterable[tuple[bytes, bytes]]) -> Headers:
    """Return the headers that go on to the next hop; those of one hop stay behind.

    A `Connection` header can name more of those, but none that say where a message ends or
    whom it is for.
    """
    kept = list(headers)
    named = {
        word.strip().lower()
        for name, value in kept
        if name == b"connection"
        for word in value.split(b",")
    }
    dropped = _OF_ONE_HOP | (named - _NOT_DROPPED)
    return [(name, value) for name, value in kept if name not in dropped]


def request_headers(headers: Iterable[tuple[bytes, bytes]], target: Target) -> Headers:
    """Return the headers of the request that the proxy makes; its Host is the target's."""
    rest = [(name, value) for name, value in passed_on(headers) if name != b"host"]
    return [(b"host", target.authority(80)), *rest]
