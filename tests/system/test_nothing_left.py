"""The demo leaves nothing behind but its state directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from requirements import REPOSITORY, need_root

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(180)]


def traces(state: Path) -> dict[str, set[str]]:
    """Return what a platform with this state directory leaves on its host while it runs."""
    processes: set[str] = set()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit() or int(folder.name) == os.getpid():
            continue
        try:
            text = (folder / "cmdline").read_bytes() + (folder / "environ").read_bytes()
        except OSError:
            continue
        if str(state).encode() in text:
            processes.add(folder.name)
    mounts = Path("/proc/self/mounts").read_text().splitlines()
    cgroups = {str(path) for path in Path("/sys/fs/cgroup").glob("**/sandfleet/*") if path.is_dir()}
    namespaces = subprocess.run(
        ["ip", "netns", "list"], capture_output=True, text=True, check=False
    ).stdout
    return {
        "processes": processes,
        "mounts": {line for line in mounts if "sandfleet" in line or str(state) in line},
        "cgroups": cgroups,
        "namespaces": set(namespaces.split()),
        "loops": {path.name for path in Path("/sys/block").glob("loop*/loop")},
    }


def test_the_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    need_root()
    shared = Path(os.environ.get("SANDFLEET_STATE_DIR", REPOSITORY / ".sandfleet")) / "layers"
    (tmp_path / "layers").symlink_to(shared)
    before = traces(tmp_path)
    done = subprocess.run(
        [sys.executable, "examples/humaneval.py", "--start-platform", "--problems", "4"],
        cwd=REPOSITORY,
        env={**os.environ, "SANDFLEET_STATE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "4/4 right solutions passed, 4/4 broken ones failed" in done.stdout
    assert traces(tmp_path) == before
