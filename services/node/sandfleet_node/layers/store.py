"""The store: a directory of layers and environments, local or shared by many nodes.

    blobs/sha256/<hex>.erofs           a layer's image
    blobs/sha256/<hex>.json            its manifest
    environments/<name>/<version>.json an environment
    locks/ tmp/ cache/                 of those who write

A file appears whole or not at all, and never changes afterwards, so that readers
need no lock. Only builders take one.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from sandfleet_common.errors import Conflict, NotFound
from sandfleet_common.ids import new_ulid

from .manifest import Environment, Kind, Manifest, parse_reference, version_key

SETTLED_SECONDS = 0.1
"""A directory that changed less than this ago may change again without its time changing."""

ModelT = TypeVar("ModelT", bound=BaseModel)


class LayerStore:
    """Layers and environments below one directory. Nothing here waits for another process."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._blobs = self._root / "blobs" / "sha256"
        self._environments = self._root / "environments"
        self._seen: dict[str, tuple[int, dict[str, Environment]]] = {}
        """Environments by name, as they were at a modification time of their directory."""

    @property
    def root(self) -> Path:
        """Where the store lies."""
        return self._root

    # ---------------------------------------------------------------- reading

    def environments(self) -> list[str]:
        """Return the names of all environments, sorted."""
        try:
            names = [folder.name for folder in self._environments.iterdir()]
        except FileNotFoundError:
            return []
        return sorted(name for name in names if self._versions(name))

    def resolve(self, name: str) -> Environment:
        """Return the newest version of an environment, or the one named as `name:version`.

        Raises:
            NotFound: there is none; the message says which there are.
        """
        reference = parse_reference(name)
        versions = self._versions(reference[0]) if reference else {}
        if not versions:
            known = ", ".join(self.environments()) or "none yet (build one)"
            raise NotFound(f"there is no environment {name[:80]!r}; there are: {known}")
        wanted = reference[1] if reference else None
        if wanted is None:
            return versions[max(versions, key=version_key)]
        if wanted not in versions:
            known = ", ".join(sorted(versions, key=version_key))
            raise NotFound(f"environment {name!r} has no such version; there are: {known}")
        return versions[wanted]

    def layer_path(self, digest: str) -> Path:
        """Return where a layer's image is.

        Raises:
            NotFound: it is not in the store.
        """
        path = self._blob(digest, "erofs")
        if not path.is_file():
            raise NotFound(f"layer {digest[:80]} is not in {self._root}")
        return path

    def manifest(self, digest: str) -> Manifest:
        """Return a layer's manifest.

        Raises:
            NotFound: the layer is not in the store.
        """
        found = _read(self._blob(digest, "json"), Manifest)
        if found is None:
            raise NotFound(f"layer {digest[:80]} is not in {self._root}")
        return found

    def _blob(self, digest: str, ending: str) -> Path:
        kind, _, name = digest.partition(":")
        if kind != "sha256" or len(name) != 64 or not set(name) <= set("0123456789abcdef"):
            raise NotFound(f"{digest[:80]!r} is not a digest (sha256:<64 hexadecimal digits>)")
        return self._blobs / f"{name}.{ending}"

    def _versions(self, name: str) -> dict[str, Environment]:
        folder = self._environments / name
        try:
            changed_ns = folder.stat().st_mtime_ns
        except (FileNotFoundError, NotADirectoryError):
            return {}
        seen = self._seen.get(name)
        if seen is not None and seen[0] == changed_ns:
            return seen[1]
        found: dict[str, Environment] = {}
        for path in folder.glob("*.json"):
            environment = _read(path, Environment)
            if environment is not None and environment.name == name:
                found[environment.version] = environment
        if time.time() - changed_ns / 1e9 > SETTLED_SECONDS:
            self._seen[name] = (changed_ns, found)
        return found

    # ---------------------------------------------------------------- writing

    def make(self) -> None:
        """Make the store's directories."""
        for path in (self._blobs, self._environments, *(self._root / n for n in ("locks", "tmp"))):
            path.mkdir(parents=True, exist_ok=True, mode=0o755)

    def temporary(self, purpose: str) -> Path:
        """Return a path for something unfinished, on the store's file system."""
        return self._root / "tmp" / f"{purpose}-{new_ulid()}"

    def add(
        self,
        image: Path,
        *,
        kind: Kind,
        created_at: float,
        description: str = "",
        notes: dict[str, str] | None = None,
    ) -> Manifest:
        """Take an image into the store (it is moved) and return its manifest.

        The same bytes added twice are one layer, with the manifest of the first time.
        """
        digest = f"sha256:{_hash(image)}"
        present = _read(self._blob(digest, "json"), Manifest)
        if present is not None and self._blob(digest, "erofs").exists():
            image.unlink()
            return present
        manifest = Manifest(
            digest=digest,
            kind=kind,
            size_bytes=image.stat().st_size,
            created_at=created_at,
            description=description,
            notes=notes or {},
        )
        image.chmod(0o444)
        _sync(image)
        image.replace(self._blob(digest, "erofs"))
        _write_whole(self._blob(digest, "json"), manifest)
        return manifest

    def publish(self, environment: Environment) -> None:
        """Make an environment known.

        Raises:
            NotFound: a layer of it is missing.
            Conflict: the version is taken.
        """
        for digest in environment.layers:
            self.layer_path(digest)
        folder = self._environments / environment.name
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{environment.version}.json"
        if path.exists():
            raise Conflict(f"environment {environment.name}:{environment.version} exists already")
        _write_whole(path, environment)

    @contextmanager
    def locked(self, name: str, on_wait: Callable[[], None]) -> Generator[None]:
        """Hold the builders' lock of one name; `on_wait` is called when another holds it."""
        self.make()
        with (self._root / "locks" / name).open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                on_wait()
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _read(path: Path, kind: type[ModelT]) -> ModelT | None:
    """Parse a file; None when it is absent or not what it should be."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None


def _write_whole(path: Path, model: BaseModel) -> None:
    beside = path.with_name(f".{path.name}.{new_ulid()}")
    beside.write_text(model.model_dump_json(indent=2) + "\n")
    _sync(beside)
    beside.replace(path)


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
