"""What a platform leaves on its host while it runs, and must not leave afterwards."""

from __future__ import annotations

import os
from pathlib import Path

from sandfleet.local.layout import Layout


def traces(state: Path) -> dict[str, set[str]]:
    """Return processes, mounts, cgroups, namespaces and loop devices of a state directory."""
    node = Layout(state).node_name()
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    root = Path("/sys/fs/cgroup")
    cgroups = [path for path in (root, *root.glob("*")) if (path / "sandfleet" / node).is_dir()]
    namespaces = Path("/run/netns")
    return {
        "processes": _processes(str(state).encode()),
        "mounts": {line for line in mounts if str(state) in line},
        "cgroups": {str(path) for path in cgroups},
        "namespaces": {p.name for p in namespaces.iterdir()} if namespaces.is_dir() else set(),
        "loops": {path.parent.name for path in Path("/sys/block").glob("loop*/loop")},
    }


def _processes(state: bytes) -> set[str]:
    found: set[str] = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            command = (folder / "cmdline").read_bytes()
            if state in command + (folder / "environ").read_bytes():
                found.add(f"{folder.name} {command.replace(bytes(1), b' ').decode()}")
        except OSError:
            continue
    return found
