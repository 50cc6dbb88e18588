"""Messages of a WebSocket session. Pure: text and bytes in, commands and frames out.

Text is JSON, `{"type": ..., "channel": n, "body": {...}}`; a binary message is a
channel number and one frame of that channel's stream.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast

from pydantic import Field
from pydantic_core import from_json

from sandfleet_common.errors import BadRequest, SandfleetError
from sandfleet_common.messages import MIB, Message
from sandfleet_common.messages.commands import ExecId
from sandfleet_common.routes import WS_CHANNEL
from sandfleet_common.streams import DATA_BYTES, Kind, StreamFrame

from .answers import failure_body
from .bodies import Values

CHANNEL_MAX = 2**32 - 1
TYPES = ("start", "attach", "signal", "resize", "detach")
_FROM_CLIENT = frozenset({Kind.TAKEN, Kind.STDIN, Kind.DETACH})

CommandType = Literal["start", "attach", "signal", "resize", "detach"]


class Malformed(Exception):
    """A message cannot be understood; `channel` is None where it does not even say whose it is."""

    def __init__(self, message: str, channel: int | None) -> None:
        super().__init__(message)
        self.message = message
        self.channel = channel

    def error(self) -> SandfleetError:
        """Return the error to answer with."""
        return BadRequest(self.message)


class AttachBody(Message):
    """The body of `attach`."""

    exec_id: ExecId
    position: int = Field(default=0, ge=0, lt=2**63)
    """Output before it is not sent."""
    window_bytes: int = Field(default=MIB, ge=4096)
    """Output that may be under way; the gateway may lower it."""


@dataclass(frozen=True, slots=True)
class Command:
    """A text message of a client."""

    type: CommandType
    channel: int
    body: Values


def parse_command(text: str) -> Command:
    """Parse a text message.

    Raises:
        Malformed: it is no command.
    """
    try:
        value = from_json(text, allow_inf_nan=False)
    except ValueError as problem:
        raise Malformed(f"the message is not JSON: {problem}", None) from None
    if not isinstance(value, dict):
        raise Malformed("the message must be a JSON object", None)
    fields = cast(Values, value)
    channel = fields.get("channel")
    if type(channel) is not int or not 0 <= channel <= CHANNEL_MAX:
        raise Malformed(f"channel: must be a number from 0 to {CHANNEL_MAX}", None)
    unknown = sorted(fields.keys() - {"type", "channel", "body"})
    if unknown:
        raise Malformed(
            f"{unknown[0][:80]}: there is no such field; there are: type, channel, body", channel
        )
    kind, body = fields.get("type"), fields.get("body", {})
    if kind not in TYPES:
        raise Malformed(f"type: must be one of {', '.join(TYPES)}", channel)
    if not isinstance(body, dict):
        raise Malformed("body: must be a JSON object", channel)
    return Command(kind, channel, cast(Values, body))


def parse_binary(data: bytes) -> tuple[int, StreamFrame]:
    """Parse a binary message into the channel and the frame.

    Raises:
        Malformed: it is not one frame that a client may send.
    """
    if len(data) < WS_CHANNEL.size:
        raise Malformed("a binary message begins with a channel number of 4 bytes", None)
    channel = cast(int, WS_CHANNEL.unpack_from(data)[0])
    try:
        frame = StreamFrame.decode(data[WS_CHANNEL.size :])
    except BadRequest as problem:
        raise Malformed(problem.message, channel) from None
    if frame.kind not in _FROM_CLIENT:
        raise Malformed(f"a client does not send {frame.kind.name} frames", channel)
    if len(frame.payload) > DATA_BYTES:
        raise Malformed(f"a frame carries at most {DATA_BYTES} bytes", channel)
    return channel, frame


def binary(channel: int, frame: StreamFrame) -> bytes:
    """Return the binary message that carries a frame."""
    return WS_CHANNEL.pack(channel) + frame.encode()


def state_text(channel: int, state: Message) -> str:
    """Return the text message `state`."""
    return _text("state", channel, state.__pydantic_serializer__.to_json(state))


def error_text(channel: int, error: SandfleetError) -> str:
    """Return the text message `error`."""
    return _text("error", channel, failure_body(error))


def gone(error: SandfleetError) -> StreamFrame:
    """Return the frame that ends a stream for a reason other than the command's end."""
    return StreamFrame(Kind.GONE, 0, failure_body(error))


def _text(kind: str, channel: int, body: bytes) -> str:
    return f'{{"type": "{kind}", "channel": {channel}, "body": {body.decode()}}}'


__all__ = [
    "AttachBody",
    "Command",
    "Malformed",
    "binary",
    "error_text",
    "gone",
    "parse_binary",
    "parse_command",
    "state_text",
]
