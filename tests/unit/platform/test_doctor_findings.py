"""What the doctor says of hosts other than this one, shown to it as files."""

from __future__ import annotations

from pathlib import Path

import pytest

from sandfleet_node.cores import CoreScheduling, support
from sandfleet_node.doctor import Check, ebpf, kernel, report, resources
from sandfleet_node.doctor.btf import find_types
from sandfleet_node.doctor.check import Host
from sandfleet_node.doctor.trial import Outcome


@pytest.fixture
def host(tmp_path: Path) -> Host:
    made = Host(tmp_path, proc=tmp_path / "proc", sys=tmp_path / "sys")
    made.proc.mkdir()
    return made


def put(host: Host, path: str, text: str) -> None:
    file = host.proc / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


@pytest.mark.parametrize(
    ("release", "status", "note"),
    [
        ("5.10.0-30-amd64", "fail", ""),
        ("6.1.0-18-amd64", "ok", "loop devices"),
        ("6.12.43+deb13-amd64", "ok", ""),
        ("7.0.1", "ok", ""),
        ("", "fail", ""),
    ],
)
def test_an_old_kernel_is_told_from_a_new_one(
    host: Host, release: str, status: str, note: str
) -> None:
    put(host, "sys/kernel/osrelease", release + "\n")
    check = kernel.kernel(host)
    assert (check.status, note in check.found) == (status, True)


def mountinfo(*mounts: tuple[Path, str, str]) -> str:
    return "\n".join(
        f"{n} 1 0:{n} / {path} rw,relatime - {kind} none rw,{options}"
        for n, (path, kind, options) in enumerate(mounts, 30)
    )


def test_a_host_with_version_2_only_is_fit(host: Host, tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    put(host, "self/mountinfo", mountinfo((tmp_path / "cgroup", "cgroup2", "nsdelegate")))
    check = kernel.cgroups(host)
    assert check.status == "ok"
    assert check.found == "version 2; memory (v2), pids (v2), cpu (v2)"
    assert [path.name for path in (tmp_path / "cgroup").iterdir()] == ["cgroup.controllers"]


def test_a_hybrid_host_is_fit_with_its_controllers_in_version_1(host: Host, tmp_path: Path) -> None:
    names = ("unified", "memory", "pids", "cpu,cpuacct")
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "unified" / "cgroup.controllers").write_text("\n")
    put(
        host,
        "self/mountinfo",
        mountinfo(
            (tmp_path / "unified", "cgroup2", "nsdelegate"),
            *((tmp_path / name, "cgroup", name) for name in names[1:]),
        ),
    )
    check = kernel.cgroups(host)
    assert (check.status, "hybrid" in check.found, "memory (v1)" in check.found) == (
        "ok", True, True,
    )  # fmt: skip


def test_a_missing_controller_is_named(host: Host, tmp_path: Path) -> None:
    (tmp_path / "cgroup").mkdir()
    (tmp_path / "cgroup" / "cgroup.controllers").write_text("cpu pids\n")
    put(host, "self/mountinfo", mountinfo((tmp_path / "cgroup", "cgroup2", "nsdelegate")))
    check = kernel.cgroups(host)
    assert (check.status, "no memory controller" in check.found) == ("fail", True)


def test_a_host_without_version_2_is_told_how_to_mount_it(host: Host, tmp_path: Path) -> None:
    put(host, "self/mountinfo", mountinfo((tmp_path, "cgroup", "memory")))
    check = kernel.cgroups(host)
    assert (check.status, "mount -t cgroup2" in check.mend) == ("fail", True)


def test_a_read_only_cgroup_file_system_is_found_out(host: Host, tmp_path: Path) -> None:
    # A mount of another kind takes no cgroups either, whoever asks.
    kinds = [("cgroup2", "nsdelegate"), *(("cgroup", name) for name in kernel.CONTROLLERS)]
    mounts = [(Path("/proc"), kind, options) for kind, options in kinds]
    put(host, "self/mountinfo", mountinfo(*mounts))
    check = kernel.cgroups(host)
    assert (check.status, check.mend.startswith("run on the host")) == ("fail", True)


def with_outcome(host: Host, outcome: Outcome) -> Host:
    host._tried = outcome  # pyright: ignore[reportPrivateUsage]
    return host


def test_few_namespaces_are_a_warning_that_says_which(host: Host) -> None:
    put(host, "sys/user/max_user_namespaces", "60000\n")
    put(host, "sys/user/max_net_namespaces", "100\n")
    check = kernel.user_namespaces(with_outcome(host, Outcome("", False, "", "")))
    assert (check.status, check.found) == ("warn", "work, but at most 100 net")
    assert check.mend == "sysctl -w user.max_net_namespaces=60000"


def test_forbidden_user_namespaces_fail(host: Host) -> None:
    put(host, "sys/user/max_user_namespaces", "0\n")
    outcome = Outcome("", False, "No space left on device", "needs a user namespace")
    check = kernel.user_namespaces(with_outcome(host, outcome))
    assert (check.status, "user.max_user_namespaces" in check.mend) == ("fail", True)


def test_hyperthreads_that_cannot_be_kept_apart_are_a_warning(host: Host) -> None:
    if support() is not CoreScheduling.MISSING:
        pytest.skip("doctor line `core-scheduling`: this kernel has core scheduling")
    active = host.sys / "devices/system/cpu/smt/active"
    active.parent.mkdir(parents=True)
    active.write_text("1\n")
    assert kernel.core_scheduling(host).status == "warn"
    active.write_text("0\n")
    assert kernel.core_scheduling(host).found.startswith("not needed")


def test_psi_that_is_off_is_a_warning(host: Host) -> None:
    assert kernel.psi(host).status == "warn"
    put(host, "pressure/memory", "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n")
    assert kernel.psi(host).status == "ok"


@pytest.mark.parametrize(
    ("available_kb", "status"), [(300_000, "fail"), (1_500_000, "warn"), (8_000_000, "ok")]
)
def test_too_little_memory_is_found(host: Host, available_kb: int, status: str) -> None:
    put(host, "meminfo", f"MemTotal: 16000000 kB\nMemAvailable: {available_kb} kB\n")
    assert resources.memory(host).status == status


def test_a_kernel_without_types_has_no_btf(host: Host) -> None:
    assert ebpf.btf(host).status == "warn"
    assert find_types(host.sys / "kernel" / "btf" / "vmlinux", {"btf_trace_sys_exit"}) == {}


CHECKS = [
    Check("kernel", "ok", "Linux 6.12", "mounting"),
    Check("swap", "warn", "none", "memory is given back", "swapon /dev/zram0"),
    Check("erofs", "fail", "unknown file system", "layers", "modprobe erofs"),
]


def test_the_report_lines_up_and_advises_only_where_something_is_wrong() -> None:
    lines = report.render(CHECKS, width=100, colour=False).splitlines()
    found = {c.id: next(line for line in lines if f"  {c.id}" in line) for c in CHECKS}
    assert len({found[c.id].index(c.found) for c in CHECKS}) == 1
    assert [line.strip() for line in lines if "mend:" in line] == [
        "mend: swapon /dev/zram0",
        "mend: modprobe erofs",
    ]
    assert lines[-1].strip() == "1 ok, 1 warn, 1 fail: this host cannot run sandboxes yet"


def test_the_report_has_colours_only_when_asked() -> None:
    assert "\x1b" not in report.render(CHECKS, width=100, colour=False)
    assert "\x1b[32mok" in report.render(CHECKS, width=100, colour=True)
