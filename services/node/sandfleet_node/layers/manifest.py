"""What is written beside a layer's image, and what an environment is."""

from __future__ import annotations

import re
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

Kind = Literal["base", "workspace", "toolkit", "snapshot"]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
Version = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9}){0,3}$")]


class Manifest(BaseModel):
    """One layer: an EROFS image, named by the sha256 of its bytes."""

    model_config = ConfigDict(frozen=True)

    digest: Digest
    kind: Kind
    size_bytes: int = Field(ge=0)
    created_at: float
    """Seconds since 1970."""
    description: str = ""
    notes: dict[str, str] = Field(default_factory=dict[str, str])
    """What to know before stacking something on it: distribution, libc, python."""


class Environment(BaseModel):
    """A named, versioned stack of layers, and what a command in it starts with."""

    model_config = ConfigDict(frozen=True)

    name: Name
    version: Version
    layers: Annotated[tuple[Digest, ...], Field(min_length=1, max_length=64)]
    """Top first."""
    env: dict[str, str] = Field(default_factory=dict[str, str])
    user: str | None = None
    """Who runs commands that name nobody; None: root."""
    workdir: str | None = None
    """Where commands start that name no directory; None: the user's home."""
    created_at: float = 0.0
    """Seconds since 1970."""
    notes: dict[str, str] = Field(default_factory=dict[str, str])


_NAME = re.compile(r"([a-z0-9][a-z0-9._-]{0,62})(?::([0-9]{1,9}(?:\.[0-9]{1,9}){0,3}))?")


def parse_reference(text: str) -> tuple[str, str | None] | None:
    """Split `name` or `name:version`; None when it is neither."""
    match = _NAME.fullmatch(text)
    return None if match is None else (match.group(1), match.group(2))


def version_key(version: str) -> tuple[int, ...]:
    """Return what versions sort by: 12.9 comes before 12.10."""
    return tuple(int(part) for part in version.split("."))
