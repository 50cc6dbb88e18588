"""The doctor on this host: it really tries, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from requirements import need_root

from sandfleet_node.doctor import main, run_checks
from sandfleet_node.doctor.report import CHECKS

pytestmark = [pytest.mark.root]

IDS = [
    "kernel", "root", "user-namespaces", "cgroups", "erofs", "overlay", "disk-caps", "ebpf", "btf",
    "kvm", "psi", "core-scheduling", "memory", "swap", "disk", "processes", "open-files",
    "inotify", "clock",
    "nats-server", "redis-server", "native", "sensor", "base-layer",
]  # fmt: skip


def traces() -> tuple[str, list[str]]:
    mounts = Path("/proc/self/mounts").read_text()
    loops = sorted(p.parent.name for p in Path("/sys/block").glob("loop*/loop"))
    return mounts, loops


def test_the_doctor_looks_at_everything_and_leaves_nothing(tmp_path: Path) -> None:
    need_root()
    before = traces()
    checks = run_checks(tmp_path)
    assert [check.id for check in checks] == IDS
    assert traces() == before
    assert list(tmp_path.iterdir()) == []
    assert not [check.id for check in checks if check.status != "ok" and not check.mend]


def test_the_trial_does_what_the_launcher_does(tmp_path: Path) -> None:
    """Native sandboxes run on this host (tests/native), so these lines must be fine."""
    need_root()
    found = {check.id: check for check in run_checks(tmp_path)}
    for line in ("kernel", "root", "user-namespaces", "cgroups", "erofs", "overlay"):
        assert found[line].status == "ok", found[line]


def test_json_is_a_list_and_the_status_says_whether_anything_fails(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["--json", "--state", str(tmp_path)])
    checks = json.loads(capsys.readouterr().out)
    assert len(checks) == len(CHECKS)
    assert set(checks[0]) == {"id", "status", "found", "why", "mend"}
    assert status == int(any(check["status"] == "fail" for check in checks))


def test_root_of_a_user_namespace_is_not_taken_for_root(tmp_path: Path) -> None:
    need_root()
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", sys.executable, "-m", "sandfleet_node.doctor",
         "--json", "--state", str(tmp_path)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 1
    found = {check["id"]: check["status"] for check in json.loads(done.stdout)}
    assert (found["root"], found["overlay"]) == ("fail", "fail")
