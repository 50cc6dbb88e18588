"""A store that is a directory, local or on a file system that nodes share.

    blobs/sha256/<hex>/{meta,data,index,manifest.json}   a layer: appears whole, by a rename
    environments/<name>/<version>.json                   records, by kind; so are the others
    snapshots/ keys/ prefetch/ leases/
    locks/ tmp/ cache/                                   of those who write

A file appears whole or not at all, so readers need no lock. What may block for long (the file
system may be a network's) runs in threads, except `files`, which every mount asks.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import shutil
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from sandfleet_common.errors import Broken, NotFound
from sandfleet_common.ids import new_ulid
from sandfleet_common.messages import Layer, LayerKind

from .index import Index, index_of, parse
from .store import LayerFiles, Notes, Part, Progress, StoredLayer, check_kind, check_name, hex_of

ResultT = TypeVar("ResultT")
_FILES = ("meta", "data", "index", "manifest.json")
_READ_ONLY = 0o444
_TRIES = 20
"""To write into a folder that others remove when it is empty."""


class DirectoryStore:
    """Layers and records below one directory. It does not know who else uses it."""

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._blobs = self._root / "blobs" / "sha256"

    @property
    def root(self) -> Path:
        """Where the store lies."""
        return self._root

    def make(self) -> None:
        """Make the store's directories; blocks."""
        for path in (self._blobs, *(self._root / name for name in ("locks", "tmp"))):
            path.mkdir(parents=True, exist_ok=True, mode=0o755)

    # --------------------------------------------------------------- records

    def _record(self, kind: str, name: str) -> Path:
        return self._root / check_kind(kind) / f"{check_name(name)}.json"

    async def record(self, kind: str, name: str) -> bytes | None:
        """Return a record; None when there is none."""
        return await asyncio.to_thread(_content, self._record(kind, name))

    async def put_record(self, kind: str, name: str, data: bytes, *, new: bool = False) -> bool:
        """Write a record whole; with `new` only if there is none, else return False."""
        return await asyncio.to_thread(_write_whole, self._record(kind, name), data, new)

    async def remove_record(self, kind: str, name: str) -> None:
        """Remove a record; none is no error."""
        await asyncio.to_thread(_remove, self._record(kind, name), self._root / kind)

    async def names(self, kind: str, prefix: str = "") -> list[str]:
        """Return the names of all records of a kind that begin with `prefix`, sorted."""
        return await asyncio.to_thread(self._names, check_kind(kind), prefix)

    def _names(self, kind: str, prefix: str) -> list[str]:
        top, (folder, slash, _) = self._root / kind, prefix.partition("/")
        if slash:  # one folder of perhaps very many
            inside, _ = _inside(top / check_name(folder))
            found = [f"{folder}/{name}" for name in inside]
        else:
            found, folders = _inside(top)
            for folder in folders:
                if folder.startswith(prefix):
                    found += [f"{folder}/{name}" for name in _inside(top / folder)[0]]
        return sorted(name for name in found if name.startswith(prefix))

    # ---------------------------------------------------------------- layers

    def folder(self, digest: str) -> Path:
        """Return where a layer's files are, or would be."""
        return self._blobs / hex_of(digest)

    def files(self, digest: str) -> LayerFiles | None:
        """Return a layer's files, which can be mounted where they lie; None: it is not here."""
        folder = self.folder(digest)
        if not (folder / "manifest.json").is_file():
            return None
        return LayerFiles(folder / "meta", folder / "data")

    async def layer(self, digest: str) -> Layer:
        """Return what is known of a layer.

        Raises:
            NotFound: it is not in the store.
            Broken: its manifest is damaged.
        """
        content = await asyncio.to_thread(_content, self.folder(digest) / "manifest.json")
        if content is None:
            raise NotFound(f"layer {digest} is not in the store")
        try:
            return Layer.model_validate_json(content)
        except ValidationError:
            raise Broken(f"the manifest of layer {digest} is damaged") from None

    async def index(self, digest: str) -> bytes:
        """Return a layer's index, which fits its digest.

        Raises:
            NotFound: it is not in the store.
            Broken: it is damaged.
        """
        content = await asyncio.to_thread(_content, self.folder(digest) / "index")
        if content is None:
            raise NotFound(f"layer {digest} is not in the store")
        parse(content, digest)
        return content

    async def read(self, digest: str, part: Part, offset: int, length: int) -> bytes:
        """Return bytes of a layer's meta or data, fewer at its end.

        Raises:
            NotFound: it is not in the store.
        """
        return await asyncio.to_thread(_part, self.folder(digest) / part, offset, length)

    async def layers(self) -> list[StoredLayer]:
        """Return all layers."""
        return await asyncio.to_thread(self._layers)

    def _layers(self) -> list[StoredLayer]:
        found: list[StoredLayer] = []
        if not self._blobs.is_dir():
            return found
        for folder in self._blobs.iterdir():
            with contextlib.suppress(OSError):
                size = sum((folder / name).stat().st_size for name in _FILES)
                stored_at = (folder / "manifest.json").stat().st_mtime
                found.append(StoredLayer(f"sha256:{folder.name}", size, stored_at))
        return found

    async def sweep(self, older_than_seconds: float) -> None:
        """Remove what writers that died have left."""
        await asyncio.to_thread(self._sweep, time.time() - older_than_seconds)

    def _sweep(self, before: float) -> None:
        top = self._root / "tmp"
        for path in top.iterdir() if top.is_dir() else ():
            with contextlib.suppress(OSError):
                if _newest(path) >= before:
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path)
                else:
                    path.unlink()

    async def remove_layer(self, digest: str) -> None:
        """Remove a layer; it is gone at once, whole. None is no error."""
        await asyncio.to_thread(self._remove_layer, digest)

    def _remove_layer(self, digest: str) -> None:
        place = self.temporary("removed")
        with contextlib.suppress(FileNotFoundError):
            self.folder(digest).rename(place)
            shutil.rmtree(place)

    async def add(
        self,
        folder: Path,
        kind: LayerKind,
        *,
        created_at: float,
        description: str = "",
        notes: Notes | None = None,
        progress: Progress | None = None,
        is_durable: bool = True,
    ) -> Layer:
        """Take a folder with `meta` and `data` into the store (they are moved).

        The same bytes added twice, or by two at once, are one layer, with the manifest of the
        first time.

        Args:
            folder: on any file system; moving from another one copies.
            kind: of layer.
            created_at: seconds since 1970.
            description: for people.
            notes: what to know before stacking something on it.
            progress: told the bytes done and in all.
            is_durable: force it to disk; a layer that ends with the machine need not be.

        Raises:
            OSError: the disk is full or failed.
        """
        index = await asyncio.to_thread(index_of, folder / "meta", folder / "data")
        layer = Layer(
            digest=index.digest,
            kind=kind,
            size_bytes=index.size_bytes,
            meta_bytes=index.meta_bytes,
            created_at=created_at,
            description=description,
            notes=notes or {},
        )
        await asyncio.to_thread(self._take, folder, index, layer, is_durable)
        if progress is not None:
            progress(index.size_bytes, index.size_bytes)
        return await self.layer(layer.digest)

    def _take(self, folder: Path, index: Index, layer: Layer, is_durable: bool) -> None:
        target = self.folder(layer.digest)
        if self.files(layer.digest) is not None:
            with contextlib.suppress(OSError):
                os.utime(target / "manifest.json")  # for a collection it is young again
            for name in ("meta", "data"):
                (folder / name).unlink()
            return
        self.make()
        place = self.temporary("layer")
        place.mkdir()
        try:
            for name in ("meta", "data"):
                shutil.move(folder / name, place / name)
            (place / "index").write_bytes(index.encode())
            (place / "manifest.json").write_text(layer.model_dump_json(indent=2) + "\n")
            for name in _FILES:
                (place / name).chmod(_READ_ONLY)
                if is_durable:
                    _sync(place / name)
            _rename_folder(place, target)
            if is_durable:
                _sync(target.parent)
        finally:
            shutil.rmtree(place, ignore_errors=True)

    # --------------------------------------------------------------- writers

    def temporary(self, purpose: str) -> Path:
        """Return a path for something unfinished, on the store's file system."""
        return self._root / "tmp" / f"{purpose}-{new_ulid()}"

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


def _inside(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of the records in a folder, and those of the folders in it."""
    records: list[str] = []
    folders: list[str] = []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir():
                folders.append(entry.name)
            elif entry.name.endswith(".json"):
                records.append(entry.name.removesuffix(".json"))
    return records, folders


def _newest(path: Path) -> float:
    """Return when anything of a directory, or a file, last changed."""
    below = path.rglob("*") if path.is_dir() and not path.is_symlink() else ()
    return max(each.lstat().st_ctime for each in (path, *below))


def _content(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _part(path: Path, offset: int, length: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            return os.pread(file.fileno(), length, offset)
    except FileNotFoundError:
        raise NotFound(f"layer sha256:{path.parent.name} is not in the store") from None


def _write_whole(path: Path, data: bytes, new: bool) -> bool:
    beside = path.with_name(f".{path.name}.{new_ulid()}")
    try:
        _write_beside(beside, data)
        if new:
            try:
                os.link(beside, path)
            except FileExistsError:
                return False
        else:
            beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)
    with contextlib.suppress(FileNotFoundError):  # removed already, with its folder
        _sync(path.parent)
    return True


def _write_beside(beside: Path, data: bytes) -> None:
    """Write a file into its folder, which is made; one who removes it when empty may be faster."""
    for left in reversed(range(_TRIES)):
        try:
            beside.parent.mkdir(parents=True, exist_ok=True)
            beside.write_bytes(data)
        except (FileNotFoundError, FileExistsError):  # the second: gone while mkdir looked at it
            if left == 0:
                raise
        else:
            break
    _sync(beside)


def _remove(path: Path, top: Path) -> None:
    """Remove a record, and its folder when that is empty then: names come and go."""
    path.unlink(missing_ok=True)
    if path.parent != top:
        with contextlib.suppress(OSError):
            path.parent.rmdir()


def _rename_folder(place: Path, target: Path) -> None:
    """Give a folder its name, unless another was first."""
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        place.rename(target)
    except OSError as problem:
        if problem.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
