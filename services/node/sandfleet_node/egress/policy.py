"""Which hosts may be reached, and at which addresses. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

NAME = "build"
"""Of the policy."""
DEFAULT_PORTS = frozenset({80, 443})
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NAME_CHARACTERS_MAX = 253
_PORT_MAX = 65535

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


class Reach(StrEnum):
    """At which addresses a host of the policy may be."""

    PUBLIC = "public"
    """Not in private networks: hosts that were found, and all behind a `*`."""
    SITE = "site"
    """Private networks, too: what the machine itself is set up with, as a mirror of its site."""
    ANY = "any"
    """Wherever it is, loopback included: an administrator named this very host."""


_NOWHERE = (
    "0.0.0.0/8", "127.0.0.0/8", "169.254.0.0/16", "224.0.0.0/4", "240.0.0.0/4",
    "::/128", "::1/128", "fe80::/10", "fec0::/10", "ff00::/8",
)  # fmt: skip
"""This machine, its link (with the metadata service of clouds), and groups."""
_PRIVATE = (
    "10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.0.0.0/24", "192.168.0.0/16",
    "198.18.0.0/15", "fc00::/7",
)  # fmt: skip
_WRAPPING = ("::/96", "::ffff:0:0:0/96", "64:ff9b::/32", "2001::/32", "2002::/16")
"""IPv6 that stands for some IPv4 address behind a translator; nobody needs these to reach one."""

_NETWORKS = {
    Reach.PUBLIC: tuple(map(ipaddress.ip_network, (*_NOWHERE, *_WRAPPING, *_PRIVATE))),
    Reach.SITE: tuple(map(ipaddress.ip_network, (*_NOWHERE, *_WRAPPING))),
    Reach.ANY: (),
}


def is_reachable(address: Address, reach: Reach) -> bool:
    """Return whether a host with this reach may be connected to at an address."""
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    plain = mapped or address
    return not any(plain in network for network in _NETWORKS[reach])


def normal_host(text: str) -> str | None:
    """Return a host name or address in the one form the policy compares; None if it is none.

    Numbers that some resolvers take for addresses (2130706433, 0x7f.1) are names here, or
    nothing: they are compared with the policy's names and never with addresses.
    """
    if text.startswith("[") and text.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(text[1:-1])) if "%" not in text else None
        except ValueError:
            return None
    text = text.lower().removesuffix(".")
    if not text or len(text) > _NAME_CHARACTERS_MAX:
        return None
    return text if all(_LABEL.fullmatch(label) for label in text.split(".")) else None


def parse_port(text: str) -> int | None:
    """Return a port in its one form: digits without zeros before them."""
    if not text.isascii() or not text.isdigit() or len(text) > 5 or text[0] == "0":
        return None
    port = int(text)
    return port if port <= _PORT_MAX else None


@dataclass(frozen=True, slots=True)
class Rule:
    """One host, or all below a suffix, at one port or the usual ones."""

    host: str
    """A name or address; of `*.suffix` what is behind the `*`, with its dot."""
    port: int | None
    reach: Reach

    @classmethod
    def parse(cls, text: str) -> Rule:
        """Read `name`, `name:port`, `*.suffix`, `*.suffix:port`, `[v6]` or `[v6]:port`.

        Raises:
            ValueError: it is none of these; says why.
        """
        host_text, colon, port_text = text.strip().rpartition(":")
        if not colon or host_text.startswith("[") != host_text.endswith("]"):
            host_text, port_text = text.strip(), ""
        port = parse_port(port_text) if port_text else None
        if port_text and port is None:
            raise ValueError(f"{text!r}: {port_text!r} is no port")
        is_suffix = host_text.startswith("*.")
        host = normal_host(host_text.removeprefix("*."))
        if host is None:
            raise ValueError(f"{text!r} is neither a host, nor *.suffix, nor one with :port")
        if is_suffix and "." not in host:
            raise ValueError(f"{text!r}: a suffix needs two parts at least, as in *.example.org")
        return cls(f".{host}", port, Reach.PUBLIC) if is_suffix else cls(host, port, Reach.ANY)

    def covers(self, host: str, port: int) -> bool:
        """Return whether a normal host at a port is meant."""
        if port not in (DEFAULT_PORTS if self.port is None else (self.port,)):
            return False
        return host.endswith(self.host) if self.host.startswith(".") else host == self.host

    def __str__(self) -> str:
        """Return it as settings have it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        text = f"*{host}" if host.startswith(".") else host
        return text if self.port is None else f"{text}:{self.port}"


class Policy:
    """The hosts that may be reached."""

    def __init__(self, rules: Iterable[Rule]) -> None:
        self.rules = tuple(rules)

    def reach(self, host: str, port: int) -> Reach | None:
        """Return where a normal host may be, by the most generous rule; None: nowhere."""
        found = {rule.reach for rule in self.rules if rule.covers(host, port)}
        return next((r for r in (Reach.ANY, Reach.SITE, Reach.PUBLIC) if r in found), None)
