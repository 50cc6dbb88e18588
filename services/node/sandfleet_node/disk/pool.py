"""One pool: a btrfs image of the node's own, in which each sandbox has a bounded subvolume.

The image is sparse and lies in the node's directory. Simple quotas (Linux 6.7) count every
extent for the subvolume that wrote it, and one group above all of them bounds what the
pool may take from the disk below it. Nothing in a pool outlives its sandboxes, so one
that is broken or left over is thrown away and made anew.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from . import btrfs, loop
from .mounts import attach_in, detach_in, open_mount

POOL_BYTES_MIN = 256 * 1024**2
NO_LIMIT = 1 << 62
_ALL = btrfs.group_of_all(1)
_MKFS_SECONDS = 120
_OPTIONS: dict[str, str | None] = {
    # Written in place, without checksums and copies: half the time for many small files.
    "nodatacow": None,
    # Small files are data like all others, so that no leaf of metadata is rewritten for them.
    "max_inline": "0",
    "ssd": None,
    # What sandboxes leave is punched out of the image, a little later and many at once.
    "discard": "async",
    "commit": "10",
}
_SYSFS = Path("/sys/fs/btrfs")
_PAGE = os.sysconf("SC_PAGE_SIZE")


class PoolError(RuntimeError):
    """There can be no pool here; the message says why."""


@dataclass(slots=True)
class Space:
    """What a pool takes, and what is left in it."""

    used_bytes: int
    free_bytes: int


class Pool:
    """An image that is mounted for the node and, once attached, for the launcher."""

    def __init__(self, image: Path, place: Path, root: int, device: str, fs_id: str) -> None:
        self.image = image
        self.place = place
        """Where the launcher sees it."""
        self.device = device
        self._root = root
        self._groups = _SYSFS / fs_id / "qgroups"
        self.limit_bytes = NO_LIMIT
        """Of all its sandboxes together."""
        self._freed: set[int] = set()

    @classmethod
    def make(cls, image: Path, place: Path, size_bytes: int) -> Pool:
        """Make an image and mount it.

        Raises:
            PoolError: this host cannot; the message says what is missing.
        """
        fs_id = str(uuid.uuid4())
        try:
            place.mkdir(mode=0o700, parents=True, exist_ok=True)
            _make_image(image, max(size_bytes, POOL_BYTES_MIN), fs_id)
            holder, device = loop.attach(image)
            try:
                root = _open_root(device)
            finally:
                os.close(holder)
        except OSError as problem:
            image.unlink(missing_ok=True)
            with contextlib.suppress(OSError):
                place.rmdir()
            raise PoolError(f"a pool cannot be mounted: {problem}") from None
        pool = cls(image, place, root, device, fs_id)
        try:
            pool._start_counting()
        except OSError as problem:
            pool.discard()
            raise PoolError(f"no simple quotas, which Linux has since 6.7: {problem}") from None
        return pool

    @classmethod
    def take_over(cls, image: Path, place: Path, device: str) -> Pool:
        """Mount once more what a launcher holds for an earlier service.

        Raises:
            OSError: it cannot be mounted.
        """
        root = _open_root(device)
        try:
            return cls(image, place, root, device, btrfs.file_system_id(root))
        except OSError:
            os.close(root)
            raise

    def _start_counting(self) -> None:
        btrfs.enable_simple_quotas(self._root)
        btrfs.make_group(self._root, _ALL)

    def attach(self, launcher_pid: int) -> None:
        """Show the pool to a launcher.

        Raises:
            OSError: it has gone.
        """
        mount = open_mount("btrfs", self.device, _OPTIONS)
        try:
            attach_in(launcher_pid, mount, self.place)
        finally:
            os.close(mount)

    def detach(self, launcher_pid: int) -> None:
        """Take the pool from a launcher; sandboxes that use it go on."""
        with contextlib.suppress(OSError):
            detach_in(launcher_pid, self.place)

    # ------------------------------------------------------------ sandboxes

    def add(self, sandbox_id: str, limit_bytes: int) -> int:
        """Make a sandbox's subvolume with its directories, and return the subvolume's id.

        Raises:
            OSError: the pool is full or broken, or the sandbox has one.
        """
        btrfs.make_subvolume(self._root, sandbox_id, limit_bytes, _ALL)
        folder = os.open(sandbox_id, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._root)
        try:
            for name in ("upper", "work"):
                os.mkdir(name, 0o755, dir_fd=folder)
            return btrfs.subvolume_id(folder)
        finally:
            os.close(folder)

    def stage(self, sandbox_id: str, name: str) -> int:
        """Copy a sandbox's subvolume as it is now, and return the copy's id.

        Raises:
            OSError: the sandbox has gone, or the pool is full or broken.
        """
        source = self.open(sandbox_id)
        try:
            btrfs.make_snapshot(self._root, name, source, _ALL)
        finally:
            os.close(source)
        copy = self.open(name)
        try:
            return btrfs.subvolume_id(copy)
        finally:
            os.close(copy)

    def open(self, name: str) -> int:
        """Return a descriptor of a subvolume's root.

        Raises:
            OSError: there is none.
        """
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        return os.open(name, flags, dir_fd=self._root)

    def mount(self, name: str) -> int:
        """Mount a subvolume nowhere, and return the descriptor that holds the mount.

        Raises:
            OSError: there is none, or the pool is broken.
        """
        return open_mount("btrfs", self.device, {**_OPTIONS, "subvol": name})

    def limit(self, subvolume: int, limit_bytes: int) -> None:
        """Bound what a sandbox takes anew.

        Raises:
            OSError: the pool is broken.
        """
        btrfs.limit_group(self._root, subvolume, limit_bytes)

    def is_freed(self, subvolume: int) -> bool:
        """Return whether all that a removed subvolume alone had is given back."""
        return btrfs.remove_group(self._root, subvolume)

    def remove(self, sandbox_id: str, subvolume: int) -> None:
        """Remove a sandbox's subvolume; none is no error.

        Raises:
            OSError: the pool is broken.
        """
        with contextlib.suppress(FileNotFoundError):
            btrfs.remove_subvolume(self._root, sandbox_id)
            self._freed.add(subvolume)

    def sandboxes(self) -> dict[str, int]:
        """Return the ids of the subvolumes, by sandbox."""
        return btrfs.subvolumes(self._root)

    # --------------------------------------------------------------- space

    def used(self) -> dict[int, int]:
        """Return the bytes that each subvolume takes, as of a few seconds ago, by its id."""
        return btrfs.used(self._root)

    def used_now(self, subvolume: int) -> int | None:
        """Return what one subvolume takes now, with what is not written yet; None: not told."""
        group = self._groups / f"0_{subvolume}"
        written = _read_number(group / "referenced")
        return None if written is None else written + (_read_number(group / "rsv_data") or 0)

    def space(self) -> Space:
        """Return what all sandboxes take together, and what the image has room for."""
        stat = os.fstatvfs(self._root)
        used = _read_number(self._groups / "1_1" / "referenced")
        if used is None:
            used = self.used().get(_ALL, 0)
        return Space(used, stat.f_bavail * stat.f_frsize)

    def is_broken(self) -> bool:
        """Return whether the kernel has made it read-only, as it does when a write failed."""
        return bool(os.fstatvfs(self._root).f_flag & os.ST_RDONLY)

    def bound(self, limit_bytes: int) -> None:
        """Bound what all sandboxes take together; beyond it their writes fail with EDQUOT."""
        btrfs.limit_group(self._root, _ALL, limit_bytes)
        self.limit_bytes = limit_bytes

    def forget_freed(self) -> None:
        """Drop the counters of subvolumes that are freed, where the kernel does not by itself."""
        for subvolume in list(self._freed):
            if btrfs.remove_group(self._root, subvolume):
                self._freed.discard(subvolume)

    def close(self) -> None:
        """Give up this process's hold on it."""
        os.close(self._root)

    def discard(self) -> None:
        """Give it up and remove its image; the space is free when the last mount has gone."""
        self.close()
        self.image.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.place.rmdir()


def _open_root(device: str) -> int:
    """Mount a device nowhere, and return a descriptor of its root on which ioctls work."""
    mount = open_mount("btrfs", device, _OPTIONS)
    try:
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=mount)
    finally:
        os.close(mount)


def _make_image(image: Path, size_bytes: int, fs_id: str) -> None:
    program = shutil.which("mkfs.btrfs", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if program is None:
        raise PoolError("mkfs.btrfs is not installed: apt-get install btrfs-progs")
    with image.open("wb") as file:
        file.truncate(size_bytes // _PAGE * _PAGE)
    # Small nodes: a sandbox that has written nothing keeps one of them in memory and on disk.
    node = ["--nodesize", "4096"] if _PAGE == 4096 else []
    command = [
        program, "--quiet", "--force", "--nodiscard", "--data", "single",
        "--metadata", "single", *node, "--uuid", fs_id, str(image),
    ]  # fmt: skip
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
            timeout=_MKFS_SECONDS,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        image.unlink(missing_ok=True)
        raise PoolError(f"mkfs.btrfs took more than {_MKFS_SECONDS} s") from None
    if done.returncode != 0:
        image.unlink(missing_ok=True)
        raise PoolError(f"mkfs.btrfs failed: {done.stderr.strip()[-300:]}")


def _read_number(path: Path) -> int | None:
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None
