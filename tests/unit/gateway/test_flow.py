"""Positions of one channel: every byte once, never more than a window, whatever is lost."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sandfleet_common.errors import BadRequest, Broken, Conflict, Unreachable
from sandfleet_common.messages import ExecState, Failure
from sandfleet_common.streams import STDIN_WINDOW_BYTES, Flag, Kind, StreamFrame
from sandfleet_gateway.flow import Flow, Gap

WINDOW = 4096


def state(*, output: int = 0, stdin: int = 0, closed: bool = False) -> ExecState:
    return ExecState(
        sandbox_id="sb",
        exec_id="e",
        state="running",
        started_at=1.0,
        output_bytes=output,
        stdin_bytes=stdin,
        stdin_closed=closed,
    )


def data(position: int, payload: bytes, flags: int = 0) -> StreamFrame:
    return StreamFrame(Kind.DATA, position, payload, Flag(flags))


def test_what_came_before_is_not_passed_on_again() -> None:
    flow = Flow.at(0, WINDOW)
    assert flow.from_node(data(0, b"abc")) == data(0, b"abc")
    assert flow.from_node(data(0, b"abc")) is None
    assert flow.from_node(data(1, b"bcde", Flag.STDERR)) == data(3, b"de", Flag.STDERR)


def test_a_hole_is_a_gap() -> None:
    flow = Flow.at(10, WINDOW)
    with pytest.raises(Gap):
        flow.from_node(data(11, b"x"))
    end = StreamFrame(Kind.END, 12, state(output=12).encode())
    with pytest.raises(Gap):
        flow.from_node(end)
    flow.from_node(data(10, b"xy"))
    assert flow.from_node(end) is end


def test_a_stream_that_may_be_tried_again_is_a_gap_and_another_end_is_passed_on() -> None:
    flow = Flow.at(0, WINDOW)
    restarting = Failure.from_error(Unreachable("the node stops")).encode()
    with pytest.raises(Gap):
        flow.from_node(StreamFrame(Kind.GONE, 0, restarting))
    broken = StreamFrame(Kind.GONE, 0, Failure.from_error(Broken("a bug")).encode())
    assert flow.from_node(broken) is broken
    with pytest.raises(BadRequest):
        flow.from_node(StreamFrame(Kind.GONE, 0, b"nonsense"))


def test_a_node_that_sends_too_much_is_broken() -> None:
    flow = Flow.at(0, WINDOW)
    flow.from_node(data(0, bytes(WINDOW)))
    with pytest.raises(Broken):
        flow.from_node(data(WINDOW, b"x"))


def test_credit_goes_no_further_than_what_was_sent() -> None:
    flow = Flow.at(0, WINDOW)
    frame = flow.from_node(data(0, bytes(100)))
    assert frame is not None
    assert flow.from_client(StreamFrame(Kind.TAKEN, 2**64 - 1)) == StreamFrame(Kind.TAKEN, 0)
    flow.was_sent(frame)
    assert flow.from_client(StreamFrame(Kind.TAKEN, 2**64 - 1)) == StreamFrame(Kind.TAKEN, 100)
    assert flow.from_client(StreamFrame(Kind.TAKEN, 5)) == StreamFrame(Kind.TAKEN, 100)


def test_input_beyond_the_window_or_after_a_hole_is_refused() -> None:
    flow = Flow.at(0, WINDOW)
    for at in range(0, STDIN_WINDOW_BYTES, 65_536):
        flow.from_client(StreamFrame(Kind.STDIN, at, bytes(65_536)))
    with pytest.raises(BadRequest, match="under way"):
        flow.from_client(StreamFrame(Kind.STDIN, STDIN_WINDOW_BYTES, b"x"))
    with pytest.raises(BadRequest, match="missing"):
        flow.from_client(StreamFrame(Kind.STDIN, STDIN_WINDOW_BYTES + 1, b"x"))


def test_input_after_its_end_is_refused_and_a_repeated_end_is_not() -> None:
    flow = Flow.at(0, WINDOW)
    end = StreamFrame(Kind.STDIN, 0, b"ab", Flag.CLOSED)
    assert flow.from_client(end) == end
    assert flow.from_client(end) is None
    assert flow.from_client(StreamFrame(Kind.STDIN, 2, b"", Flag.CLOSED)) is None
    with pytest.raises(Conflict):
        flow.from_client(StreamFrame(Kind.STDIN, 2, b"c"))


def test_a_new_stream_gets_the_input_that_the_node_does_not_have() -> None:
    flow = Flow.at(0, WINDOW)
    flow.from_client(StreamFrame(Kind.STDIN, 0, b"abc"))
    flow.from_client(StreamFrame(Kind.STDIN, 3, b"def", Flag.CLOSED))
    assert flow.opened(state(stdin=2)) == [
        StreamFrame(Kind.STDIN, 2, b"cdef"),
        StreamFrame(Kind.STDIN, 6, b"", Flag.CLOSED),
    ]
    assert flow.opened(state(stdin=6, closed=True)) == []
    assert flow.from_client(StreamFrame(Kind.STDIN, 6, b"late")) is None


def test_a_command_fed_by_another_goes_on_where_that_one_stopped() -> None:
    flow = Flow.at(0, WINDOW)
    assert flow.opened(state(stdin=100)) == []
    assert flow.from_client(StreamFrame(Kind.STDIN, 100, b"x")) is not None


@given(
    st.lists(st.tuples(st.sampled_from(list(Kind)), st.integers(0, 300), st.binary(max_size=50)))
)
def test_no_frame_of_a_client_breaks_it(frames: list[tuple[Kind, int, bytes]]) -> None:
    flow = Flow.at(0, WINDOW)
    for kind, position, payload in frames:
        if kind in (Kind.TAKEN, Kind.STDIN):
            try:
                flow.from_client(StreamFrame(kind, position, payload))
            except (BadRequest, Conflict) as problem:
                assert problem.message
        assert 0 <= flow.input_acknowledged <= flow.input_position
        assert flow.taken <= flow.sent <= flow.position


class Bridge(RuleBasedStateMachine):
    """A node, a client and the flow between them; frames are lost and streams opened anew."""

    def __init__(self) -> None:
        super().__init__()
        self.flow = Flow.at(0, WINDOW)
        self.output = bytes(range(251)) * 200
        self.node_at = 0
        self.node_taken = 0
        self.node_stdin = bytearray()
        self.waiting: list[StreamFrame] = []
        self.client = bytearray()
        self.client_stdin = bytearray()
        self.is_broken = False

    @initialize()
    def open(self) -> None:
        self.reopen()

    @rule(size=st.integers(1, 3000), is_lost=st.booleans())
    def node_sends(self, size: int, is_lost: bool) -> None:
        room = self.node_taken + WINDOW - self.node_at
        payload = self.output[self.node_at :][: min(size, room)]
        frame = data(self.node_at, payload)
        self.node_at += len(payload)
        if not payload or is_lost or self.is_broken:
            return
        try:
            onward = self.flow.from_node(frame)
        except Gap:
            self.is_broken = True
            return
        if onward is not None:
            self.waiting.append(onward)

    @precondition(lambda self: self.waiting)
    @rule()
    def socket_sends(self) -> None:
        frame = self.waiting.pop(0)
        self.flow.was_sent(frame)
        assert frame.position == len(self.client)
        self.client += frame.payload

    @rule(claim=st.integers(0, 2000), is_lost=st.booleans())
    def client_takes(self, claim: int, is_lost: bool) -> None:
        credit = self.flow.from_client(StreamFrame(Kind.TAKEN, len(self.client) + claim))
        if credit is not None and not is_lost and not self.is_broken:
            self.node_taken = max(self.node_taken, credit.position)

    @rule(payload=st.binary(min_size=1, max_size=300), is_lost=st.booleans())
    def client_writes(self, payload: bytes, is_lost: bool) -> None:
        frame = StreamFrame(Kind.STDIN, len(self.client_stdin), payload)
        try:
            onward = self.flow.from_client(frame)
        except BadRequest:
            return  # the window is full
        self.client_stdin += payload
        if onward is not None and not is_lost and not self.is_broken:
            self._node_reads(onward)

    @rule()
    def node_acknowledges(self) -> None:
        self.flow.from_node(StreamFrame(Kind.INPUT, len(self.node_stdin)))

    @rule()
    def reopen(self) -> None:
        self.is_broken = False
        self.node_at = self.node_taken = self.flow.taken
        for frame in self.flow.opened(state(stdin=len(self.node_stdin))):
            self._node_reads(frame)

    def _node_reads(self, frame: StreamFrame) -> None:
        if frame.position <= len(self.node_stdin):
            self.node_stdin += frame.payload[len(self.node_stdin) - frame.position :]

    @invariant()
    def every_byte_comes_once(self) -> None:
        assert self.output.startswith(bytes(self.client))
        assert self.client_stdin.startswith(bytes(self.node_stdin))

    @invariant()
    def at_most_a_window_is_held(self) -> None:
        held = sum(len(frame.payload) for frame in self.waiting)
        assert held == self.flow.held_bytes() <= WINDOW

    def teardown(self) -> None:
        for _ in range(300):
            self.reopen()
            while self.waiting:
                self.socket_sends()
            self.client_takes(0, False)
            self.node_sends(3000, False)
        assert bytes(self.client) == self.output
        assert self.node_stdin == self.client_stdin


TestBridge = Bridge.TestCase
TestBridge.settings = settings(max_examples=30, stateful_step_count=40)
