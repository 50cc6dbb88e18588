"""Whom the first message of a TLS connection is for. Pure.

A tunnel to a host could be used to speak to another one behind the same addresses: content
delivery networks choose by the name in this message. So it must name the tunnel's host.
"""

from __future__ import annotations

HELLO_BYTES_MAX = 32 * 1024
_HANDSHAKE = 22
_CLIENT_HELLO = 1
_SERVER_NAME = 0
_RECORD_BYTES_MAX = 16_384 + 256


class NotTls(Exception):
    """The bytes are not the beginning of a TLS connection."""


class _Reader:
    """Takes numbers and counted strings from bytes; what is missing is not TLS."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    def take(self, count: int) -> bytes:
        part = self._data[self._at : self._at + count]
        if len(part) != count:
            raise NotTls("it ends too early")
        self._at += count
        return part

    def number(self, size: int) -> int:
        return int.from_bytes(self.take(size))

    def counted(self, size: int) -> bytes:
        return self.take(self.number(size))

    @property
    def is_empty(self) -> bool:
        return self._at == len(self._data)


def _handshake(data: bytes) -> bytes | None:
    """Return the first handshake message out of its records; None: more is to come."""
    message, at = b"", 0
    while len(data) - at >= 5:
        kind, major = data[at], data[at + 1]
        length = int.from_bytes(data[at + 3 : at + 5])
        if kind != _HANDSHAKE or major != 3 or not 0 < length <= _RECORD_BYTES_MAX:
            raise NotTls("it does not begin with a handshake")
        message += data[at + 5 : at + 5 + length]
        at += 5 + length
        if len(message) >= 4:
            if message[0] != _CLIENT_HELLO:
                raise NotTls("it does not begin with a ClientHello")
            needed = 4 + int.from_bytes(message[1:4])
            if needed > HELLO_BYTES_MAX:
                raise NotTls("its ClientHello is too long")
            if len(message) >= needed:
                return message[4:needed]
    if data and data[0] != _HANDSHAKE:
        raise NotTls("it does not begin with a handshake")
    return None


def server_name(data: bytes) -> str | None:
    """Return the host that a ClientHello names, "" if it names none; None: more is to come.

    Raises:
        NotTls: no ClientHello begins like this.
    """
    hello = _handshake(data)
    if hello is None:
        if len(data) > HELLO_BYTES_MAX:
            raise NotTls("its ClientHello is too long")
        return None
    reader = _Reader(hello)
    reader.take(34)  # version and random
    reader.counted(1)  # session
    reader.counted(2)  # ciphers
    reader.counted(1)  # compression
    if reader.is_empty:
        return ""
    extensions = _Reader(reader.counted(2))
    found: str | None = None
    while not extensions.is_empty:
        kind, body = extensions.number(2), extensions.counted(2)
        if kind == _SERVER_NAME:
            if found is not None:
                raise NotTls("it names its server twice")
            found = _only_name(body)
    return found or ""


def _only_name(body: bytes) -> str:
    names = _Reader(_Reader(body).counted(2))
    kind, name = names.number(1), names.counted(2)
    if kind != 0 or not names.is_empty:
        raise NotTls("it names more than one server")
    try:
        return name.decode("ascii").lower().removesuffix(".")
    except UnicodeDecodeError:
        raise NotTls("its server's name is none") from None
