"""Names for nodes, sandboxes, jobs and commands.

A sandbox id names its node, so that any client reaches the owner without a
lookup: `sb-<node>-<ulid>`. A ULID sorts by creation time and carries 80 random
bits, so an id cannot be guessed.
"""

from __future__ import annotations

import re
import secrets
import time

from .errors import BadRequest

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_NODE = re.compile(r"[a-z0-9](?:[a-z0-9]|-(?=[a-z0-9])){0,39}")
_TOKEN = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SNAPSHOT = re.compile(rf"sn-({_NODE.pattern})-([0-7][0-9a-hjkmnp-tv-z]{{25}})")
_SANDBOX = re.compile(rf"sb-({_NODE.pattern})-([0-7][0-9a-hjkmnp-tv-z]{{25}})")


def new_ulid(now_ms: int | None = None) -> str:
    """Return a 26-letter ULID in lower case: 48 bits of time in ms, 80 random bits."""
    stamp = int(time.time() * 1000) if now_ms is None else now_ms
    number = (stamp << 80) | secrets.randbits(80)
    return "".join(_ALPHABET[(number >> shift) & 31] for shift in range(125, -5, -5))


def new_sandbox_id(node: str) -> str:
    """Return a fresh id for a sandbox on `node`."""
    return f"sb-{check_node(node)}-{new_ulid()}"


def new_job_id() -> str:
    """Return a fresh job id."""
    return f"job-{new_ulid()}"


def new_exec_id() -> str:
    """Return a fresh id for a command; the same id sent twice starts it once."""
    return f"ex-{new_ulid()}"


def new_request_id() -> str:
    """Return an id that ties a request, its consequences and their log lines together."""
    return f"rq-{new_ulid()}"


def new_snapshot_id(node: str) -> str:
    """Return a fresh id for a snapshot of a sandbox on `node`."""
    return f"sn-{check_node(node)}-{new_ulid()}"


def is_snapshot_id(text: str) -> bool:
    """Return whether a text is a snapshot's id and not an environment's name."""
    return _SNAPSHOT.fullmatch(text) is not None


def node_of(sandbox_id: str) -> str:
    """Return the node that a sandbox id names.

    Raises:
        BadRequest: the text is not a sandbox id.
    """
    match = _SANDBOX.fullmatch(sandbox_id)
    if match is None:
        raise BadRequest(f"{sandbox_id[:80]!r} is not a sandbox id (sb-<node>-<26 letters>)")
    return match.group(1)


def created_ms(sandbox_id: str) -> int:
    """Return when a sandbox's id was made, in ms since the epoch.

    Raises:
        BadRequest: the text is not a sandbox id.
    """
    match = _SANDBOX.fullmatch(sandbox_id)
    if match is None:
        raise BadRequest(f"{sandbox_id[:80]!r} is not a sandbox id (sb-<node>-<26 letters>)")
    number = 0
    for letter in match.group(2)[:10]:
        number = number << 5 | _ALPHABET.index(letter)
    return number


def check_node(name: str) -> str:
    """Return `name` if it can name a node: lower-case letters, digits and single hyphens.

    Raises:
        BadRequest: it cannot.
    """
    if _NODE.fullmatch(name) is None:
        raise BadRequest(
            f"{name[:80]!r} cannot name a node: use up to 40 of a-z, 0-9 and single hyphens"
        )
    return name


def check_token(kind: str, value: str) -> str:
    """Return `value` if it is safe as one token of a subject or key.

    Raises:
        BadRequest: it is empty, longer than 64, or holds more than A-Z a-z 0-9 _ and -.
    """
    if _TOKEN.fullmatch(value) is None:
        raise BadRequest(f"{value[:80]!r} cannot be a {kind}: use 1 to 64 of A-Z a-z 0-9 _ -")
    return value


def environment_token(environment: str) -> str:
    """Return the token of a subject that stands for an environment, whatever its version.

    Names that differ only in characters that no token may hold share one.
    """
    name = environment.partition(":")[0]
    return re.sub(r"[^A-Za-z0-9_-]", "_", name)[:64] or "_"
