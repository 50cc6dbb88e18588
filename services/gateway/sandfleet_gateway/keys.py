"""API keys: who may come in.

A key file has a line `name:sha256hex` for each key, and comments that start with
`#`. It holds hashes, so reading it gives nobody a key. It is read again when it
changes; a file that cannot be read lets nobody in.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from sandfleet_common.logs import Logger

LOOK_SECONDS = 1.0
"""How often the file is looked at."""
KEY_LETTERS_MAX = 512
WS_KEY_PREFIX = "sandfleet.key."
"""Before the key, where a browser offers it as a WebSocket subprotocol."""
OPEN = "loopback"
"""The name under which requests without a key are counted and logged."""

_LINE = re.compile(r"([A-Za-z0-9_.@-]{1,64}):([0-9a-fA-F]{64})")
_LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})


def parse_keys(text: str) -> tuple[dict[str, bytes], list[int]]:
    """Return the digests by name, and the numbers of lines that are not understood."""
    keys: dict[str, bytes] = {}
    wrong: list[int] = []
    for number, raw in enumerate(text.splitlines(), 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        match = _LINE.fullmatch(line)
        if match is None:
            wrong.append(number)
        else:
            keys[match[1]] = bytes.fromhex(match[2])
    return keys, wrong


def find_key(keys: Mapping[str, bytes], presented: str) -> str | None:
    """Return the name of a key, in a time that says nothing about the keys there are."""
    if not presented or len(presented) > KEY_LETTERS_MAX:
        return None
    digest = hashlib.sha256(presented.encode("utf-8", "surrogateescape")).digest()
    found: str | None = None
    for name, known in keys.items():
        if hmac.compare_digest(digest, known):
            found = name
    return found


def presented_key(headers: Mapping[str, str], subprotocols: Sequence[str] = ()) -> str | None:
    """Return the key that a request shows, wherever it may."""
    scheme, _, key = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and key.strip():
        return key.strip()
    if "x-api-key" in headers:
        return headers["x-api-key"].strip()
    for name in subprotocols:
        if name.startswith(WS_KEY_PREFIX):
            return name.removeprefix(WS_KEY_PREFIX)
    return None


def password_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that stands as the password in `http://anybody:<key>@host/run_code`.

    Clients that know of no API keys (SandboxFusion's) send what is in their URL as HTTP
    Basic authentication. It is taken for that one path only: a browser that once had it
    would send it along with what other sites' pages ask for.
    """
    scheme, _, text = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic" or len(text) > 2 * KEY_LETTERS_MAX:
        return None
    try:
        _, colon, key = base64.b64decode(text, validate=True).decode().partition(":")
    except ValueError:
        return None
    return key if colon and key else None


def is_local(client: str | None, headers: Mapping[str, str]) -> bool:
    """Return whether a request comes from a program of this machine, directly.

    A page of some web site, shown by a browser of this machine, and a proxy that
    passes on requests from elsewhere, also connect from the loopback address.
    """
    if client not in _LOOPBACK or "forwarded" in headers or "x-forwarded-for" in headers:
        return False
    origin = headers.get("origin")
    return _host(f"//{headers.get('host', '')}") in _LOOPBACK and (
        origin is None or _host(origin) in _LOOPBACK
    )


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class _Seen:
    modified_ns: int
    inode: int
    size: int


class KeyFile:
    """The keys of a file, as it is now."""

    def __init__(self, path: Path | None, log: Logger, clock: Callable[[], float]) -> None:
        self._path = path
        self._log = log
        self._clock = clock
        self._looked_at: float | None = None
        self._seen: _Seen | None = None
        self._keys: dict[str, bytes] = {}
        self._problem: str | None = None
        self._warning: str | None = None

    def name_of(self, presented: str) -> str | None:
        """Return the name of the key that was presented, or None."""
        now = self._clock()
        if self._looked_at is None or now - self._looked_at >= LOOK_SECONDS:
            self._looked_at = now
            self._look()
        return find_key(self._keys, presented)

    def check(self) -> str | None:
        """Return why nobody can come in, if nobody can."""
        self._look()
        return self._problem

    def warning(self) -> str | None:
        """Return which lines of the file are passed over."""
        self._look()
        return self._warning

    def _look(self) -> None:
        if self._path is None:
            return
        try:
            found = self._path.stat()
            seen = _Seen(found.st_mtime_ns, found.st_ino, found.st_size)
            if seen == self._seen:
                return
            keys, wrong = parse_keys(self._path.read_text())
        except (OSError, UnicodeDecodeError) as problem:
            self._fail(f"the API key file cannot be read: {problem}")
            return
        self._seen, self._keys = seen, keys
        self._problem = None
        self._warning = f"the API key file has bad lines: {wrong[:10]}" if wrong else None
        self._log.info("keys.read", keys=len(keys), bad_lines=wrong[:10])

    def _fail(self, problem: str) -> None:
        if problem != self._problem:
            self._log.error("keys.unreadable", error=problem)
        self._seen, self._keys, self._problem = None, {}, problem
