"""What people write and read on the command line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet import BadRequest
from sandfleet.cli import text
from sandfleet.cli.copying import split


@pytest.mark.parametrize(
    ("written", "meant"),
    [("4096", 4096), ("512m", 512 << 20), ("1.5g", 3 << 29), ("2GiB", 2 << 30), ("1 kb", 1024)],
)
def test_a_size_is_understood(written: str, meant: int) -> None:
    assert text.parse_size(written) == meant


@pytest.mark.parametrize("wrong", ["", "m", "-1", "1x", "1e3", "0x10"])
def test_what_is_not_a_size_is_refused(wrong: str) -> None:
    with pytest.raises(BadRequest):
        text.parse_size(wrong)


@pytest.mark.parametrize(
    ("written", "meant"), [("90", 90), ("1.5s", 1.5), ("15m", 900), ("2h", 7200), ("1d", 86400)]
)
def test_a_duration_is_understood(written: str, meant: float) -> None:
    assert text.parse_duration(written) == meant


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [(0, "0s"), (42, "42s"), (310, "5m 10s"), (3600, "1h"), (10920, "3h 2m"), (187200, "2d 4h")],
)
def test_a_duration_is_shown_in_two_units_at_most(seconds: float, shown: str) -> None:
    assert text.duration(seconds) == shown


@pytest.mark.parametrize(
    ("count", "shown"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (5 << 40, "5.0 TiB")]
)
def test_a_size_is_shown_in_its_unit(count: int, shown: str) -> None:
    assert text.size(count) == shown


def test_an_assignment_may_hold_anything_after_the_first_equals_sign() -> None:
    assert text.parse_assignment("A=b=c\n") == ("A", "b=c\n")
    with pytest.raises(BadRequest):
        text.parse_assignment("=x")


def test_escape_sequences_are_shown_and_not_obeyed() -> None:
    safe = text.SafeText()
    shown = safe.add(b"\x1b]0;owned\x07\x1b[2Jok\n\tnext\r\n\xc2\x9b31m\x7f")
    assert shown == "\\x1b]0;owned\\x07\\x1b[2Jok\n\tnext\r\n\\x9b31m\\x7f"


def test_a_direction_override_is_shown() -> None:
    assert text.SafeText().add("a\u202eb".encode()) == "a\\u202eb"


@given(st.text(), st.integers(1, 5))
def test_a_character_cut_in_two_is_whole_again(given_text: str, size: int) -> None:
    raw = given_text.encode(errors="surrogatepass")
    safe, whole = text.SafeText(), text.SafeText()
    cut = "".join(safe.add(raw[at : at + size]) for at in range(0, len(raw), size)) + safe.end()
    assert cut == whole.add(raw) + whole.end()


@given(st.binary())
def test_no_byte_can_steer_a_terminal(data: bytes) -> None:
    safe = text.SafeText()
    shown = safe.add(data) + safe.end()
    steering = [c for c in shown if (ord(c) < 32 or 126 < ord(c) < 160) and c not in "\t\n\r"]
    assert steering == []


def test_one_line_stays_one_line() -> None:
    assert text.safe_line("a\nb\x1bc") == "a\\nb\\x1bc"


SANDBOX = "sb-node-1-01k8zq3v5w9x2y4a6b8c0d2e4f"


@pytest.mark.parametrize(
    "reference", [SANDBOX, "sb-node-1-01k8", "01k8zq", "8c0d", "8c0d2e4f", "6b8c0d2e4f"]
)
def test_a_sandbox_is_meant_by_its_beginning_or_its_end(reference: str) -> None:
    assert text.matches(SANDBOX, reference)


@pytest.mark.parametrize("reference", ["", "x", "node-1", "2y4a", "4f"])
def test_a_sandbox_is_not_meant_by_its_middle(reference: str) -> None:
    assert not text.matches(SANDBOX, reference)


@pytest.mark.parametrize(
    ("place", "meant"),
    [
        ("abc:/tmp/x", ("abc", "/tmp/x")),
        ("abc:", ("abc", ".")),
        ("abc:a:b", ("abc", "a:b")),
        ("./a:b", (None, "./a:b")),
        ("/a:b", (None, "/a:b")),
        ("plain", (None, "plain")),
        (":x", (None, ":x")),
    ],
)
def test_a_place_names_a_sandbox_or_this_machine(place: str, meant: tuple[str | None, str]) -> None:
    assert split(place) == meant
