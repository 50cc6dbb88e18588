"""Both directions of one command's stream, as positions. Pure: frames in, frames out.

The node may send what was sent before, or break off; the reader still gets every
byte once, and the command gets its input once, because everything has a position.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from sandfleet_common.errors import SandfleetError, Unavailable
from sandfleet_common.messages import Chunk, ExecState, Failure
from sandfleet_common.streams import (
    DATA_BYTES,
    NO_FLAGS,
    STDIN_WINDOW_BYTES,
    Flag,
    Kind,
    StreamFrame,
)


class Gap(Exception):
    """Something is missing: attach again from the position reached."""


@dataclass(slots=True)
class Output:
    """What came from the command and has not been read yet."""

    window_bytes: int
    position: int = 0
    """Output below it has arrived."""
    taken: int = 0
    """Output below it has been read by the caller."""
    _told: int = 0
    _chunks: deque[Chunk] = field(default_factory=deque[Chunk])

    def add(self, frame: StreamFrame) -> None:
        """Take in a DATA frame, without what is there already.

        Raises:
            Gap: it starts beyond what has arrived.
        """
        if frame.position > self.position:
            raise Gap
        data = frame.payload[self.position - frame.position :]
        if data:
            stream = "stderr" if frame.flags & Flag.STDERR else "stdout"
            self._chunks.append(Chunk.model_construct(stream=stream, data=data))
            self.position += len(data)

    def take(self) -> Chunk | None:
        """Return the next piece for the reader."""
        if not self._chunks:
            return None
        chunk = self._chunks.popleft()
        self.taken += len(chunk.data)
        return chunk

    def owes_credit(self) -> bool:
        """Return whether the node should learn now how far the reader is."""
        return self.taken - self._told >= self.window_bytes // 4

    def credit(self) -> StreamFrame:
        """Return the frame that says how far the reader is."""
        self._told = self.taken
        return StreamFrame(Kind.TAKEN, self.taken)


@dataclass(slots=True)
class Input:
    """What goes to the command; kept until its node says that it has it."""

    position: int = 0
    """Input below it was handed in by the caller."""
    acknowledged: int = 0
    """Input below it is with the node."""
    is_closed: bool = False
    """The caller has no more."""
    is_refused: bool = False
    """The command takes no more."""
    _unacknowledged: bytearray = field(default_factory=bytearray)

    def room(self) -> int:
        """Return how many bytes may be handed in now."""
        return max(0, STDIN_WINDOW_BYTES - (self.position - self.acknowledged))

    def add(self, data: bytes) -> list[StreamFrame]:
        """Take input, no more than `room`, and return the frames that carry it."""
        start = self.position
        self._unacknowledged += data
        self.position += len(data)
        return self._frames(start)

    def close(self) -> list[StreamFrame]:
        """End the input."""
        self.is_closed = True
        return self._frames(self.position)

    def acknowledge(self, position: int, flags: Flag = NO_FLAGS) -> None:
        """Take in how far the node is."""
        done = min(position, self.position) - self.acknowledged
        if done > 0:
            del self._unacknowledged[:done]
            self.acknowledged += done
        if flags & Flag.CLOSED:
            self.is_refused = True

    def again(self) -> list[StreamFrame]:
        """Return the frames to send on a new link."""
        return self._frames(self.acknowledged)

    def is_settled(self) -> bool:
        """Return whether the node has all of it."""
        return self.is_refused or self.acknowledged >= self.position

    def _frames(self, start: int) -> list[StreamFrame]:
        offset = start - self.acknowledged
        data = bytes(self._unacknowledged[offset:])
        frames = [
            StreamFrame(Kind.STDIN, start + at, data[at : at + DATA_BYTES])
            for at in range(0, len(data), DATA_BYTES)
        ]
        if self.is_closed:
            frames.append(StreamFrame(Kind.STDIN, self.position, b"", Flag.CLOSED))
        return frames


@dataclass(slots=True)
class StreamState:
    """A stream, whatever link carries it at the moment."""

    output: Output
    input: Input = field(default_factory=Input)
    end: ExecState | None = None
    failure: SandfleetError | None = None

    @property
    def is_over(self) -> bool:
        """Whether nothing more will arrive."""
        return self.end is not None or self.failure is not None

    def attached(self, state: ExecState) -> list[StreamFrame]:
        """Take in what the node said to a new link; return the input to send again."""
        if self.input.position < state.stdin_bytes:  # a stream to a command fed by another
            self.input.position = self.input.acknowledged = state.stdin_bytes
        self.input.acknowledge(state.stdin_bytes)
        if state.stdin_closed:
            self.input.is_refused = True
        return [] if self.input.is_refused else self.input.again()

    def handle(self, frame: StreamFrame) -> None:
        """Take in a frame from the node.

        Raises:
            Gap: attach again; nothing is lost.
        """
        if frame.kind is Kind.DATA:
            self.output.add(frame)
        elif frame.kind is Kind.INPUT:
            self.input.acknowledge(frame.position, frame.flags)
        elif frame.kind is Kind.END:
            state = ExecState.decode(frame.payload)
            if state.output_bytes > self.output.position:
                raise Gap
            self.end = state
        elif frame.kind is Kind.GONE:
            error = Failure.decode(frame.payload).to_error()
            if isinstance(error, Unavailable):
                raise Gap
            self.failure = error
