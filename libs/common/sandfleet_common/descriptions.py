"""Generated descriptions: messages as JSON schemas, and plain data as YAML text.

The YAML is block style. Every string that YAML could take for something else is
written as JSON writes it, which YAML reads the same.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, cast

from pydantic.json_schema import GenerateJsonSchema

_PLAIN = re.compile(r"[A-Za-z/$_][A-Za-z0-9/$_.{}() -]*[A-Za-z0-9/$_.})]|[A-Za-z/$]")
_BLOCK = re.compile(r"[!-~][ -~]*\n(?:(?:[!-~][ -~]*)?\n)*[!-~][ -~]*\n")
_WORDS = frozenset({"true", "false", "null", "yes", "no", "on", "off", "y", "n"})


class PlainSchemas(GenerateJsonSchema):
    """JSON schemas without a title for every field that only repeats its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        """Say no."""
        return False


def dump(value: Any) -> str:
    """Return `value`, of dicts, lists, strings, numbers, booleans and None, as YAML.

    Keys are short: YAML reads no simple key that is written with more than 1,024 characters.
    """
    return "\n".join(_lines(value, "")) + "\n"


def _lines(value: Any, indent: str) -> Iterator[str]:
    if isinstance(value, dict) and value:
        for key, inner in cast(dict[str, Any], value).items():
            yield from _entry(f"{indent}{_scalar(str(key))}:", inner, indent + "  ")
    elif isinstance(value, list) and value:
        for inner in cast(list[Any], value):
            yield from _item(inner, indent)
    else:
        yield indent + _scalar(value)


def _entry(head: str, inner: Any, indent: str) -> Iterator[str]:
    if isinstance(inner, (dict, list)) and inner:
        yield head
        yield from _lines(inner, indent)
    elif isinstance(inner, str) and _BLOCK.fullmatch(inner):
        yield f"{head} |"
        yield from (indent + line if line else "" for line in inner[:-1].split("\n"))
    else:
        yield f"{head} {_scalar(inner)}"


def _item(inner: Any, indent: str) -> Iterator[str]:
    lines = _lines(inner, indent + "  ")
    yield f"{indent}- {next(lines).lstrip()}"
    yield from lines


def _scalar(value: Any) -> str:
    is_plain = isinstance(value, str) and _PLAIN.fullmatch(value) and value.lower() not in _WORDS
    if is_plain:
        return cast(str, value)
    text = json.dumps(value)
    # YAML 1.1 takes 1e-07 for text.
    return text.replace("e", ".0e") if isinstance(value, float) and "." not in text else text
