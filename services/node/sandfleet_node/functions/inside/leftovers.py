"""What a call may leave behind, and how it is noticed."""

from __future__ import annotations

import os
import stat

PLACES_MAX = 256
_DEPTH_MAX = 64
_TABLES = ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem")
_APART = ("/dev/shm", "/dev/mqueue")
"""Mounted, and found by no walk that stays on the root's file system."""


class Places:
    """All directories and files that everybody may write to, as they were at first."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple] = {}
        self._names: dict[str, list] = {}
        device = os.stat("/").st_dev
        for path in ["/"] + [p for p in _APART if os.path.isdir(p)]:  # noqa: PTH112
            self._walk(path, device)
        self._tables = [_read(path) for path in _TABLES]

    def __len__(self) -> int:
        return len(self._seen)

    def found(self) -> str:
        """Return what is there that was not, or an empty text."""
        for path, before in self._seen.items():
            now = _look(path)
            if now == before:
                continue
            if path not in self._names or now is None or now[:2] != before[:2]:
                return path + " was changed"
            names = sorted(os.listdir(path))  # noqa: PTH208
            if names != self._names[path]:
                return "files were left in " + path
            self._seen[path] = now
        for path, before in zip(_TABLES, self._tables):  # noqa: B905 - Python 3.8 has no strict
            if _read(path) != before:
                return "it left something in " + path
        return ""

    def _walk(self, top: str, device: int) -> None:
        waiting = [top]
        while waiting:
            path = waiting.pop()
            try:
                entries = list(os.scandir(path))
                about = os.stat(path)
            except OSError:
                continue
            if about.st_mode & stat.S_IWOTH and len(self._seen) <= PLACES_MAX:
                self._seen[path] = (about.st_ino, about.st_mode, about.st_mtime_ns)
                self._names[path] = sorted(entry.name for entry in entries)
            for entry in entries:
                self._enter(entry, device, waiting)

    def _enter(self, entry: os.DirEntry, device: int, waiting: list) -> None:
        try:
            if entry.is_dir(follow_symlinks=False):
                if entry.stat(follow_symlinks=False).st_dev == device:
                    waiting.append(entry.path)
            elif entry.is_file(follow_symlinks=False):
                about = entry.stat(follow_symlinks=False)
                if about.st_mode & stat.S_IWOTH and len(self._seen) <= PLACES_MAX:
                    self._seen[entry.path] = (about.st_ino, about.st_mode, about.st_mtime_ns)
        except OSError:
            return


def _look(path: str) -> tuple | None:
    try:
        about = os.stat(path, follow_symlinks=False)
    except OSError:
        return None
    return (about.st_ino, about.st_mode, about.st_mtime_ns)


def _read(path: str) -> bytes:
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(fd, 65536)
    finally:
        os.close(fd)


def remove(path: str) -> bool:
    """Remove a call's directory; return False if it is nested deeper than anybody needs."""
    try:
        _empty(os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC), 0)
        os.rmdir(path)  # noqa: PTH106
    except OSError:
        return False
    return True


def _empty(handle: int, depth: int) -> None:
    """Remove all in a directory, and close it. Nobody else can get at it by now."""
    try:
        with os.scandir(handle) as entries:
            names = [(e.name, e.is_dir(follow_symlinks=False)) for e in entries]
        for name, is_dir in names:
            if not is_dir:
                os.unlink(name, dir_fd=handle)
                continue
            if depth >= _DEPTH_MAX:
                raise OSError("nested too deeply")
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            _empty(os.open(name, flags, dir_fd=handle), depth + 1)
            os.rmdir(name, dir_fd=handle)
    finally:
        os.close(handle)


def fetch(top: str, name: str, room: int) -> bytes | None:
    """Return a file of a call's directory; None if it is none, or longer than `room`.

    No symbolic link is followed on the way.
    """
    handles = []
    try:
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
        handles.append(os.open(top, flags | os.O_DIRECTORY))
        parts = name.split("/")
        for part in parts[:-1]:
            handles.append(os.open(part, flags | os.O_DIRECTORY, dir_fd=handles[-1]))
        handles.append(os.open(parts[-1], flags, dir_fd=handles[-1]))
        about = os.fstat(handles[-1])
        if not stat.S_ISREG(about.st_mode) or about.st_size > room:
            return None
        return _read_all(handles[-1], room)
    except OSError:
        return None
    finally:
        for handle in handles:
            os.close(handle)


def _read_all(fd: int, room: int) -> bytes | None:
    parts = []
    while True:
        data = os.read(fd, min(65536, room + 1))
        if not data:
            return b"".join(parts)
        room -= len(data)
        if room < 0:
            return None
        parts.append(data)
