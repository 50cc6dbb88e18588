"""Where control groups are, and what is written there."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandfleet_common.messages import MIB, Qos, Resources
from sandfleet_node.cgroups import v1_values, v2_values
from sandfleet_node.hierarchies import CgroupError, detect, parse_mounts
from sandfleet_node.kernelfiles import parse_flat

HYBRID = """\
tmpfs /sys/fs/cgroup tmpfs rw 0 0
cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0
cgroup /sys/fs/cgroup/cpuset cgroup rw,relatime,cpuset 0 0
cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0
cgroup /sys/fs/cgroup/pids cgroup rw,relatime,pids 0 0
cgroup2 {unified} cgroup2 rw,relatime 0 0
"""
ALL = frozenset({"memory", "pids", "cpu"})


def test_a_hybrid_host_uses_v1_for_what_v2_lacks(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("pids\n")
    found = detect(HYBRID.format(unified=tmp_path))
    assert found.v2 == {"pids"}
    assert found.v1 == {"memory": "/sys/fs/cgroup/memory", "cpu": "/sys/fs/cgroup/cpu,cpuacct"}
    assert found.describe() == "hybrid"


def test_a_pure_v2_host_needs_no_v1(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory hugetlb pids\n")
    found = detect(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")
    assert (found.v2, found.v1, found.describe()) == (ALL, {}, "v2")


def test_cpuset_is_not_taken_for_cpu() -> None:
    _, v1 = parse_mounts("cgroup /c cgroup rw,cpuset 0 0\n")
    assert v1 == {}


def test_a_host_without_v2_is_told_what_to_mount() -> None:
    with pytest.raises(CgroupError, match="mount -t cgroup2"):
        detect("cgroup /sys/fs/cgroup/memory cgroup rw,memory 0 0\n")


def test_a_missing_controller_is_named(tmp_path: Path) -> None:
    (tmp_path / "cgroup.controllers").write_text("memory cpu\n")
    with pytest.raises(CgroupError, match="no cgroup controller pids"):
        detect(f"cgroup2 {tmp_path} cgroup2 rw 0 0\n")


def test_limits_in_v2() -> None:
    asked = Resources(cpu=0.5, memory_bytes=64 * MIB, pids=32)
    assert dict(v2_values(ALL, asked, Qos.LATENCY)) == {
        "memory.max": str(64 * MIB),
        "memory.swap.max": "0",
        "pids.max": "32",
        "cpu.max": "50000 100000",
        "cpu.weight": "50",
    }
    assert v2_values(frozenset(), asked, Qos.LATENCY) == []


def test_limits_in_v1() -> None:
    asked = Resources(cpu=2, memory_bytes=64 * MIB, pids=32)
    assert dict(v1_values("memory", asked, Qos.LATENCY))["memory.limit_in_bytes"] == str(64 * MIB)
    assert dict(v1_values("pids", asked, Qos.LATENCY)) == {"pids.max": "32"}
    assert dict(v1_values("cpu", asked, Qos.LATENCY)) == {
        "cpu.cfs_quota_us": "200000",
        "cpu.shares": "2048",
    }


def test_best_effort_gives_way_but_keeps_its_quota() -> None:
    asked = Resources(cpu=4)
    assert dict(v2_values(ALL, asked, Qos.BEST_EFFORT))["cpu.weight"] == "1"
    assert dict(v1_values("cpu", asked, Qos.BEST_EFFORT)) == {
        "cpu.cfs_quota_us": "400000",
        "cpu.shares": "10",
        "cpu.idle": "1",
    }
    assert v1_values("cpu", asked, Qos.BEST_EFFORT)[-1] == ("cpu.idle", "1"), "takes no weight then"


def test_a_sliver_of_a_core_stays_above_the_kernels_least() -> None:
    assert dict(v1_values("cpu", Resources(cpu=0.001), Qos.LATENCY))["cpu.cfs_quota_us"] == "1000"


def test_flat_files_are_read() -> None:
    text = "oom_kill_disable 0\nunder_oom 0\noom_kill 3\nodd line here\n"
    assert parse_flat(text) == {"oom_kill_disable": 0, "under_oom": 0, "oom_kill": 3}
