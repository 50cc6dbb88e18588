"""One channel's bytes as positions, in both directions. Pure: frames in, frames out.

The client and the node speak about positions with each other; the gateway only
watches, so that it can

* open a new stream behind the client's back when frames were lost: what was passed
  on is not passed on twice, input the node does not have is sent again;
* hold at most one window: a client's credit is passed on only for what it has
  been sent, and a node that sends more than was granted is cut off.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sandfleet_common.errors import BadRequest, Broken, Conflict, Unavailable
from sandfleet_common.messages import ExecState, Failure
from sandfleet_common.streams import DATA_BYTES, STDIN_WINDOW_BYTES, Flag, Kind, StreamFrame


class Gap(Exception):
    """Frames were lost between the node and here: open the stream anew at `taken`."""


@dataclass(slots=True)
class Flow:
    """Where a channel is."""

    window_bytes: int
    position: int = 0
    """Output below it has come from the node."""
    sent: int = 0
    """Output below it has been sent to the client."""
    taken: int = 0
    """Output below it has been taken by the client; streams are opened here."""
    input_position: int = 0
    """Input below it has come from the client."""
    input_acknowledged: int = 0
    """Input below it is with the node."""
    is_input_over: bool = False
    """The client has sent the end."""
    is_input_refused: bool = False
    """The node takes no more."""
    _input: bytearray = field(default_factory=bytearray)

    @classmethod
    def at(cls, position: int, window_bytes: int) -> Flow:
        """Return the flow of a client that has the output below `position`."""
        return cls(window_bytes, position, position, position)

    def opened(self, state: ExecState) -> list[StreamFrame]:
        """Take in what the node said to a new stream; return the input to send on it."""
        if self.input_position < state.stdin_bytes:  # what another client has fed it
            self.input_position = self.input_acknowledged = state.stdin_bytes
            self._input.clear()
        self._acknowledge(state.stdin_bytes, refused=state.stdin_closed)
        return self._frames(self.input_acknowledged)

    def from_node(self, frame: StreamFrame) -> StreamFrame | None:
        """Take in a frame of the node; return the one to pass on, if any.

        Raises:
            Gap: something before it is missing.
            Broken: the node sent more than it may.
        """
        if frame.kind is Kind.DATA:
            return self._output(frame)
        if frame.kind is Kind.INPUT:
            self._acknowledge(frame.position, refused=bool(frame.flags & Flag.CLOSED))
        elif frame.kind is Kind.END:
            if ExecState.decode(frame.payload).output_bytes > self.position:
                raise Gap
        elif isinstance(Failure.decode(frame.payload).to_error(), Unavailable):
            raise Gap  # another attempt will do
        return frame

    def from_client(self, frame: StreamFrame) -> StreamFrame | None:
        """Take in a TAKEN or STDIN frame of the client; return the one to pass on, if any.

        Raises:
            BadRequest, Conflict: the client does not keep to the protocol; says how.
        """
        if frame.kind is Kind.TAKEN:
            # Never beyond what was sent: credit for the rest would let it pile up here.
            self.taken = max(self.taken, min(frame.position, self.sent))
            return self.credit()
        return self._add_input(frame)

    def credit(self) -> StreamFrame:
        """Return the frame that says how far the client is; also the keep-alive."""
        return StreamFrame(Kind.TAKEN, self.taken)

    def was_sent(self, frame: StreamFrame) -> None:
        """Note that a frame is with the client's connection."""
        if frame.kind is Kind.DATA:
            self.sent = max(self.sent, frame.position + len(frame.payload))

    def held_bytes(self) -> int:
        """Return how much output is held here."""
        return self.position - self.sent

    def is_client_slow(self) -> bool:
        """Return whether the node is silent because it may not send."""
        return self.position - self.taken >= self.window_bytes // 2

    def _output(self, frame: StreamFrame) -> StreamFrame | None:
        if frame.position > self.position:
            raise Gap
        data = frame.payload[self.position - frame.position :]
        if not data:
            return None
        if self.position + len(data) - self.taken > self.window_bytes:
            raise Broken("the node sent more output than it was granted")
        fresh = StreamFrame(Kind.DATA, self.position, data, frame.flags)
        self.position += len(data)
        return fresh

    def _add_input(self, frame: StreamFrame) -> StreamFrame | None:
        if self.is_input_refused:
            return None  # the command takes no more; the client was or will be told
        if frame.position > self.input_position:
            raise BadRequest(
                f"input is missing: {self.input_position} comes next, not {frame.position}"
            )
        data = frame.payload[self.input_position - frame.position :]
        is_end = bool(frame.flags & Flag.CLOSED)
        if not data and (self.is_input_over or not is_end):
            return None
        if self.is_input_over:
            raise Conflict("the input was closed already")
        if self.input_position + len(data) - self.input_acknowledged > STDIN_WINDOW_BYTES:
            raise BadRequest(f"more than {STDIN_WINDOW_BYTES} bytes of input are under way")
        fresh = StreamFrame(
            Kind.STDIN, self.input_position, data, Flag.CLOSED if is_end else Flag(0)
        )
        self._input += data
        self.input_position += len(data)
        self.is_input_over = is_end
        return fresh

    def _acknowledge(self, position: int, *, refused: bool) -> None:
        done = min(position, self.input_position) - self.input_acknowledged
        if done > 0:
            del self._input[:done]
            self.input_acknowledged += done
        if refused:
            self.is_input_refused = True
            self._input.clear()

    def _frames(self, start: int) -> list[StreamFrame]:
        if self.is_input_refused:
            return []
        data = bytes(self._input)
        frames = [
            StreamFrame(Kind.STDIN, start + at, data[at : at + DATA_BYTES])
            for at in range(0, len(data), DATA_BYTES)
        ]
        if self.is_input_over:
            frames.append(StreamFrame(Kind.STDIN, self.input_position, b"", Flag.CLOSED))
        return frames
