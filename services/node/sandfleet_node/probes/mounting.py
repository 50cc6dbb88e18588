"""Mount as a sandbox does, and print how it went as JSON.

    python -m sandfleet_node.probes.mounting PLACE IMAGE

All mounts are made in a mount namespace of this process.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
from pathlib import Path

from . import syscalls

CLONE_NEWNS, CLONE_NEWUSER = 0x20000, 0x10000000
MS_REC_PRIVATE = 0x4000 | 0x40000
AT_FDCWD, AT_EMPTY_PATH = -100, 0x1000
OPEN_TREE_CLONE = 1
MOVE_MOUNT_F_EMPTY_PATH = 4
SET_FLAG, SET_STRING, CMD_CREATE = 0, 1, 6
ATTR_RDONLY, ATTR_IDMAP = 1, 0x100000
MAPPED = 0x6FFF_0000
"""Host id of the mapped root, in nobody's range."""


def mount_image(image: str, where: Path) -> bool:
    """Mount an EROFS image; returns whether it took a loop device."""
    fs = syscalls.call(syscalls.FSOPEN, b"erofs", 0)
    try:
        syscalls.call(syscalls.FSCONFIG, fs, SET_STRING, b"source", image.encode(), 0)
        syscalls.call(syscalls.FSCONFIG, fs, SET_FLAG, b"ro", None, 0)
        syscalls.call(syscalls.FSCONFIG, fs, CMD_CREATE, None, None, 0)
        mounted = syscalls.call(syscalls.FSMOUNT, fs, 0, ATTR_RDONLY)
    except OSError:
        argv = ["mount", "-n", "-t", "erofs", "-o", "loop,ro", image, str(where)]
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise OSError(0, done.stderr.strip().partition("\n")[0][:200]) from None
        return True
    attach(mounted, where)
    return False


def attach(mounted: int, where: Path) -> None:
    """Attach a detached mount."""
    target = os.fsencode(where)
    syscalls.call(syscalls.MOVE_MOUNT, mounted, b"", AT_FDCWD, target, MOVE_MOUNT_F_EMPTY_PATH)


def user_namespace() -> int:
    """Return a descriptor of a user namespace with one range of ids."""
    ready, told = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            syscalls.unshare(CLONE_NEWUSER)
            os.write(told, b"1")
            signal.pause()
        except OSError as problem:
            os.write(told, os.strerror(problem.errno or 0).encode())
        os._exit(0)
    os.close(told)
    said = os.read(ready, 200)
    try:
        if said != b"1":
            raise OSError(0, said.decode() or "the child died")
        for name in ("uid_map", "gid_map"):
            Path(f"/proc/{child}/{name}").write_text(f"0 {MAPPED} 65536\n")
        return os.open(f"/proc/{child}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def overlay(lower: Path, namespace: int, place: Path) -> None:
    """Stack a directory of the mapped root on an id-mapped clone of `lower`, and write in it."""
    mapped, upper, work, merged = (place / n for n in ("mapped", "upper", "work", "merged"))
    for path in (mapped, upper, work, merged):
        path.mkdir()
    for path in (upper, work):
        os.chown(path, MAPPED, MAPPED)
    tree = syscalls.call(syscalls.OPEN_TREE, AT_FDCWD, os.fsencode(lower), OPEN_TREE_CLONE)
    attributes = ctypes.create_string_buffer(
        struct.pack("<QQQQ", ATTR_IDMAP | ATTR_RDONLY, 0, 0, namespace), 32
    )
    syscalls.call(syscalls.MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attributes, 32)
    attach(tree, mapped)
    options = f"lowerdir={mapped},upperdir={upper},workdir={work},volatile"
    syscalls.mount(b"overlay", os.fsencode(merged), b"overlay", 0, options.encode())
    if (merged / "file").stat().st_uid != MAPPED:
        raise OSError(0, "ids of the lower layer are not mapped")
    (merged / "file").write_text("changed\n")
    if (upper / "file").stat().st_uid != MAPPED:
        raise OSError(0, "a file copied up does not belong to the mapped root")


def main(place: Path, image: str) -> dict[str, str | bool]:
    """Try everything; each outcome is empty, or why it failed."""
    found: dict[str, str | bool] = {"erofs": "", "user_namespace": "", "overlay": ""}
    try:
        syscalls.unshare(CLONE_NEWNS)
        syscalls.mount(b"none", b"/", b"", MS_REC_PRIVATE, b"")
    except OSError as problem:
        why = f"no mount namespace: {problem.strerror}"
        return {"erofs": why, "user_namespace": why, "overlay": why}
    lower = place / "tree"
    if image:
        lower = place / "layer"
        lower.mkdir()
        try:
            found["by_loop"] = mount_image(image, lower)
        except OSError as problem:
            found["erofs"] = problem.strerror or str(problem)
            lower = place / "tree"
    else:
        found["erofs"] = "mkfs.erofs is not installed"
    try:
        namespace = user_namespace()
    except OSError as problem:
        found["user_namespace"] = problem.strerror or str(problem)
        found["overlay"] = "needs a user namespace"
        return found
    try:
        overlay(lower, namespace, place)
    except OSError as problem:
        found["overlay"] = problem.strerror or str(problem)
    return found


if __name__ == "__main__":
    outcome = main(Path(sys.argv[1]), sys.argv[2])
    sys.stdout.write(json.dumps(outcome))
    sys.stdout.flush()
    with contextlib.suppress(OSError):
        os._exit(0)
