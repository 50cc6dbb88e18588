"""Mounts without a place in the host's table: held by a descriptor, or in the launcher's namespace.

A mount that only processes hold goes with them, however they end. So a node that is killed
together with its launcher leaves nothing mounted and no loop device.
"""

from __future__ import annotations

import ctypes
import os
import re
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from sandfleet_node.probes import syscalls

_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_MNT_DETACH = 2
_SET_FLAG, _SET_STRING, _CMD_CREATE = 0, 1, 6
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC = 1, 1
_NOSUID, _NODEV, _NOATIME = 2, 4, 0x10
_AT_FDCWD, _FROM_DESCRIPTOR = -100, 4
_libc = ctypes.CDLL(None, use_errno=True)


def open_mount(kind: str, source: str, options: Mapping[str, str | None]) -> int:
    """Mount a device nowhere, and return the descriptor of its root that holds the mount.

    Args:
        kind: of file system.
        source: path of the device.
        options: of the file system; None: a flag.

    Raises:
        OSError: the kernel cannot.
    """
    context = syscalls.call(syscalls.FSOPEN, kind.encode(), _FSOPEN_CLOEXEC)
    try:
        for name, value in {"source": source, **options}.items():
            what = _SET_FLAG if value is None else _SET_STRING
            text = None if value is None else value.encode()
            syscalls.call(syscalls.FSCONFIG, context, what, name.encode(), text, 0)
        syscalls.call(syscalls.FSCONFIG, context, _CMD_CREATE, None, None, 0)
        return syscalls.call(
            syscalls.FSMOUNT, context, _FSMOUNT_CLOEXEC, _NOSUID | _NODEV | _NOATIME
        )
    finally:
        os.close(context)


def attach_in(pid: int, mount: int, where: Path) -> None:
    """Give a mount that `open_mount` made a place in another process's mount namespace.

    Raises:
        OSError: the process has gone, or the place is not there.
    """

    def attach() -> None:
        target = os.fsencode(where)
        syscalls.call(syscalls.MOVE_MOUNT, mount, b"", _AT_FDCWD, target, _FROM_DESCRIPTOR)

    _within(pid, attach)


def detach_in(pid: int, where: Path) -> None:
    """Take a mount away from another process's mount namespace; its users keep it.

    Raises:
        OSError: the process has gone, or nothing is mounted there.
    """
    _within(pid, lambda: syscalls.check(_libc.umount2(os.fsencode(where), _MNT_DETACH)))


def mounted_in(pid: int, below: Path) -> dict[Path, str]:
    """Return the sources of what a process sees mounted directly below a directory, by place."""
    found: dict[Path, str] = {}
    for line in Path(f"/proc/{pid}/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        place = Path(_plain(left.split()[4]))
        if place.parent == below:
            found[place] = _plain(right.split()[1])
    return found


def _plain(text: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), text)


def _within(pid: int, do: Callable[[], None]) -> None:
    """Do something in a process's mount namespace: in a thread that enters it, and ends."""
    problems: list[OSError] = []

    def enter() -> None:
        try:
            namespace = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC)
            try:
                # Root and working directory must be this thread's alone before it may leave.
                syscalls.unshare(_CLONE_FS)
                syscalls.check(_libc.setns(namespace, _CLONE_NEWNS))
            finally:
                os.close(namespace)
            do()
        except OSError as problem:
            problems.append(problem)

    thread = threading.Thread(target=enter, name="other-mounts")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
