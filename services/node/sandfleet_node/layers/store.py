"""What a store of layers and records does, whatever it is made of.

A reader never sees half a layer or record. A layer never changes; a record may be replaced.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from sandfleet_common.errors import NotFound
from sandfleet_common.messages import Layer, LayerKind

Part = Literal["meta", "data"]
Notes = dict[str, str]
Progress = Callable[[int, int], None]
"""Told the bytes done, and all of them."""

KINDS = ("environments", "snapshots", "keys", "prefetch", "leases")
"""Of records."""
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}(/[A-Za-z0-9][A-Za-z0-9._-]{0,127})?")
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class LayerFiles:
    """A layer's two files, to be mounted where they lie."""

    meta: Path
    data: Path


@dataclass(frozen=True, slots=True)
class StoredLayer:
    """A layer in a list."""

    digest: str
    size_bytes: int
    stored_at: float
    """Seconds since 1970."""


class Store(Protocol):
    """Layers by digest, and small records by kind and name.

    Everything that talks to a network raises Unreachable when it does not answer in time.
    """

    async def record(self, kind: str, name: str) -> bytes | None:
        """Return a record; None when there is none."""
        ...

    async def put_record(self, kind: str, name: str, data: bytes, *, new: bool = False) -> bool:
        """Write a record whole; with `new` only if there is none, else return False."""
        ...

    async def remove_record(self, kind: str, name: str) -> None:
        """Remove a record; none is no error."""
        ...

    async def names(self, kind: str, prefix: str = "") -> list[str]:
        """Return the names of all records of a kind that begin with `prefix`, sorted."""
        ...

    def files(self, digest: str) -> LayerFiles | None:
        """Return a layer's files if they can be mounted where they lie. Never waits."""
        ...

    async def layer(self, digest: str) -> Layer:
        """Return what is known of a layer; NotFound when it is not in the store."""
        ...

    async def index(self, digest: str) -> bytes:
        """Return a layer's index, which fits its digest; NotFound, Broken."""
        ...

    async def read(self, digest: str, part: Part, offset: int, length: int) -> bytes:
        """Return bytes of a layer's meta or data, not verified, fewer at its end; NotFound."""
        ...

    async def add(
        self,
        folder: Path,
        kind: LayerKind,
        *,
        created_at: float,
        description: str = "",
        notes: Notes | None = None,
        progress: Progress | None = None,
    ) -> Layer:
        """Take a folder with `meta` and `data` into the store; the same bytes are one layer."""
        ...

    async def layers(self) -> list[StoredLayer]:
        """Return all layers."""
        ...

    async def remove_layer(self, digest: str) -> None:
        """Remove a layer; none is no error."""
        ...

    async def sweep(self, older_than_seconds: float) -> None:
        """Remove what writers that died have left, and that nobody can see."""
        ...


def check_kind(kind: str) -> str:
    """Return the kind, if records have it.

    Raises:
        ValueError: they have not: a mistake of ours.
    """
    if kind not in KINDS:
        raise ValueError(f"there are no records of kind {kind!r}")
    return kind


def check_name(name: str) -> str:
    """Return the name, if it is safe as a path of at most one folder and a file.

    Raises:
        NotFound: it is not, so there can be no such record.
    """
    if _NAME.fullmatch(name) is None:
        raise NotFound(f"{name[:80]!r} cannot be the name of a record")
    return name


def hex_of(digest: str) -> str:
    """Return the 64 digits of a digest.

    Raises:
        NotFound: it is not a digest, so there can be no such layer.
    """
    match = _DIGEST.fullmatch(digest)
    if match is None:
        raise NotFound(f"{digest[:80]!r} is not a digest (sha256:<64 hexadecimal digits>)")
    return match.group(1)
