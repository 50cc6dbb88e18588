"""Requests of a user turned into messages. Pure: text and values in, a message out.

On the bus a reader ignores fields it does not know, so that services of
neighbouring versions understand each other. A user's unknown field is a typo, and
is refused with the name it is nearest to.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, cast, get_args, get_origin
from urllib.parse import parse_qsl

from pydantic import ValidationError
from pydantic_core import from_json, to_json

from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import Message, bad_request

MessageT = TypeVar("MessageT", bound=Message)

Values = dict[str, Any]


def parse_object(body: bytes) -> Values:
    """Parse a JSON object; nothing stands for an empty one.

    Raises:
        BadRequest: it is something else.
    """
    if not body.strip():
        return {}
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as problem:
        raise BadRequest(f"the body is not JSON: {problem}") from None
    if not isinstance(value, dict):
        raise BadRequest("the body must be a JSON object")
    return cast(Values, value)


def build(kind: type[MessageT], fixed: Mapping[str, Any], given: Values) -> MessageT:
    """Return the message of `given` fields and those that stand in the path.

    Raises:
        BadRequest: a field is unknown, stands twice or does not fit; says which.
    """
    refuse_unknown(kind, given)
    for name, value in fixed.items():
        if given.get(name, value) != value:
            raise BadRequest(f"{name}: the path says {value!r}, the body says another", field=name)
    try:
        # Through JSON, for there bytes are base64, as they are for everybody else.
        return kind.__pydantic_validator__.validate_json(to_json({**given, **fixed}))
    except ValidationError as problem:
        raise bad_request(problem) from None
    except ValueError as problem:
        raise BadRequest(f"the body cannot be written as JSON: {problem}") from None


def build_from_query(
    kind: type[MessageT], fixed: Mapping[str, str], query: Sequence[tuple[str, str]]
) -> MessageT:
    """Return the message of query parameters: text as it is, numbers and `true` as they look.

    A parameter that is a table is one JSON object, or `name=value` any number of times.

    Raises:
        BadRequest: a parameter is unknown, stands twice or does not fit; says which.
    """
    refuse_unknown(kind, dict(query), "query parameter")
    values: Values = {}
    for name, text in query:
        if _is_table(kind, name):
            values.setdefault(name, {}).update(_table(name, text))
        elif name in values or name in fixed:
            raise BadRequest(f"{name}: given more than once", field=name)
        else:
            values[name] = text
    try:
        return kind.__pydantic_validator__.validate_strings(cast(Any, {**values, **fixed}))
    except ValidationError as problem:
        raise bad_request(problem) from None


def parse_query(raw: bytes) -> list[tuple[str, str]]:
    """Split a query string.

    Raises:
        BadRequest: it is not UTF-8, or has too many parts.
    """
    try:
        return parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=200
        )
    except ValueError:
        raise BadRequest("the query is not UTF-8 text in percent encoding") from None


def refuse_unknown(kind: type[Message], given: Mapping[str, Any], what: str = "field") -> None:
    """Raise when `given` holds a name, at any depth, that `kind` does not have.

    Raises:
        BadRequest: names it, and the nearest known one.
    """
    for where, known in _unknown(kind, given, ()):
        path = ".".join(where)
        close = get_close_matches(where[-1].lower(), known, n=1, cutoff=0.6)
        hint = f"did you mean {close[0]!r}?" if close else f"there are: {', '.join(known)}"
        raise BadRequest(f"{path[:200]}: there is no such {what}; {hint}", field=path[:200])


def _unknown(
    kind: type[Message], given: Mapping[str, Any], above: tuple[str, ...]
) -> Iterable[tuple[tuple[str, ...], list[str]]]:
    fields = kind.model_fields
    for name, value in given.items():
        if name not in fields:
            yield (*above, name), list(fields)
        elif isinstance(value, dict) and (inner := _message_in(fields[name].annotation)):
            yield from _unknown(inner, cast(Values, value), (*above, name))


def _message_in(annotation: Any) -> type[Message] | None:
    """Return the kind of message that a field holds, itself or as an alternative to None."""
    if isinstance(annotation, type) and issubclass(annotation, Message):
        return annotation
    if get_origin(annotation) in (Union, UnionType, Annotated):
        for part in get_args(annotation):
            if found := _message_in(part):
                return found
    return None


def _is_table(kind: type[Message], name: str) -> bool:
    return get_origin(kind.model_fields[name].annotation) is dict


def _table(name: str, text: str) -> Values:
    if text.startswith("{"):
        try:
            table = parse_object(text.encode())
        except (BadRequest, UnicodeEncodeError):
            raise BadRequest(f"{name}: not a JSON object", field=name) from None
        return {key: str(value) for key, value in table.items()}
    key, found, value = text.partition("=")
    if not found:
        raise BadRequest(f"{name}: write {name}=key%3Dvalue, or a JSON object", field=name)
    return {key: value}
