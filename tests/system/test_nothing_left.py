"""The demo leaves nothing behind but its state directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from requirements import REPOSITORY, need_root
from traces import traces

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(180)]


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
