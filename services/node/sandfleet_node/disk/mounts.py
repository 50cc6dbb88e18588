"""Mounts without a place in the host's table: held by a descriptor, or in the launcher's namespace.

A mount that only processes hold goes with them, however they end. So a node that is killed
together with its launcher leaves nothing mounted and no loop device.
"""

from __future__ import annotations

import ctypes
import os
import re
import struct
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from sandfleet_node.probes import syscalls

_CLONE_FS, _CLONE_NEWNS = 0x200, 0x20000
_MNT_DETACH = 2
_SET_FLAG, _SET_STRING, _CMD_CREATE = 0, 1, 6
_FSOPEN_CLOEXEC, _FSMOUNT_CLOEXEC = 1, 1
_RDONLY, _NOSUID, _NODEV, _NOATIME = 1, 2, 4, 0x10
_AT_FDCWD, _FROM_DESCRIPTOR = -100, 4
_AT_EMPTY_PATH, _CLONE, _IDMAP, _REC_PRIVATE = 0x1000, 1, 0x100000, 0x44000
_libc = ctypes.CDLL(None, use_errno=True)


def open_mount(
    kind: str,
    source: str,
    options: Mapping[str, str | None],
    attributes: int = _NOSUID | _NODEV | _NOATIME,
) -> int:
    """Mount a device nowhere, and return the descriptor of its root that holds the mount.

    Args:
        kind: of file system.
        source: path of the device.
        options: of the file system; None: a flag.
        attributes: of the mount.

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
        return syscalls.call(syscalls.FSMOUNT, context, _FSMOUNT_CLOEXEC, attributes)
    finally:
        os.close(context)


def clone_mount(directory: int) -> int:
    """Return the descriptor of a mount of its own, held by nothing else, of a directory.

    Raises:
        OSError: the kernel cannot.
    """
    return syscalls.call(syscalls.OPEN_TREE, directory, b"", _CLONE | os.O_CLOEXEC | _AT_EMPTY_PATH)


def shift_ids(mount: int, first: int, count: int) -> None:
    """Show the ids from `first` on as those from 0 on, in a mount that has no place yet.

    Raises:
        OSError: the file system cannot be shown so.
    """
    namespace = _namespace_of(first, count)
    try:
        wanted = ctypes.create_string_buffer(struct.pack("<QQQQ", _IDMAP, 0, 0, namespace), 32)
        syscalls.call(syscalls.MOUNT_SETATTR, mount, b"", _AT_EMPTY_PATH, wanted, 32)
    finally:
        os.close(namespace)


def _namespace_of(first: int, count: int) -> int:
    """Return the descriptor of a user namespace whose ids from `first` on are the host's from 0."""
    with subprocess.Popen(
        ["unshare", "--user", "sh", "-c", "echo; exec cat"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
    ) as child:  # fmt: skip
        assert child.stdin is not None and child.stdout is not None
        if child.stdout.read(1) != b"\n":
            raise OSError(0, "there can be no user namespace here")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child.pid}/{name}").write_text(f"{first} 0 {count}\n")
        namespace = os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        child.stdin.close()
    return namespace


def in_own_mounts(mount: int, where: Path, do: Callable[[], None]) -> None:
    """Do something where a mount has a place that nobody else sees; it ends with what is done.

    Processes that `do` starts see it, too. Blocks until `do` has returned.

    Args:
        mount: that `open_mount` or `clone_mount` made.
        where: a directory.
        do: called in a thread of its own.

    Raises:
        OSError: there can be no mount namespace, or the place is not there.
        Exception: whatever `do` raises.
    """
    problems: list[BaseException] = []

    def enter() -> None:
        try:
            syscalls.unshare(_CLONE_FS | _CLONE_NEWNS)
            syscalls.mount(b"none", b"/", b"", _REC_PRIVATE, b"")
            target = os.fsencode(where)
            syscalls.call(syscalls.MOVE_MOUNT, mount, b"", _AT_FDCWD, target, _FROM_DESCRIPTOR)
            do()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=enter, name="own-mounts")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


def attach_in(pid: int, mount: int, where: Path) -> None:
    """Give a mount that `open_mount` made a place in another process's mount namespace.

    Raises:
        OSError: the process has gone, or the place is not there.
    """

    def attach() -> None:
        target = os.fsencode(where)
        syscalls.call(syscalls.MOVE_MOUNT, mount, b"", _AT_FDCWD, target, _FROM_DESCRIPTOR)

    _within(pid, attach)


def mount_in(
    pid: int, kind: str, source: str, options: Mapping[str, str | None], where: Path
) -> None:
    """Mount a read-only file system in another process's mount namespace, by paths it sees.

    Args:
        pid: the process.
        kind: of file system.
        source: path of what is mounted.
        options: of the file system; None: a flag.
        where: made if it is not there.

    Raises:
        OSError: the kernel cannot, or the process has gone.
    """

    def attach() -> None:
        where.mkdir(mode=0o700, exist_ok=True)
        mount = open_mount(kind, source, options, _RDONLY | _NODEV)
        try:
            target = os.fsencode(where)
            syscalls.call(syscalls.MOVE_MOUNT, mount, b"", _AT_FDCWD, target, _FROM_DESCRIPTOR)
        finally:
            os.close(mount)

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
