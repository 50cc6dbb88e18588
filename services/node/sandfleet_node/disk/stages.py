"""What a sandbox had written at one moment, held still so that it can be packed.

In a pool that is a snapshot of its subvolume, made at once and of no cost until either
changes. Elsewhere it is a copy, which shares blocks where the file system can.
"""

from __future__ import annotations

import ctypes
import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from sandfleet_node.programs import run

from .mounts import clone_mount
from .pool import Pool

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_libc = ctypes.CDLL(None, use_errno=True)


class Stage(Protocol):
    """A tree that no sandbox can reach any more. Its methods block; `upper` below it is the layer.

    All raise OSError when the disk or the pool below it fails.
    """

    def open(self) -> int:
        """Return a descriptor of its root, with ids as on disk."""
        ...

    def mount(self) -> int:
        """Return a descriptor that holds a mount of it which has no place."""
        ...

    def place(self) -> Path:
        """Return where the launcher sees its root."""
        ...

    def remove(self) -> None:
        """Remove it; once more is no error."""
        ...


@dataclass(frozen=True, slots=True)
class PoolStage:
    """A snapshot in the pool of the sandbox."""

    pool: Pool
    name: str
    subvolume: int

    def open(self) -> int:
        """Return a descriptor of its root."""
        return self.pool.open(self.name)

    def mount(self) -> int:
        """Return a descriptor that holds a mount of it."""
        return self.pool.mount(self.name)

    def place(self) -> Path:
        """Return where the launcher sees its root."""
        return self.pool.place / self.name

    def remove(self) -> None:
        """Remove it."""
        self.pool.remove(self.name, self.subvolume)


@dataclass(frozen=True, slots=True)
class CopyStage:
    """A copy in a directory of the node's."""

    folder: Path

    @classmethod
    def make(
        cls, upper: str, folder: Path, seconds: float, is_stopping: Callable[[], bool]
    ) -> CopyStage:
        """Copy a directory whose sandbox stands still.

        Raises:
            OSError: it has gone, the disk is full, or it took longer than so many seconds.
        """
        folder.mkdir(mode=0o755)  # seen with other ids nobody is its owner; above it is closed
        stage = cls(folder)
        source = os.open(upper, _DIRECTORY)
        argv = ["cp", "--archive", "--reflink=auto", "--sparse=auto", "--no-target-directory"]
        argv += [f"/proc/self/fd/{source}/.", str(folder / "upper")]
        try:
            status, said = run(argv, seconds, is_stopping, pass_fds=[source])
        except BaseException:
            stage.remove()
            raise
        finally:
            os.close(source)
        if status != 0:
            stage.remove()
            last = said.strip().splitlines()[-1:] or ["it said nothing"]
            raise OSError(0, f"copying failed: {last[0][-200:]}")
        return stage

    def open(self) -> int:
        """Return a descriptor of its root."""
        return os.open(self.folder, _DIRECTORY)

    def mount(self) -> int:
        """Return a descriptor that holds a mount of it."""
        root = self.open()
        try:
            return clone_mount(root)
        finally:
            os.close(root)

    def place(self) -> Path:
        """Return where its root is."""
        return self.folder

    def remove(self) -> None:
        """Remove it, however deep it is."""
        argv = ["rm", "-rf", "--one-file-system", "--", str(self.folder)]
        subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, check=False)


def flush(path_fd: int) -> None:
    """Have the file system of a descriptor write what waits to be written.

    Raises:
        OSError: a write failed.
    """
    if _libc.syncfs(path_fd) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
