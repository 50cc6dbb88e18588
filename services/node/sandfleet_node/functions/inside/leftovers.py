"""What a call may leave behind, and how it is noticed."""

from __future__ import annotations

import os
import stat

PLACES_MAX = 256
_DEPTH_MAX = 64
_TABLES = ("/proc/sysvipc/shm", "/proc/sysvipc/msg", "/proc/sysvipc/sem")
_APART = ("/dev/shm", "/dev/mqueue")
"""Mounted, and found by no walk that stays on the root's file system."""


def find_places() -> list[str]:
    """Return all directories and files that everybody may write to; takes a while.

    Where there are more than anybody checks the list has one too many.
    """
    found: list[str] = []
    device = os.lstat("/").st_dev
    waiting = ["/"]
    while waiting:
        path = waiting.pop()
        _look_into(path, device, waiting, found)
    return found[: PLACES_MAX + 1]


def _look_into(path: str, device: int, waiting: list[str], found: list[str]) -> None:
    try:
        about = os.lstat(path)
        if about.st_dev != device:
            return
        if about.st_mode & stat.S_IWOTH:
            found.append(path)
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                elif _is_open_file(entry):
                    found.append(entry.path)
    except OSError:
        return


def _is_open_file(entry: os.DirEntry[str]) -> bool:
    if not entry.is_file(follow_symlinks=False):
        return False
    return bool(entry.stat(follow_symlinks=False).st_mode & stat.S_IWOTH)


class Places:
    """What everybody may write to, as it was before the first call."""

    def __init__(self, paths: list[str]) -> None:
        apart = [path for path in _APART if os.path.isdir(path)]  # noqa: PTH112
        self.is_complete = len(paths) <= PLACES_MAX
        self._seen = {path: _look(path) for path in paths[:PLACES_MAX] + apart}
        self._names: dict[str, list[str]] = {}
        for path, about in self._seen.items():
            if about is not None and stat.S_ISDIR(about[0]):
                self._names[path] = sorted(os.listdir(path))  # noqa: PTH208
        self._tables = [_read(path) for path in _TABLES]

    def found(self) -> str:
        """Return what is there that was not, or an empty text."""
        if not self.is_complete:
            return "more of the environment can be written by everybody than is checked"
        for path, before in self._seen.items():
            now = _look(path)
            if now == before:
                continue
            if path not in self._names or now is None or before is None or now[0] != before[0]:
                return path + " was changed"
            if sorted(os.listdir(path)) != self._names[path]:  # noqa: PTH208
                return "files were left in " + path
            self._seen[path] = now
        for index, path in enumerate(_TABLES):
            if _read(path) != self._tables[index]:
                return "it left something in " + path
        return ""


def _look(path: str) -> tuple[int, int] | None:
    """Return mode and time of change; None: it is not there.

    Not the inode: the kernel gives a directory of a layer another when it had forgotten it.
    """
    try:
        about = os.lstat(path)
    except OSError:
        return None
    return (about.st_mode, about.st_mtime_ns)


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
        os.rmdir(path)  # noqa: PTH106 - most calls leave it empty
        return True
    except OSError:
        pass
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
            names = [(entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries]
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
    handles: list[int] = []
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
    parts: list[bytes] = []
    while True:
        data = os.read(fd, min(65536, room + 1))
        if not data:
            return b"".join(parts)
        room -= len(data)
        if room < 0:
            return None
        parts.append(data)
