"""Names and versions of environments."""

from __future__ import annotations

import re

_NAME = re.compile(r"([a-z0-9][a-z0-9._-]{0,62})(?::([0-9]{1,9}(?:\.[0-9]{1,9}){0,3}))?")


def parse_reference(text: str) -> tuple[str, str | None] | None:
    """Split `name` or `name:version`; None when it is neither."""
    match = _NAME.fullmatch(text)
    return None if match is None else (match.group(1), match.group(2))


def version_key(version: str) -> tuple[int, ...]:
    """Return what versions sort by: 12.9 comes before 12.10."""
    return tuple(int(part) for part in version.split("."))


def next_version(version: str | None) -> str:
    """Return the version after this one: its last number grows by one; the first is 1."""
    if version is None:
        return "1"
    *front, last = version.split(".")
    return ".".join((*front, str(int(last) + 1)))
