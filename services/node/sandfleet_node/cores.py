"""Core scheduling: the hyperthreads of one core run only one sandbox at a time.

A sandbox's first process gets a cookie of its own before anything runs in it, and every
process after it inherits that. Processes with different cookies never share a core, so
neither can watch the other through it nor slow it down there. The kernel keeps the
cookies, so a restart of the service changes nothing.
"""

from __future__ import annotations

import ctypes
import errno
import os
from enum import StrEnum

_PR_SCHED_CORE = 62
_GET = 0
_CREATE = 1
_THREAD = 0
_THREAD_GROUP = 1

_libc = ctypes.CDLL(None, use_errno=True)


class CoreScheduling(StrEnum):
    """What can be had of it here."""

    WORKS = "works"
    NOT_NEEDED = "not needed"
    """No core has a second hyperthread."""
    MISSING = "missing"
    """The kernel was built without it, or is older than 5.14."""


def _prctl(command: int, pid: int, scope: int, cookie: ctypes.c_ulong | None) -> None:
    address = 0 if cookie is None else ctypes.addressof(cookie)
    words = [ctypes.c_ulong(word) for word in (command, pid, scope, address)]
    if _libc.prctl(_PR_SCHED_CORE, *words) != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"core scheduling: {os.strerror(number)}")


def cookie_of(pid: int) -> int:
    """Return a process's cookie; 0: it has none, and shares cores with all that have none.

    Raises:
        OSError: ENODEV without hyperthreads, EINVAL where the kernel has no core scheduling.
    """
    cookie = ctypes.c_ulong()
    _prctl(_GET, pid, _THREAD, cookie)
    return cookie.value


def support() -> CoreScheduling:
    """Ask the kernel."""
    try:
        cookie_of(0)
    except OSError as problem:
        if problem.errno == errno.ENODEV:
            return CoreScheduling.NOT_NEEDED
        return CoreScheduling.MISSING
    return CoreScheduling.WORKS


def separate(pid: int) -> None:
    """Give a process a core of its own from now on, unless it has a cookie already.

    Raises:
        OSError: it has gone, or may not be touched.
    """
    try:
        if cookie_of(pid) == 0:
            _prctl(_CREATE, pid, _THREAD_GROUP, None)
    except OSError as problem:
        if problem.errno != errno.ENODEV:  # hyperthreads may be switched off at any time
            raise
