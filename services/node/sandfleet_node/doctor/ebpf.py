"""Checks of eBPF, by loading the smallest programs there are."""

from __future__ import annotations

import ctypes
import os
import platform
import struct

from sandfleet_node.probes import syscalls

from .btf import find_types
from .check import Check, Host

PROG_LOAD = 5
# r0 = 0; exit
_NOTHING = struct.pack("<QQ", 0xB7, 0x95)
_TRACING, _LSM = 26, 29
_RAW_TRACEPOINT, _LSM_MAC = 23, 27
_HOOK = "btf_trace_sys_exit"
_LSM_HOOK = "bpf_lsm_file_open"
PLAIN = {
    "kprobe": (2, 0),
    "tracepoint": (5, 0),
    "raw_tracepoint": (17, 0),
    "cgroup_skb": (8, 0),
    "cgroup_sock_addr": (18, 10),
    "cgroup_device": (15, 0),
    "sched_cls": (3, 0),
}
"""Program type and expected attach type by name."""


def load(kind: int, attach: int = 0, type_id: int = 0) -> str:
    """Load a program that does nothing; returns why the kernel refused, empty if it did not."""
    number = syscalls.BPF.get(platform.machine())
    if number is None:
        return f"not known on {platform.machine()}"
    code = ctypes.create_string_buffer(_NOTHING)
    licence = ctypes.create_string_buffer(b"GPL")
    head = struct.pack("<IIQQ", kind, 2, ctypes.addressof(code), ctypes.addressof(licence))
    # no log; version, flags, name, interface; attach type; no BTF of its own; what to attach to
    tail = struct.pack("<IIQII16sII", 0, 0, 0, 0, 0, b"", 0, attach)
    types = struct.pack("<IIQIIQII", 0, 0, 0, 0, 0, 0, 0, type_id)
    attributes = ctypes.create_string_buffer((head + tail + types).ljust(144, b"\0"), 144)
    try:
        os.close(syscalls.call(number, PROG_LOAD, attributes, 144))
    except OSError as problem:
        return problem.strerror or str(problem)
    return ""


def btf(host: Host) -> Check:
    """Look for the kernel's types."""
    why = "the sensor's programs adapt to this kernel by its type information"
    path = host.sys / "kernel" / "btf" / "vmlinux"
    if path.is_file():
        return Check("btf", "ok", f"{path.stat().st_size / 1e6:.1f} MB", why)
    mend = "boot a kernel built with CONFIG_DEBUG_INFO_BTF, as Debian's are"
    return Check("btf", "warn", "this kernel has none", why, mend)


def ebpf(host: Host) -> Check:
    """Load a program of each type that the sensor or the network policy uses."""
    why = "the sensor watches system calls of sandboxes; network policy is enforced on cgroups"
    refused = {name: problem for name, given in PLAIN.items() if (problem := load(*given))}
    types = find_types(host.sys / "kernel" / "btf" / "vmlinux", {_HOOK, _LSM_HOOK})
    tracing = load(_TRACING, _RAW_TRACEPOINT, types[_HOOK]) if _HOOK in types else "no BTF"
    lsm = load(_LSM, _LSM_MAC, types[_LSM_HOOK]) if _LSM_HOOK in types else "not in this kernel"
    works = [name for name in PLAIN if name not in refused]
    works += ["tracing"] * (not tracing) + ["lsm"] * (not lsm)
    refused |= {"lsm": lsm} if lsm else {}
    if tracing:
        mend = "run as root on a kernel with CONFIG_BPF_SYSCALL and BTF, not locked down"
        return Check("ebpf", "warn", f"tracing programs do not load: {tracing}", why, mend)
    found = f"{', '.join(works)} load"
    if refused:
        found += "; not " + ", ".join(f"{name} ({problem})" for name, problem in refused.items())
    if refused.keys() & PLAIN.keys():
        mend = "boot a kernel with CONFIG_BPF_EVENTS and CONFIG_CGROUP_BPF, as Debian's are"
        return Check("ebpf", "warn", found, why, mend)
    return Check("ebpf", "ok", found, why)
