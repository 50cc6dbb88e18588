"""Frames of a command's stream."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.errors import BadRequest
from sandfleet_common.streams import Flag, Kind, StreamFrame

FRAMES = st.builds(
    StreamFrame,
    kind=st.sampled_from(Kind),
    position=st.integers(0, 2**64 - 1),
    payload=st.binary(max_size=200),
    flags=st.sampled_from([Flag(0), Flag.STDERR, Flag.CLOSED, Flag.STDERR | Flag.CLOSED]),
)


@given(FRAMES)
def test_a_frame_is_read_as_it_was_written(frame: StreamFrame) -> None:
    assert StreamFrame.decode(frame.encode()) == frame


@given(FRAMES, st.integers(0, 300))
def test_part_of_a_frame_is_no_frame(frame: StreamFrame, size: int) -> None:
    data = frame.encode()
    if size < len(data):
        with pytest.raises(BadRequest):
            StreamFrame.decode(data[:size])
    with pytest.raises(BadRequest):
        StreamFrame.decode(data + b"x")


@given(st.binary(max_size=64))
def test_any_bytes_are_a_frame_or_a_bad_request(data: bytes) -> None:
    try:
        frame = StreamFrame.decode(data)
    except BadRequest:
        return
    assert len(frame.encode()) == len(data)


def test_an_unknown_kind_is_told() -> None:
    data = bytearray(StreamFrame(Kind.END).encode())
    data[0] = 99
    with pytest.raises(BadRequest, match="kind 99"):
        StreamFrame.decode(bytes(data))
