"""Checks of the kernel: version, rights, namespaces, cgroups, limits."""

from __future__ import annotations

import fcntl
import os
import re
import resource
from pathlib import Path

from sandfleet_node.cores import CoreScheduling, support

from .check import Check, Host

KERNEL_NEEDED = (5, 19)
"""Overlays on id-mapped layers."""
KERNEL_LIKED = (6, 12)
"""EROFS straight from a file."""
CAP_SYS_ADMIN = 21
KVM_GET_API_VERSION = 0xAE00
CONTROLLERS = ("memory", "pids", "cpu")
_NAMESPACES = ("user", "mnt", "pid", "net", "ipc", "uts", "cgroup")
NAMESPACES_LIKED = 5000


def kernel(host: Host) -> Check:
    """Look at the kernel's version."""
    release = host.text("proc/sys/kernel/osrelease")
    match = re.match(r"(\d+)\.(\d+)", release)
    version = tuple(int(part) for part in match.groups()) if match else ()
    why = "sandboxes overlay id-mapped layers (5.19) and mount EROFS straight from files (6.12)"
    if version < KERNEL_NEEDED:
        mend = "boot Linux 5.19 or newer: apt-get install linux-image-amd64"
        return Check("kernel", "fail", f"Linux {release}", why, mend)
    note = "" if version >= KERNEL_LIKED else "; EROFS goes through loop devices before 6.12"
    return Check("kernel", "ok", f"Linux {release}{note}", why)


def root(host: Host) -> Check:
    """Look at our own rights."""
    why = "the node makes namespaces, mounts and cgroups"
    match = re.search(r"^CapEff:\s*([0-9a-f]+)", host.text("proc/self/status"), re.MULTILINE)
    able = bool(int(match.group(1), 16) >> CAP_SYS_ADMIN & 1) if match else False
    is_inner = host.text("proc/self/uid_map").split() != ["0", "0", "4294967295"]
    if os.geteuid() == 0 and able and not is_inner:
        return Check("root", "ok", "root with CAP_SYS_ADMIN", why)
    if os.geteuid() != 0:
        found = f"user id {os.geteuid()}"
    elif is_inner:
        found = "root only of a user namespace"
    else:
        found = "root without CAP_SYS_ADMIN"
    return Check("root", "fail", found, why, "run as root (in a container: privileged)")


def user_namespaces(host: Host) -> Check:
    """Make a user namespace, and look at how many there may be."""
    why = "every sandbox has its own ids, and nothing else than them on the host"
    problem = host.tried().user_namespace
    limits = {n: host.number(f"proc/sys/user/max_{n}_namespaces") for n in _NAMESPACES}
    low = {
        n: limit for n, limit in limits.items() if limit is not None and limit < NAMESPACES_LIKED
    }
    mend = "sysctl -w " + " ".join(f"user.max_{name}_namespaces=60000" for name in low)
    if problem or low.get("user") == 0:
        return Check(
            "user-namespaces", "fail", problem or "forbidden", why,
            mend if low else "run on the host, or in a privileged container",
        )  # fmt: skip
    if low:
        found = "work, but at most " + ", ".join(f"{limit} {name}" for name, limit in low.items())
        return Check("user-namespaces", "warn", found, why, mend)
    return Check("user-namespaces", "ok", f"work, up to {limits['user']}", why)


def cgroups(host: Host) -> Check:
    """Look at which controllers are mounted where, and whether we may write there."""
    why = "limits of memory, processes and CPU; killing a command with all it started"
    v1, v2 = parse_cgroup_mounts(host.text("proc/self/mountinfo"))
    if v2 is None:
        mend = "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified"
        return Check("cgroups", "fail", "version 2 is not mounted", why, mend)
    unified = _read(v2 / "cgroup.controllers").split()
    where = {c: "v2" if c in unified else "v1" for c in CONTROLLERS if c in unified or c in v1}
    mode = "version 2" if not v1 else f"hybrid, version 2 at {v2}"
    missing = [c for c in CONTROLLERS if c not in where]
    if missing:
        mend = "boot with systemd.unified_cgroup_hierarchy=1 and without cgroup_disable="
        return Check("cgroups", "fail", f"{mode}; no {', '.join(missing)} controller", why, mend)
    for folder in {v2, *(v1[c] for c in CONTROLLERS if where[c] == "v1")}:
        if problem := _cannot_make(folder):
            mend = "run on the host, or in a privileged container with cgroups writable"
            return Check("cgroups", "fail", f"{mode}; {folder}: {problem}", why, mend)
    spread = ", ".join(f"{name} ({version})" for name, version in where.items())
    return Check("cgroups", "ok", f"{mode}; {spread}", why)


def parse_cgroup_mounts(mountinfo: str) -> tuple[dict[str, Path], Path | None]:
    """Return where each version 1 controller is mounted, and where version 2 is."""
    v1: dict[str, Path] = {}
    v2: Path | None = None
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        words, kind = left.split(), right.split()
        if len(words) < 5 or len(kind) < 3:
            continue
        if kind[0] == "cgroup2" and v2 is None:
            v2 = Path(words[4])
        elif kind[0] == "cgroup":
            v1.update({c: Path(words[4]) for c in kind[2].split(",") if c in CONTROLLERS})
    return v1, v2


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def _cannot_make(folder: Path) -> str:
    """Return why no cgroup can be made in a hierarchy, empty when it can."""
    probe = folder / f"sandfleet-doctor-{os.getpid()}"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as problem:
        return problem.strerror or str(problem)
    return ""


def kvm(host: Host) -> Check:
    """Ask KVM for its version."""
    why = "micro-VM sandboxes; containers do without"
    mend = "modprobe kvm_intel || modprobe kvm_amd; on a virtual machine allow nesting"
    try:
        device = os.open("/dev/kvm", os.O_RDWR | os.O_CLOEXEC)
    except OSError as problem:
        return Check("kvm", "warn", f"/dev/kvm: {problem.strerror}", why, mend)
    try:
        version = fcntl.ioctl(device, KVM_GET_API_VERSION)
    except OSError as problem:
        return Check("kvm", "warn", f"/dev/kvm does not answer: {problem.strerror}", why, mend)
    finally:
        os.close(device)
    return Check("kvm", "ok", f"API version {version}", why)


def psi(host: Host) -> Check:
    """Look for pressure stall information."""
    why = "admission by measured pressure; without it load and free memory have to do"
    if host.text("proc/pressure/memory"):
        return Check("psi", "ok", "on", why)
    return Check("psi", "warn", "off", why, "boot with psi=1 on the kernel's command line")


def core_scheduling(host: Host) -> Check:
    """Ask whether hyperthreads can be kept to one sandbox at a time."""
    why = "SANDFLEET_NODE_CORE_SCHEDULING: two sandboxes never run on one core at the same time"
    found = support()
    if found is CoreScheduling.WORKS:
        return Check("core-scheduling", "ok", "works", why)
    if found is CoreScheduling.NOT_NEEDED or host.text("sys/devices/system/cpu/smt/active") == "0":
        return Check("core-scheduling", "ok", "not needed: cores have no second hyperthread", why)
    mend = "boot a kernel built with CONFIG_SCHED_CORE, or switch hyperthreads off: nosmt"
    return Check("core-scheduling", "warn", "the kernel has none", why, mend)


def processes(host: Host) -> Check:
    """Look at how many processes there may be."""
    why = "all sandboxes' processes share the machine's process ids"
    most = host.number("proc/sys/kernel/pid_max") or 0
    threads = host.number("proc/sys/kernel/threads-max") or 0
    found = f"pid_max {most}, threads-max {threads}"
    if most >= 100_000 and threads >= 50_000:
        return Check("processes", "ok", found, why)
    mend = "sysctl -w kernel.pid_max=4194304 kernel.threads-max=500000"
    return Check("processes", "warn", found, why, mend)


def open_files(host: Host) -> Check:
    """Look at how many files one process may open."""
    why = "the node holds a channel and a log for each sandbox and command"
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    ceiling = host.number("proc/sys/fs/nr_open") or 0
    able = ceiling if os.geteuid() == 0 else hard
    found = f"limit {hard}, can be raised to {able}"
    if able >= 65_536:
        return Check("open-files", "ok", found, why)
    return Check("open-files", "warn", found, why, "sysctl -w fs.nr_open=1048576")


def inotify(host: Host) -> Check:
    """Look at how many directories can be watched."""
    why = "watching files; instances are counted for each sandbox's root"
    instances = host.number("proc/sys/fs/inotify/max_user_instances") or 0
    watches = host.number("proc/sys/fs/inotify/max_user_watches") or 0
    found = f"{instances} instances, {watches} watches for each user"
    if instances >= 64 and watches >= 8192:
        return Check("inotify", "ok", found, why)
    mend = "sysctl -w fs.inotify.max_user_instances=1024 fs.inotify.max_user_watches=65536"
    return Check("inotify", "warn", found, why, mend)
