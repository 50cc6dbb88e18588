"""Loop devices that end by themselves: the last mount that goes takes the device with it."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
import time
from collections.abc import Sequence
from pathlib import Path

_CONTROL = "/dev/loop-control"
_SYS = Path("/sys/block")
_GET_FREE, _CONFIGURE = 0x4C82, 0x4C0A
_AUTOCLEAR, _DIRECT_IO = 4, 16
_BLOCK_BYTES = 4096
_TRIES = 64
# struct loop_config: u32 fd, u32 block size, struct loop_info64 (five u64, then u32 number,
# encryption, its key's size, flags; names and keys of 176 bytes), eight u64 unused
_CONFIG = struct.Struct("<II40xIIII176x64x")


def attach(image: Path) -> tuple[int, str]:
    """Give a file a block device that bypasses the page cache where the file system can.

    Returns:
        A descriptor that holds the device until something is mounted, and its path.

    Raises:
        OSError: there is no device to be had.
    """
    file = os.open(image, os.O_RDWR | os.O_CLOEXEC)
    try:
        for _ in range(_TRIES):
            found = _configure(file)
            if found is not None:
                return found
    finally:
        os.close(file)
    raise OSError(errno.EBUSY, "no loop device is free")


def _configure(file: int) -> tuple[int, str] | None:
    """Take a free device; None: somebody else took it first."""
    control = os.open(_CONTROL, os.O_RDWR | os.O_CLOEXEC)
    try:
        path = f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}"
    finally:
        os.close(control)
    device = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    for flags in (_AUTOCLEAR | _DIRECT_IO, _AUTOCLEAR):
        try:
            fcntl.ioctl(device, _CONFIGURE, _CONFIG.pack(file, _BLOCK_BYTES, 0, 0, 0, flags))
        except OSError as problem:
            if problem.errno == errno.EINVAL and flags & _DIRECT_IO:
                continue
            os.close(device)
            if problem.errno == errno.EBUSY:
                return None
            raise
        return device, path
    return None


def find(image: Path) -> str | None:
    """Return the device of a file, also of one that was removed; None if it has none."""
    names = (str(image), f"{image} (deleted)")
    for entry in list(_SYS.glob("loop*/loop/backing_file")):
        with contextlib.suppress(OSError):
            if entry.read_text().rstrip("\n") in names:
                return f"/dev/{entry.parts[3]}"
    return None


def until_free(images: Sequence[Path], seconds: float) -> list[Path]:
    """Wait until files have no device any more, at most so long; return those that still have."""
    deadline = time.monotonic() + seconds
    while left := [image for image in images if find(image) is not None]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    return left
