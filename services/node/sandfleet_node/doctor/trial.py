"""Mounting what a sandbox mounts, in a child whose namespaces end with it.

The child (`probes.mounting`) mounts a small EROFS image, maps its ids as a sandbox's
are, and overlays a directory of the state directory's file system on it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

SECONDS = 20
MODULE = "sandfleet_node.probes.mounting"


@dataclass(frozen=True, slots=True)
class Outcome:
    """How each step went: empty when it did, else why not."""

    erofs: str = "not tried"
    by_loop: bool = False
    """EROFS needed a loop device."""
    user_namespace: str = "not tried"
    overlay: str = "not tried"


def run(state: Path) -> Outcome:
    """Try, and say how it went."""
    try:
        with _place(state) as place:
            image = _image(place)
            done = subprocess.run(
                [sys.executable, "-P", "-m", MODULE, str(place), image],
                capture_output=True, text=True, check=False, timeout=SECONDS,
            )  # fmt: skip
    except (OSError, subprocess.SubprocessError) as problem:
        return _untried(str(problem))
    try:
        return Outcome(**json.loads(done.stdout))
    except (ValueError, TypeError):
        return _untried(done.stderr.strip()[-200:])


def _untried(problem: str) -> Outcome:
    why = f"could not be tried: {problem}"
    return Outcome(erofs=why, user_namespace=why, overlay=why)


@contextmanager
def _place(state: Path) -> Generator[Path]:
    """Make a directory on the state directory's file system, where sandboxes will write."""
    above = state.absolute()
    while not above.is_dir():
        above = above.parent
    with tempfile.TemporaryDirectory(prefix=".sandfleet-doctor-", dir=above) as folder:
        yield Path(folder)


def _image(place: Path) -> str:
    """Pack a directory with one file; empty when mkfs.erofs is not there or fails."""
    tree = place / "tree"
    tree.mkdir()
    (tree / "file").write_text("layer\n")
    image = place / "image"
    try:
        done = subprocess.run(
            ["mkfs.erofs", "--quiet", str(image), str(tree)], capture_output=True, check=False
        )
    except FileNotFoundError:
        return ""
    return str(image) if done.returncode == 0 else ""
