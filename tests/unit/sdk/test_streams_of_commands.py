"""A command's stream as positions: every byte once, whatever comes twice or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet import NotFound, Unavailable
from sandfleet.stream import Gap, Input, Output, StreamState
from sandfleet_common.errors import Unreachable
from sandfleet_common.messages import ExecState, Failure
from sandfleet_common.streams import NO_FLAGS, STDIN_WINDOW_BYTES, Flag, Kind, StreamFrame


def data(position: int, payload: bytes, flags: Flag = NO_FLAGS) -> StreamFrame:
    return StreamFrame(Kind.DATA, position, payload, flags)


def state(**values: Any) -> ExecState:
    return ExecState(sandbox_id="s", exec_id="e", state="running", started_at=0, **values)


def drained(output: Output) -> bytes:
    taken = b""
    while (chunk := output.take()) is not None:
        taken += chunk.data
    return taken


def test_what_comes_again_is_skipped() -> None:
    output = Output(100)
    output.add(data(0, b"hello "))
    output.add(data(0, b"hello "))
    output.add(data(3, b"lo world"))
    assert drained(output) == b"hello world"


def test_a_frame_beyond_what_has_come_is_a_gap() -> None:
    output = Output(100)
    output.add(data(0, b"a"))
    with pytest.raises(Gap):
        output.add(data(2, b"c"))


def test_both_streams_keep_their_order() -> None:
    output = Output(100)
    output.add(data(0, b"out"))
    output.add(data(3, b"err", Flag.STDERR))
    first, second = output.take(), output.take()
    assert first is not None and second is not None
    assert (first.stream, second.stream) == ("stdout", "stderr")


def test_credit_is_owed_for_a_quarter_of_the_window() -> None:
    output = Output(100)
    output.add(data(0, bytes(24)))
    output.take()
    assert not output.owes_credit()
    output.add(data(24, b"x"))
    output.take()
    assert output.owes_credit()
    assert output.credit().position == 25
    assert not output.owes_credit()


@given(
    st.binary(min_size=1, max_size=200),
    st.lists(st.tuples(st.integers(0, 199), st.integers(1, 60)), max_size=60),
)
def test_any_order_of_pieces_gives_a_prefix_of_the_output(
    whole: bytes, pieces: list[tuple[int, int]]
) -> None:
    output = Output(1000)
    seen = b""
    for start, length in pieces:
        if piece := whole[start : start + length]:
            try:
                output.add(data(start, piece))
            except Gap:
                output.add(data(output.position, whole[output.position : start + length]))
        seen += drained(output)
    assert seen == whole[: output.position]


def test_input_that_was_not_acknowledged_is_sent_again() -> None:
    flow = Input()
    flow.add(b"one")
    flow.add(b"two")
    flow.acknowledge(4)
    flow.close()
    again = flow.again()
    assert [(f.position, f.payload) for f in again] == [(4, b"wo"), (6, b"")]
    assert again[-1].flags & Flag.CLOSED


def test_input_under_way_is_bounded() -> None:
    flow = Input()
    flow.add(bytes(flow.room()))
    assert flow.room() == 0
    flow.acknowledge(1000)
    assert flow.room() == 1000
    assert flow.position == STDIN_WINDOW_BYTES


def test_a_new_link_continues_where_the_node_is() -> None:
    stream = StreamState(Output(100))
    stream.input.add(b"abcdef")
    frames = stream.attached(state(stdin_bytes=4))
    assert [(f.position, f.payload) for f in frames] == [(4, b"ef")]


def test_a_command_fed_by_another_is_fed_from_there() -> None:
    stream = StreamState(Output(100))
    assert stream.attached(state(stdin_bytes=10)) == []
    assert stream.input.add(b"x")[0].position == 10


def test_an_end_before_all_output_is_a_gap() -> None:
    stream = StreamState(Output(100))
    with pytest.raises(Gap):
        stream.handle(StreamFrame(Kind.END, 0, state(output_bytes=5).encode()))
    stream.handle(data(0, b"12345"))
    stream.handle(StreamFrame(Kind.END, 0, state(output_bytes=5).encode()))
    assert stream.is_over


def test_a_stream_that_is_gone_for_now_is_opened_again_and_for_good_is_not() -> None:
    stream = StreamState(Output(100))
    passing: Unavailable = Unreachable("the node starts anew")
    with pytest.raises(Gap):
        stream.handle(StreamFrame(Kind.GONE, 0, Failure.from_error(passing).encode()))
    stream.handle(StreamFrame(Kind.GONE, 0, Failure.from_error(NotFound("no more")).encode()))
    assert isinstance(stream.failure, NotFound)
