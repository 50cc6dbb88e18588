"""Merging consecutive layers into one that looks the same, also from the layers below it.

Fewer layers are faster to stack and to look names up in. What upper layers hid of those that are
merged is left out; whiteouts and opaque directories stay, for they hide what lies below. The
rules are those of overlayfs, and a test compares the two.

The merged tree is written out, so this takes the room and time of copying: it is for small layers,
beside requests.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from sandfleet_common.errors import Broken, Conflict
from sandfleet_node.disk.mounts import open_mount

from .store import LayerFiles

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_OPAQUE = "trusted.overlay.opaque"
_OVERLAY = "trusted.overlay."
_UNKNOWN = ("trusted.overlay.redirect", "trusted.overlay.metacopy")
"""They speak of names in other layers; sandboxes' overlays are mounted without."""
_PIECE_BYTES = 256 * 1024
_ZEROS = memoryview(bytes(_PIECE_BYTES))


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a merged tree may have at most; what lies in layers was written by anybody."""

    files: int = 2_000_000
    size_bytes: int = 64 * 1024**3
    """Sum of the lengths of its files, holes included."""


@dataclass(slots=True)
class _Place:
    """A directory of the merged tree, and the layers that it has something of."""

    path: bytes
    """Relative to the root; `.` for the root itself."""
    layers: tuple[int, ...]
    """Top first."""
    is_opaque: bool
    """What is below the merged layers does not show in it."""


@dataclass(slots=True)
class _Entry:
    """A name in a directory, as the layers that matter have it."""

    top: int
    """The layer whose object is seen."""
    info: os.stat_result
    layers: list[int] = field(default_factory=list[int])
    """Of a directory: those that have something of it, top first."""
    is_opaque: bool = False
    is_decided: bool = False
    """Layers further down do not matter."""


def merge(layers: Sequence[LayerFiles], tree: Path, bounds: Bounds | None = None) -> None:
    """Write the tree that layers show together into a new directory. Blocks; needs root.

    Args:
        layers: consecutive ones, top first.
        tree: does not exist yet.
        bounds: of the tree.

    Raises:
        Conflict: the tree has more than it may, or an attribute that cannot be merged.
        OSError: a layer cannot be mounted or read, or the disk is full.
    """
    tree.mkdir(mode=0o700)
    with ExitStack() as opened:
        roots = [open_layer(layer) for layer in layers]
        for root in roots:
            opened.callback(os.close, root)
        target = os.open(tree, _DIRECTORY)
        opened.callback(os.close, target)
        Merging(roots, target, bounds or Bounds()).run()


def open_layer(layer: LayerFiles) -> int:
    """Mount a layer nowhere, and return the descriptor of its root that holds the mount.

    Raises:
        OSError: it is no layer, or the kernel cannot mount files (before Linux 6.12).
    """
    try:
        return open_mount("erofs", str(layer.meta), {"device": str(layer.data)})
    except OSError as problem:
        if problem.errno == errno.ENOTBLK:
            raise OSError(errno.ENOTSUP, "merging layers needs Linux 6.12") from None
        raise


class Merging:
    """Goes once through the layers, directory by directory."""

    def __init__(self, roots: Sequence[int], target: int, bounds: Bounds) -> None:
        """Prepare.

        Args:
            roots: descriptors of the layers' roots, top first; nobody changes them.
            target: descriptor of an empty directory; nobody else changes it.
            bounds: of the merged tree.
        """
        self._roots = roots
        self._target = target
        self._files_left = bounds.files
        self._bytes_left = bounds.size_bytes
        self._links: dict[tuple[int, int], bytes] = {}
        """Where the first name of a file with several was made: by layer and inode."""

    def run(self) -> None:
        """Write the merged tree.

        Raises:
            Conflict: it has more than it may, or an attribute that cannot be merged.
            OSError: a layer cannot be read, or the disk is full.
        """
        top = _Entry(0, os.fstat(self._roots[0]))
        for layer, root in enumerate(self._roots):
            _see(top, layer, os.fstat(root), self._opacity(layer, b"."))
        places = [_Place(b".", tuple(top.layers), top.is_opaque)]
        finished: list[_Place] = []
        while places:
            place = places.pop()
            finished.append(place)
            places += self._fill(place)
        # Last and from below: what is made in a directory needs it writable.
        for place in reversed(finished):
            self._finish(place)

    def _fill(self, place: _Place) -> list[_Place]:
        """Make what is in a directory, and return the directories in it."""
        found: list[_Place] = []
        for name, entry in sorted(self._entries(place).items()):
            path = name if place.path == b"." else place.path + b"/" + name
            self._files_left -= 1
            if self._files_left < 0:
                raise Conflict("the merged layers have too many files")
            if stat.S_ISDIR(entry.info.st_mode):
                os.mkdir(path, 0o700, dir_fd=self._target)
                found.append(_Place(path, tuple(entry.layers), entry.is_opaque))
            elif not (place.is_opaque and _is_whiteout(entry.info)):  # it would hide nothing
                self._make(path, entry)
        return found

    def _entries(self, place: _Place) -> dict[bytes, _Entry]:
        entries: dict[bytes, _Entry] = {}
        for layer in place.layers:
            folder = os.open(place.path, _DIRECTORY, dir_fd=self._roots[layer])
            try:
                for name in _names(folder):
                    info = os.stat(name, dir_fd=folder, follow_symlinks=False)
                    entry = entries.get(name)
                    if entry is None:
                        entry = entries[name] = _Entry(layer, info)
                    if not entry.is_decided:
                        is_opaque = stat.S_ISDIR(info.st_mode) and self._opacity(
                            layer, _joined(place.path, name)
                        )
                        _see(entry, layer, info, is_opaque)
            finally:
                os.close(folder)
        return entries

    def _opacity(self, layer: int, path: bytes) -> bool:
        try:
            value = os.getxattr(self._at(layer, path), _OPAQUE, follow_symlinks=False)
        except OSError as problem:
            if problem.errno in (errno.ENODATA, errno.ENOTSUP):
                return False
            raise
        if value not in (b"y", b"n"):
            raise Conflict("a layer has whiteouts of a kind that cannot be merged")
        return value == b"y"

    # ---------------------------------------------------------------- making

    def _make(self, path: bytes, entry: _Entry) -> None:
        """Make what is no directory."""
        key = (entry.top, entry.info.st_ino)
        if entry.info.st_nlink > 1:
            first = self._links.setdefault(key, path)
            if first is not path:
                os.link(
                    first, path, src_dir_fd=self._target, dst_dir_fd=self._target,
                    follow_symlinks=False,
                )  # fmt: skip
                return
        mode = entry.info.st_mode
        if stat.S_ISREG(mode):
            self._copy(path, entry)
        elif stat.S_ISLNK(mode):
            text = os.readlink(path, dir_fd=self._roots[entry.top])
            os.symlink(text, path, dir_fd=self._target)
        else:
            os.mknod(path, mode, entry.info.st_rdev, dir_fd=self._target)
        self._dress(path, entry.top, entry.info, is_opaque=False)

    def _copy(self, path: bytes, entry: _Entry) -> None:
        size = entry.info.st_size
        self._bytes_left -= size
        if self._bytes_left < 0:
            raise Conflict("the merged layers have files that are too long together")
        source = os.open(
            path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=self._roots[entry.top]
        )
        try:
            made = os.open(
                path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600,
                dir_fd=self._target,
            )  # fmt: skip
            try:
                os.ftruncate(made, size)
                _copy_data(source, made, size)
            finally:
                os.close(made)
        finally:
            os.close(source)

    def _finish(self, place: _Place) -> None:
        top = place.layers[0]
        info = os.stat(place.path, dir_fd=self._roots[top], follow_symlinks=False)
        self._dress(place.path, top, info, is_opaque=place.is_opaque)

    def _dress(self, path: bytes, layer: int, info: os.stat_result, *, is_opaque: bool) -> None:
        """Give an object owner, attributes and mode: in this order, for one clears the next."""
        os.chown(path, info.st_uid, info.st_gid, dir_fd=self._target, follow_symlinks=False)
        if not stat.S_ISLNK(info.st_mode):
            os.chmod(path, stat.S_IMODE(info.st_mode), dir_fd=self._target)
        source = self._at(layer, path)
        made = b"/proc/self/fd/%d/%s" % (self._target, path)
        for name in _attributes(source):
            if name in _UNKNOWN:
                raise Conflict(f"a layer has attributes that cannot be merged: {name}")
            if not name.startswith(_OVERLAY):
                value = os.getxattr(source, name, follow_symlinks=False)
                os.setxattr(made, name, value, follow_symlinks=False)
        if is_opaque:
            os.setxattr(made, _OPAQUE, b"y", follow_symlinks=False)
        times = (info.st_mtime_ns, info.st_mtime_ns)
        os.utime(path, ns=times, dir_fd=self._target, follow_symlinks=False)

    def _at(self, layer: int, path: bytes) -> bytes:
        return b"/proc/self/fd/%d/%s" % (self._roots[layer], path)


def _see(entry: _Entry, layer: int, info: os.stat_result, is_opaque: bool) -> None:
    """Take in what one more layer, further down, has under a name."""
    is_directory = stat.S_ISDIR(info.st_mode)
    if not stat.S_ISDIR(entry.info.st_mode):
        entry.is_decided = True
    elif not is_directory:
        # A file or whiteout between the directory and what lies below: that does not show.
        entry.is_opaque = entry.is_decided = True
    else:
        entry.layers.append(layer)
        entry.is_opaque = entry.is_decided = is_opaque


def _is_whiteout(info: os.stat_result) -> bool:
    return stat.S_ISCHR(info.st_mode) and info.st_rdev == 0


def _names(folder: int) -> list[bytes]:
    return [os.fsencode(name) for name in os.listdir(folder)]


def _joined(path: bytes, name: bytes) -> bytes:
    return name if path == b"." else path + b"/" + name


def _attributes(path: bytes) -> list[str]:
    try:
        return os.listxattr(path, follow_symlinks=False)
    except OSError as problem:
        if problem.errno == errno.ENOTSUP:
            return []
        raise


def _copy_data(source: int, made: int, size: int) -> None:
    """Copy what is in a file, and leave out what is zero: layers know no holes."""
    piece = memoryview(bytearray(_PIECE_BYTES))
    at = 0
    while at < size:
        got = os.preadv(source, [piece], at)
        if not got:
            raise Broken("a layer's file is shorter than it says")
        part = piece[:got]
        if part != _ZEROS[:got]:
            _write(made, part, at)
        at += got


def _write(made: int, part: memoryview, at: int) -> None:
    while part:
        written = os.pwrite(made, part, at)
        part = part[written:]
        at += written
