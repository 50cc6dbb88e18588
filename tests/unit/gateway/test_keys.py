"""API keys: who comes in."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.logs import Logger
from sandfleet_gateway.keys import KeyFile, find_key, is_local, parse_keys, presented_key


def line(name: str, key: str) -> str:
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()}\n"


class Clock:
    """A time that a test sets."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_file_has_names_comments_and_mistakes() -> None:
    text = f"# keys\n\n{line('alice', 'a')}bob:1234\n  {line('carol', 'c')}nonsense\n"
    keys, wrong = parse_keys(text)
    assert list(keys) == ["alice", "carol"]
    assert wrong == [4, 6]


def test_a_key_is_found_by_its_hash() -> None:
    keys, _ = parse_keys(line("alice", "a") + line("bob", "b"))
    assert find_key(keys, "b") == "bob"
    assert find_key(keys, "c") is None
    assert find_key(keys, "") is None
    assert find_key(keys, "b" * 10_000) is None
    # The hash is no key.
    assert find_key(keys, hashlib.sha256(b"a").hexdigest()) is None


@given(st.text(max_size=300))
def test_any_text_is_a_file_or_has_bad_lines(text: str) -> None:
    keys, wrong = parse_keys(text)
    assert len(keys) + len(wrong) <= len(text.splitlines())


@given(st.text(st.characters(max_codepoint=255), max_size=600))
def test_any_header_may_be_presented(value: str) -> None:
    key = presented_key({"authorization": value, "x-api-key": value})
    assert find_key({"a": b"\0" * 32}, key or "") is None


def test_keys_stand_in_headers_or_in_a_subprotocol() -> None:
    assert presented_key({"authorization": "Bearer k1", "x-api-key": "k2"}) == "k1"
    assert presented_key({"authorization": "Basic k1", "x-api-key": "k2"}) == "k2"
    assert presented_key({"authorization": "Bearer "}) is None
    assert presented_key({}, ["sandfleet.v1", "sandfleet.key.k3"]) == "k3"
    assert presented_key({}, ["sandfleet.v1"]) is None


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    clock, path = Clock(), tmp_path / "keys"
    path.write_text(line("alice", "a"))
    keys = KeyFile(path, Logger("test", out=io.StringIO()), clock)
    assert keys.name_of("a") == "alice"
    path.write_text(line("bob", "b") + "nonsense\n")
    assert keys.name_of("b") is None, "not looked at yet"
    clock.now = 5
    assert (keys.name_of("b"), keys.name_of("a")) == ("bob", None)
    assert keys.check() is None
    assert "[2]" in str(keys.warning())


def test_a_file_that_cannot_be_read_lets_nobody_in(tmp_path: Path) -> None:
    clock, path, out = Clock(), tmp_path / "keys", io.StringIO()
    path.write_text(line("alice", "a"))
    keys = KeyFile(path, Logger("test", out=out), clock)
    assert keys.name_of("a") == "alice"
    path.write_bytes(b"\xff\xfe")
    os.utime(path, (1, 1))
    clock.now = 2
    assert keys.name_of("a") is None
    assert keys.check()
    path.unlink()
    clock.now = 4
    assert keys.name_of("a") is None
    path.write_text(line("alice", "a"))
    clock.now = 6
    assert keys.name_of("a") == "alice"
    assert keys.check() is None
    assert hashlib.sha256(b"a").hexdigest() not in out.getvalue()


@pytest.mark.parametrize(
    ("client", "headers", "expected"),
    [
        ("127.0.0.1", {"host": "127.0.0.1:8080"}, True),
        ("::1", {"host": "[::1]:8080"}, True),
        ("127.0.0.1", {"host": "localhost", "origin": "http://localhost:3000"}, True),
        ("10.0.0.1", {"host": "localhost"}, False),
        (None, {"host": "localhost"}, False),
        ("127.0.0.1", {}, False),
        ("127.0.0.1", {"host": "rebound.example"}, False),
        ("127.0.0.1", {"host": "localhost", "origin": "https://elsewhere.example"}, False),
        ("127.0.0.1", {"host": "localhost", "origin": "null"}, False),
        ("127.0.0.1", {"host": "localhost", "x-forwarded-for": "1.2.3.4"}, False),
        ("127.0.0.1", {"host": "localhost", "forwarded": "for=1.2.3.4"}, False),
        ("127.0.0.1", {"host": "[::"}, False),
    ],
)
def test_only_a_program_of_this_machine_is_local(
    client: str | None, headers: dict[str, str], expected: bool
) -> None:
    assert is_local(client, headers) is expected
