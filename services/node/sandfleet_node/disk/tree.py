"""Measuring what a directory tree takes, however hostile: deep, huge, changing, linked.

Nothing is followed out of the tree: every directory is opened below the one before it,
links are not followed, and the way up is checked. It ends early once it is over a limit.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

INODE_BYTES = 1024
"""What a file counts beside its blocks: inode, name, and what the file system keeps of them."""
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(slots=True)
class Size:
    """What a tree takes, as far as it was looked at."""

    bytes: int = 0
    """With INODE_BYTES for each file."""
    files: int = 0
    is_whole: bool = True
    """False: the tree changed while it was looked at, or it is over the limit."""
    _linked: set[int] = field(default_factory=set[int])

    def add(self, found: os.stat_result) -> None:
        """Count a file, one with several names once."""
        if found.st_nlink > 1 and not stat.S_ISDIR(found.st_mode):
            if found.st_ino in self._linked:
                return
            self._linked.add(found.st_ino)
        self.files += 1
        self.bytes += found.st_blocks * 512 + INODE_BYTES


def measure(path: str, limit_bytes: int) -> Size:
    """Return what a tree takes; of one that is over the limit, something over the limit.

    Raises:
        OSError: there is no such directory.
    """
    size = Size()
    here = os.open(path, _DIRECTORY)
    try:
        root = os.fstat(here)
        size.add(root)
        way = [(root.st_ino, _look(here, size, limit_bytes))]
        while way and size.bytes <= limit_bytes:
            _, below = way[-1]
            if below:
                deeper = _open(here, below.pop())
                if deeper is None:
                    size.is_whole = False
                    continue
                os.close(here)
                here = deeper
                way.append((os.fstat(here).st_ino, _look(here, size, limit_bytes)))
                continue
            way.pop()
            if not way:
                break
            above = os.open("..", _DIRECTORY, dir_fd=here)
            os.close(here)
            here = above
            if os.fstat(here).st_ino != way[-1][0]:
                size.is_whole = False  # moved away meanwhile: where we are now is not our way up
                break
    finally:
        os.close(here)
    size.is_whole &= size.bytes <= limit_bytes
    return size


def _open(above: int, name: str) -> int | None:
    try:
        return os.open(name, _DIRECTORY, dir_fd=above)
    except OSError:
        return None


def _look(directory: int, size: Size, limit_bytes: int) -> list[str]:
    """Count what is in a directory, and return the names of the directories in it."""
    below: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            try:
                size.add(entry.stat(follow_symlinks=False))
                if entry.is_dir(follow_symlinks=False):
                    below.append(entry.name)
            except OSError:
                size.is_whole = False
            if size.bytes > limit_bytes:
                break
    return below


def unlinked(pids: list[int], limit_bytes: int) -> int:
    """Return what files take that processes hold open and that have no name any more."""
    found: dict[tuple[int, int], int] = {}
    for pid in pids:
        try:
            for name in Path(f"/proc/{pid}/fd").iterdir():
                _hold(name, found)
        except OSError:
            continue  # it has ended
        if sum(found.values()) > limit_bytes:
            break
    return sum(found.values())


def _hold(descriptor: Path, found: dict[tuple[int, int], int]) -> None:
    try:
        held = descriptor.stat()
    except OSError:
        return
    if stat.S_ISREG(held.st_mode) and held.st_nlink == 0:
        found[held.st_dev, held.st_ino] = held.st_blocks * 512 + INODE_BYTES
