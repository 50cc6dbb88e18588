"""The peer's files: what the host's file system says, in the platform's words."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from pathlib import Path

from sandfleet_common import messages as m
from sandfleet_common.errors import Conflict, FileProblem


@contextlib.contextmanager
def told(path: str) -> Generator[None]:
    try:
        yield
    except FileExistsError as problem:
        raise Conflict(f"{path}: {problem.strerror}", path=path) from problem
    except OSError as problem:
        name = {2: "ENOENT", 20: "ENOTDIR", 21: "EISDIR"}.get(problem.errno or 0, "EIO")
        raise FileProblem(f"{path}: {problem.strerror}", errno=name, path=path) from problem


def entry(path: Path, shown: str, follow: bool = True) -> m.FileEntry:
    stat = path.stat() if follow else path.lstat()
    kind = m.FileType.DIRECTORY if path.is_dir() else m.FileType.FILE
    if path.is_symlink() and not follow:
        kind = m.FileType.SYMLINK
    return m.FileEntry(
        name=path.name,
        path=shown,
        type=kind,
        size=stat.st_size,
        mode=stat.st_mode & 0o7777,
        uid=stat.st_uid,
        gid=stat.st_gid,
        modified_at=stat.st_mtime,
    )
