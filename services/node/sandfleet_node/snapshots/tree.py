"""A staged tree made fit to be a layer: nothing of the host in it, no devices, no secrets.

A sandbox chose every name and every byte of the tree, but can no longer change it. All the
same nothing is followed: each directory is opened below the one before it, and every name
is used with the descriptor of its directory.
"""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field

from sandfleet_common.errors import Conflict, NotFound
from sandfleet_node.programs import Stopped

from .ids import Ids
from .rules import Rules

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_PATH_MAX = 3800
"""Programs that pack open files by their whole path, which the kernel bounds at 4096."""
OPAQUE = "trusted.overlay.opaque"
_ORIGIN = "trusted.overlay.origin"
_KEPT_EXACTLY = frozenset({OPAQUE, "trusted.overlay.whiteout", "security.capability"})
_KEPT_BELOW = ("user.", "system.posix_acl_")
_OCI, _OCI_SELF, _OCI_OPAQUE = b".wh.", b".wh..wh.", b".wh..wh..opq"
_MOUNT_POINTS = (b"proc", b"dev", b"sys")
_HOSTS = b"127.0.0.1\tlocalhost\n::1\tlocalhost\n"
SCRUBBED_TOLD = 100


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a tree may be at most."""

    apparent_bytes: int
    """All its files together, holes included: whoever packs it reads them."""
    files: int


@dataclass(slots=True)
class Cleaned:
    """What a tree is made of, and what was taken out of it."""

    apparent_bytes: int = 0
    disk_bytes: int = 0
    files: int = 0
    scrubbed: list[str] = field(default_factory=list[str])
    """The first hundred paths."""
    _linked: set[int] = field(default_factory=set[int])

    def count(self, found: os.stat_result, bounds: Bounds) -> None:
        """Count a file, one with several names once.

        Raises:
            Conflict: the tree is over its bounds.
        """
        self.files += 1
        if self.files > bounds.files:
            raise Conflict(f"it has more than {bounds.files} files, and no more can be packed")
        if not stat.S_ISREG(found.st_mode):
            return
        if found.st_nlink > 1:
            if found.st_ino in self._linked:
                return
            self._linked.add(found.st_ino)
        self.apparent_bytes += found.st_size
        self.disk_bytes += found.st_blocks * 512
        if self.apparent_bytes > bounds.apparent_bytes:
            raise Conflict(
                "its files are too long to be packed: holes included they may have "
                f"{bounds.apparent_bytes >> 20} MiB together"
            )

    def note(self, path: bytes) -> None:
        """Tell that a path was left out by rule."""
        if len(self.scrubbed) < SCRUBBED_TOLD:
            self.scrubbed.append("/" + path.decode(errors="replace"))


@dataclass(slots=True)
class _Place:
    """A directory that is being gone through."""

    fd: int
    path: bytes
    names: list[bytes]
    is_doomed: bool
    """What is in it matches a rule as a whole."""
    is_matched: bool = False
    """It is what the rule names, or below that: it goes, too, when it is empty."""


def open_root(upper: int, root: str) -> int:
    """Return a descriptor of the directory `root` of a sandbox, below its writable layer.

    Raises:
        NotFound: the sandbox has made no such directory.
        Conflict: part of it is in the layers below, or it is reached through a link.
    """
    parts = [part for part in os.fsencode(root).split(b"/") if part not in (b"", b".")]
    here = os.dup(upper)
    try:
        for part in parts:
            below = _step(here, part, root)
            os.close(here)
            here = below
        if parts and _ORIGIN in os.listxattr(here) and OPAQUE not in os.listxattr(here):
            raise Conflict(f"{root} was there before the sandbox: only what it made can be packed")
    except BaseException:
        os.close(here)
        raise
    return here


def _step(here: int, part: bytes, root: str) -> int:
    if part == b"..":
        raise Conflict(f"{root} has .. in it: name the directory itself")
    try:
        return os.open(part, _DIRECTORY, dir_fd=here)
    except FileNotFoundError:
        raise NotFound(f"the sandbox has made no directory {root}") from None
    except OSError:
        raise Conflict(f"{root} is no directory, or leads through a link") from None


class Cleaning:
    """Goes once through a tree, and changes it."""

    def __init__(
        self,
        rules: Rules,
        bounds: Bounds,
        owner: int,
        *,
        oci: bool,
        is_stopping: Callable[[], bool],
        shift: bool = False,
    ) -> None:
        """Prepare.

        Args:
            rules: whose matches are taken out.
            bounds: of the tree.
            owner: id that the sandbox's root has in the tree.
            oci: whether files named `.wh.*` stand for what is missing.
            is_stopping: looked at for every directory.
            shift: give every file the ids that it has inside the sandbox.
        """
        self._rules = rules
        self._bounds = bounds
        self._owner = owner
        self._oci = oci
        self._is_stopping = is_stopping
        self._ids = Ids(owner) if shift else None
        self.cleaned = Cleaned()

    def run(self, root: int) -> Cleaned:
        """Clean a tree, given a descriptor of its root.

        Raises:
            Conflict: the tree is over its bounds.
            OSError: the disk failed.
        """
        way = [self._enter(os.dup(root), b"", is_doomed=False, is_matched=False)]
        try:
            while way:
                here = way[-1]
                if here.names:
                    deeper = self._take(here, here.names.pop())
                    if deeper is not None:
                        way.append(deeper)
                    continue
                way.pop()
                os.close(here.fd)
                if way and here.is_matched:
                    self._leave(way[-1], here)
        finally:
            for place in way:
                os.close(place.fd)
        return self.cleaned

    def _enter(self, fd: int, path: bytes, *, is_doomed: bool, is_matched: bool) -> _Place:
        try:
            if self._is_stopping():
                raise Stopped("stopping")
            if len(path) > _PATH_MAX:
                raise Conflict(f"a path of it has more than {_PATH_MAX} bytes: it lies too deep")
            _strip(b"/proc/self/fd/%d" % fd, follow=True)
            if self._ids is not None:
                self._ids.shift(b"/proc/self/fd/%d" % fd, os.fstat(fd), follow=True)
            names = [os.fsencode(name) for name in os.listdir(fd)]
            if self._oci:
                names = self._convert(fd, names)
        except BaseException:
            os.close(fd)
            raise
        return _Place(fd, path, names, is_doomed, is_matched)

    def _leave(self, above: _Place, gone: _Place) -> None:
        """Remove a directory that matched, unless it hides something below."""
        name = gone.path.rpartition(b"/")[2]
        inside = b"/proc/self/fd/%d/%s" % (above.fd, name)
        if OPAQUE in os.listxattr(inside, follow_symlinks=False):
            return
        with contextlib.suppress(OSError):  # what stands for something missing is left in it
            os.rmdir(name, dir_fd=above.fd)

    def _take(self, here: _Place, name: bytes) -> _Place | None:
        """Deal with one name; return the directory to go on with, if it is one."""
        path = here.path + b"/" + name if here.path else name
        found = os.lstat(name, dir_fd=here.fd)
        if is_whiteout(found):
            self._keep(here, name, found)
            return None
        is_matched = not here.is_doomed and self._rules.matches(path)
        if is_matched:
            self.cleaned.note(path)
        is_doomed = here.is_doomed or is_matched
        if stat.S_ISDIR(found.st_mode):
            self.cleaned.count(found, self._bounds)
            fd = os.open(name, _DIRECTORY, dir_fd=here.fd)
            return self._enter(fd, path, is_doomed=is_doomed, is_matched=is_doomed)
        if is_doomed or not _is_plain(found):
            os.unlink(name, dir_fd=here.fd)
            return None
        self._keep(here, name, found)
        return None

    def _keep(self, here: _Place, name: bytes, found: os.stat_result) -> None:
        path = b"/proc/self/fd/%d/%s" % (here.fd, name)
        self.cleaned.count(found, self._bounds)
        _strip(path, follow=False)
        if self._ids is not None:
            self._ids.shift(path, found, follow=False)

    def _convert(self, fd: int, names: list[bytes]) -> list[bytes]:
        """Make whiteouts of the files that stand for some; return what else is there."""
        others = [name for name in names if not name.startswith(_OCI)]
        present = set(others)
        for name in names:
            if not name.startswith(_OCI):
                continue
            if stat.S_ISDIR(os.lstat(name, dir_fd=fd).st_mode):
                raise Conflict("a directory is named .wh.*, which only files can be")
            os.unlink(name, dir_fd=fd)
            hidden = name.removeprefix(_OCI)
            if name == _OCI_OPAQUE:
                os.setxattr(fd, OPAQUE, b"y")
            elif name.startswith(_OCI_SELF) or hidden in (b"", b".", b".."):
                continue
            elif hidden not in present:
                os.mknod(hidden, stat.S_IFCHR, os.makedev(0, 0), dir_fd=fd)
                os.chown(hidden, self._owner, self._owner, dir_fd=fd, follow_symlinks=False)
            elif stat.S_ISDIR(os.lstat(hidden, dir_fd=fd).st_mode):
                os.setxattr(b"/proc/self/fd/%d/%s" % (fd, hidden), OPAQUE, b"y")
        return others


def is_whiteout(found: os.stat_result) -> bool:
    """Return whether a file stands for one that is missing."""
    return stat.S_ISCHR(found.st_mode) and found.st_rdev == 0


def _is_plain(found: os.stat_result) -> bool:
    """Return whether a file can be in a layer: no device, no socket."""
    return (
        stat.S_ISREG(found.st_mode) or stat.S_ISLNK(found.st_mode) or stat.S_ISFIFO(found.st_mode)
    )


def _strip(path: bytes, *, follow: bool) -> None:
    """Remove the attributes that say something about this host."""
    try:
        names = os.listxattr(path, follow_symlinks=follow)
    except OSError:
        return  # a file system without any
    for name in names:
        if name in _KEPT_EXACTLY or name.startswith(_KEPT_BELOW):
            continue
        with contextlib.suppress(OSError):  # a security module's own
            os.removexattr(path, name, follow_symlinks=follow)


def remove_own(root: int, hostname: str) -> None:
    """Remove what the launcher made when the sandbox started and nobody has changed since.

    The next sandbox gets its own. Best effort: what cannot be removed is content like all other.
    """
    for name in _MOUNT_POINTS:
        with contextlib.suppress(OSError):
            os.rmdir(name, dir_fd=root)
    try:
        etc = os.open(b"etc", _DIRECTORY, dir_fd=root)
    except OSError:
        _forget_start(root)
        return
    try:
        for name, text in (
            (b"hostname", hostname.encode()), (b"resolv.conf", b""), (b"hosts", _HOSTS),
        ):  # fmt: skip
            if _holds(etc, name, text):
                with contextlib.suppress(OSError):
                    os.unlink(name, dir_fd=etc)
        _forget_start(etc)
    finally:
        os.close(etc)
        _forget_start(root)


def _forget_start(directory: int) -> None:
    """Give a directory the time of the newest thing in it: its own says when a sandbox started."""
    newest = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            newest = max(newest, entry.stat(follow_symlinks=False).st_mtime_ns)
    os.utime(directory, ns=(newest, newest))


def _holds(directory: int, name: bytes, text: bytes) -> bool:
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        file = os.open(name, flags, dir_fd=directory)
    except OSError:
        return False
    try:
        found = os.fstat(file)
        is_ours = (
            stat.S_ISREG(found.st_mode) and found.st_size == len(text) and not os.listxattr(file)
        )
        return is_ours and os.pread(file, len(text) + 1, 0) == text
    except OSError:
        return False
    finally:
        os.close(file)
