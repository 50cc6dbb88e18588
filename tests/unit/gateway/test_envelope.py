"""Messages of a session: whatever comes is a command, a frame or a mistake with a name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sandfleet_common.errors import Broken
from sandfleet_common.messages import Failure
from sandfleet_common.routes import WS_CHANNEL
from sandfleet_common.streams import Flag, Kind, StreamFrame
from sandfleet_gateway.envelope import (
    TYPES,
    Malformed,
    binary,
    error_text,
    parse_binary,
    parse_command,
)

_JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner)),
    max_leaves=6,
)
_CHANNEL = st.integers(0, 2**32 - 1)
_LIKE = {"type": _JSON, "channel": st.one_of(_CHANNEL, _JSON), "body": _JSON, "x": _JSON}


@given(st.text(max_size=200))
def test_any_text_is_a_command_or_malformed(text: str) -> None:
    with pytest.raises(Malformed) as mistake:
        parse_command(text)
    assert mistake.value.message


@settings(max_examples=60)
@given(st.fixed_dictionaries({}, optional=_LIKE))
def test_anything_like_a_command_is_one_or_malformed(fields: dict[str, Any]) -> None:
    try:
        command = parse_command(json.dumps(fields))
    except Malformed as mistake:
        assert mistake.message
    else:
        assert command.type in TYPES
        assert 0 <= command.channel < 2**32


@given(st.sampled_from(TYPES), _CHANNEL, st.dictionaries(st.text(), st.text()))
def test_a_command_is_read_as_it_was_written(kind: str, channel: int, body: dict[str, str]) -> None:
    command = parse_command(json.dumps({"type": kind, "channel": channel, "body": body}))
    assert (command.type, command.channel, command.body) == (kind, channel, body)


@given(st.binary(max_size=100))
def test_any_bytes_are_a_frame_or_malformed(data: bytes) -> None:
    try:
        channel, frame = parse_binary(data)
    except Malformed as mistake:
        known = len(data) >= 4
        assert mistake.channel == (WS_CHANNEL.unpack_from(data)[0] if known else None)
    else:
        assert binary(channel, frame)[:4] == data[:4]


@given(
    _CHANNEL, st.sampled_from(list(Kind)), st.integers(0, 2**64 - 1), st.binary(), st.integers(0, 3)
)
def test_a_frame_is_read_as_it_was_written(
    channel: int, kind: Kind, position: int, payload: bytes, flags: int
) -> None:
    frame = StreamFrame(kind, position, payload, Flag(flags))
    if kind in (Kind.TAKEN, Kind.STDIN, Kind.DETACH):
        assert parse_binary(binary(channel, frame)) == (channel, frame)
    else:
        with pytest.raises(Malformed, match="does not send"):
            parse_binary(binary(channel, frame))


def test_a_frame_is_not_larger_than_a_frame_may_be() -> None:
    with pytest.raises(Malformed, match="at most"):
        parse_binary(binary(1, StreamFrame(Kind.STDIN, 0, bytes(65_537))))


def test_an_error_is_text_whatever_its_fields_hold() -> None:
    text = error_text(3, Broken("it broke", where=object(), text='"\ud800'))
    told = json.loads(text)
    assert (told["type"], told["channel"]) == ("error", 3)
    assert Failure(**told["body"]).code == "internal"
