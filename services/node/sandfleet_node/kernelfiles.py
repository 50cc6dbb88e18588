"""Small files that are the kernel's: of control groups, mostly."""

from __future__ import annotations

import os


def parse_flat(text: str) -> dict[str, int]:
    """Return the "name number" lines of memory.events, memory.oom_control, cgroup.events."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, number = line.partition(" ")
        if number.strip().isdigit():
            found[name] = int(number)
    return found


def write_file(path: str, value: str) -> None:
    """Write what a file shall say, in one call, as the kernel wants it.

    Raises:
        OSError: there is no such file, or the kernel refused.
    """
    handle = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(handle, value.encode())
    finally:
        os.close(handle)
