"""Where memory of paused and idle sandboxes goes: the machine's swap, else a file of the node's.

A machine that has swap is left as it is. On one without, a file below the node's directory is
made when it is first needed, and stays until the node is stopped for good or cleaned: a node
service that is killed finds it again. Without any swap pausing still works, only little memory
comes back.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
import struct
import threading
import uuid
from dataclasses import dataclass
from pathlib import Path

from sandfleet_common.logs import Logger
from sandfleet_common.messages import MIB

from .machine import parse_meminfo

SMALLEST_BYTES = 64 * MIB
"""A smaller file is not worth its trouble."""
DISK_PART = 10
"""An automatic size takes no more than one part in so many of the free disk."""
_GET_FLAGS = 0x80086601
_SET_FLAGS = 0x40086602
_NO_COPY_ON_WRITE = 0x00800000
_ZEROS = bytes(4 * MIB)
_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class SwapArea:
    """One line of /proc/swaps."""

    path: str
    size_bytes: int
    used_bytes: int


def parse_swaps(text: str) -> list[SwapArea]:
    """Return what /proc/swaps lists."""
    found: list[SwapArea] = []
    for line in text.splitlines()[1:]:
        words = line.split()
        if len(words) >= 4:
            path = words[0].replace("\\040", " ")
            found.append(SwapArea(path, int(words[2]) * 1024, int(words[3]) * 1024))
    return found


def automatic_size(memory_total_bytes: int, disk_free_bytes: int) -> int:
    """Return how large a swap file is when nobody says: all memory, a tenth of the free disk."""
    return min(memory_total_bytes, disk_free_bytes // DISK_PART) // MIB * MIB


def signature(size_bytes: int, page_bytes: int, name: bytes) -> bytes:
    """Return the first page of a swap area of this size; `name` is its UUID, 16 bytes."""
    page = bytearray(page_bytes)
    struct.pack_into("=III16s", page, 1024, 1, size_bytes // page_bytes - 1, 0, name)
    page[-10:] = b"SWAPSPACE2"
    return bytes(page)


class Swap:
    """The swap that a node uses. Methods may write a file: to be called in a thread."""

    def __init__(self, path: Path, size_bytes: int, *, is_wanted: bool, log: Logger) -> None:
        """Name the file that would be made, of `size_bytes`; 0: `automatic_size`."""
        self._path = path
        self._size_bytes = size_bytes
        self._is_wanted = is_wanted
        self._log = log
        self._lock = threading.Lock()
        self.problem: str | None = None
        """Why there is none, in one sentence; None when there is or nobody has asked."""

    def drop_stale(self) -> None:
        """Remove a file that is in use no more, since a machine has started anew."""
        with self._lock:
            if not any(each.path == os.path.realpath(self._path) for each in _areas()):
                self._path.unlink(missing_ok=True)

    def ensure(self) -> bool:
        """Make sure that there is swap, and return whether there is. Never raises for want of it.

        What has failed once is not tried again, until swap appears from elsewhere.
        """
        with self._lock:
            if _areas():
                self.problem = None
            elif not self._is_wanted:
                self.problem = "the machine has no swap, and the node may make none (swap=none)"
            elif self.problem is None:
                self._try_to_make()
            return self.problem is None

    def remove(self) -> bool:
        """Take the node's file out of use for good; False if what is in it does not fit."""
        with self._lock:
            self._is_wanted = False
            return remove_swap(self._path, self._log)

    def sizes(self) -> tuple[int, int]:
        """Return bytes of swap on this machine: all, and free. Quick."""
        found = parse_meminfo(Path("/proc/meminfo").read_text())
        return found.get("SwapTotal", 0), found.get("SwapFree", 0)

    def _try_to_make(self) -> None:
        try:
            self._make()
        except OSError as problem:
            self.problem = f"no swap file could be made in {self._path.parent}: {problem}"
            self._path.unlink(missing_ok=True)
            self._log.warning("swap.impossible", error=self.problem)

    def _make(self) -> None:
        size = self._size_bytes or self._fitting()
        if size < SMALLEST_BYTES:
            text = f"{size // MIB} MiB would be too small: the disk is nearly full"
            raise OSError(errno.ENOSPC, text)
        self._path.unlink(missing_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        handle = os.open(self._path, flags, 0o600)
        try:
            _write_in_place(handle)
            os.posix_fallocate(handle, 0, size)
            page = os.sysconf("SC_PAGE_SIZE")
            os.pwrite(handle, signature(size, page, uuid.uuid4().bytes), 0)
            os.fsync(handle)
            try:
                _switch_on(self._path)
            except OSError as problem:
                if problem.errno != errno.EINVAL:
                    raise
                # Some file systems swap only to blocks that have been written.
                _fill(handle, page, size)
                _switch_on(self._path)
        finally:
            os.close(handle)
        self._log.info("swap.made", path=str(self._path), bytes=size)

    def _fitting(self) -> int:
        memory = parse_meminfo(Path("/proc/meminfo").read_text())["MemTotal"]
        return automatic_size(memory, shutil.disk_usage(self._path.parent).free)


def remove_swap(path: Path, log: Logger) -> bool:
    """Take a node's swap file out of use and remove it; False if what is in it does not fit.

    To be called in a thread: all that is there is read back.
    """
    area = next((each for each in _areas() if each.path == os.path.realpath(path)), None)
    if area is not None:
        available = parse_meminfo(Path("/proc/meminfo").read_text())["MemAvailable"]
        if area.used_bytes > available:
            log.warning(
                "swap.left", path=str(path), used_bytes=area.used_bytes, available_bytes=available,
                error="what is in it does not fit into memory",
            )  # fmt: skip
            return False
        if _libc.swapoff(os.fsencode(path)) != 0:
            number = ctypes.get_errno()
            log.warning("swap.left", path=str(path), error=os.strerror(number))
            return False
        log.info("swap.removed", path=str(path))
    path.unlink(missing_ok=True)
    return True


def _areas() -> list[SwapArea]:
    try:
        return parse_swaps(Path("/proc/swaps").read_text())
    except OSError:
        return []  # a kernel without swap


def _switch_on(path: Path) -> None:
    # No flags: the kernel gives it a lower priority than all that was there before.
    if _libc.swapon(os.fsencode(path), 0) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _write_in_place(handle: int) -> None:
    """Have btrfs write the file in place, without which it cannot be swap; others do anyhow."""
    try:
        space = bytearray(8)
        fcntl.ioctl(handle, _GET_FLAGS, space)
        flags = struct.unpack("=Q", space)[0] | _NO_COPY_ON_WRITE
        fcntl.ioctl(handle, _SET_FLAGS, struct.pack("=Q", flags))
    except OSError:
        return


def _fill(handle: int, begin: int, end: int) -> None:
    for position in range(begin, end, len(_ZEROS)):
        os.pwrite(handle, _ZEROS[: end - position], position)
    os.fsync(handle)
