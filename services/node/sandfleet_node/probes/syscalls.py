"""The system calls Python has no function for."""

from __future__ import annotations

import ctypes
import os

BPF = {"x86_64": 321, "aarch64": 280}
OPEN_TREE, MOVE_MOUNT, FSOPEN, FSCONFIG, FSMOUNT, MOUNT_SETATTR = 428, 429, 430, 431, 432, 442

_libc = ctypes.CDLL(None, use_errno=True)


def call(number: int, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    """Make a system call.

    Raises:
        OSError: it failed.
    """
    made = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    result: int = _libc.syscall(ctypes.c_long(number), *made)
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result


def check(result: int) -> None:
    """Raise what a failed C function left in errno."""
    if result != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))


def unshare(flags: int) -> None:
    """Leave the namespaces that `flags` name."""
    check(_libc.unshare(flags))


def mount(source: bytes, target: bytes, kind: bytes, flags: int, data: bytes) -> None:
    """Mount a file system, or change how one is mounted."""
    check(_libc.mount(source, target, kind, ctypes.c_ulong(flags), data))
