"""What all messages have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sandfleet_common.errors import BadRequest, SandfleetError, from_code
from sandfleet_common.ids import new_request_id


class Message(BaseModel):
    """One frozen, versioned record; JSON on the wire, bytes in it as base64.

    Fields are added, never renamed or given a new meaning, and a reader ignores
    fields it does not know: services of neighbouring versions understand each other.
    """

    model_config = ConfigDict(
        frozen=True, extra="ignore", ser_json_bytes="base64", val_json_bytes="base64"
    )

    def encode(self) -> bytes:
        """Return the message as JSON, without fields that hold their defaults."""
        return self.__pydantic_serializer__.to_json(self, exclude_defaults=True)

    @classmethod
    def decode(cls, payload: bytes) -> Self:
        """Parse a message.

        Raises:
            BadRequest: the bytes are not such a message; says which field and why.
        """
        try:
            return cls.__pydantic_validator__.validate_json(payload)
        except ValidationError as problem:
            raise bad_request(problem) from None

    @classmethod
    def of(cls, **values: Any) -> Self:
        """Build a message from values that a user gave.

        Raises:
            BadRequest: a value does not fit; says which field and why.
        """
        try:
            return cls(**values)
        except ValidationError as problem:
            raise bad_request(problem) from None


class Request(Message):
    """A message that asks for something; its id is repeated by every consequence."""

    request_id: str = Field(default_factory=new_request_id, max_length=64)


class Ok(Message):
    """The answer that says only: done."""


class Failure(Message):
    """An error on the wire."""

    code: str
    message: str
    fields: dict[str, Any] = Field(default_factory=dict)

    @classmethod
    def from_error(cls, error: SandfleetError) -> Failure:
        """Return the wire form of `error`."""
        return cls(code=error.code, message=error.message, fields=error.fields)

    def to_error(self) -> SandfleetError:
        """Return the exception this failure stands for."""
        return from_code(self.code, self.message, self.fields)


def bad_request(problem: ValidationError) -> BadRequest:
    """Turn pydantic's report into one sentence that names the first field and the reason."""
    first = problem.errors(include_url=False, include_input=False)[0]
    where = _where(first["loc"])
    reason = first["msg"].removeprefix("Value error, ")
    more = f" (and {problem.error_count() - 1} more)" if problem.error_count() > 1 else ""
    sentence = f"{reason[0].lower()}{reason[1:]}{more}"
    if where == "message" and first["type"] == "value_error":  # our own words, of the whole
        return BadRequest(sentence, field=where)
    return BadRequest(f"{where}: {sentence}", field=where)


def _where(path: Sequence[str | int]) -> str:
    """Return where in a message: `limits.wall_seconds`, `fetch.0`, `files['../x']`."""
    parts = [str(part) for part in path if part != "[key]"]
    dotted = [f".{p}" if p.isidentifier() or p.isdigit() else f"[{p[:80]!r}]" for p in parts]
    return "".join(dotted).removeprefix(".") or "message"
