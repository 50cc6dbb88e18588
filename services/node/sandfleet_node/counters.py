"""What the kernel has counted for a group of processes. Reading takes some microseconds a file.

The counters are the kernel's: they go on whether or not anybody reads them, and a node
service that starts anew finds them as they are.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from .cgroups import Cgroups
from .kernelfiles import parse_flat

_READ_BYTES = 8192


@dataclass(frozen=True, slots=True)
class Counters:
    """One look at the groups of a sandbox, or of a node. What cannot be read is 0."""

    cpu_seconds: float = 0.0
    memory_bytes: int = 0
    memory_peak_bytes: int = 0
    swap_bytes: int = 0
    processes: int = 0
    egress_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Groups:
    """Where the groups are that count for one sandbox, or for all of a node."""

    v2: str
    cpu: str
    """The same as `v2` on pure v2, as are the others."""
    memory: str
    pids: str

    @classmethod
    def of(cls, cgroups: Cgroups, sandbox_id: str) -> Groups:
        """Return the groups of a sandbox; of the whole node for an empty id."""
        places = [
            cgroups.controller_dir(name, sandbox_id)[0].rstrip("/")
            for name in ("cpu", "memory", "pids")
        ]
        return cls(cgroups.v2_dir(sandbox_id).rstrip("/"), *places)


def parse_number(text: bytes) -> int:
    """Return the number that a counter's file holds; 0 if it is none."""
    text = text.strip()
    return int(text) if text.isdigit() and len(text) < 20 else 0


def parse_sent(text: str) -> int:
    """Return from /proc/<pid>/net/dev the bytes sent through anything but loopback."""
    sent = 0
    for line in text.splitlines()[2:]:
        name, colon, numbers = line.rpartition(":")
        words = numbers.split()
        if colon and name.strip() != "lo" and len(words) > 8 and words[8].isdigit():
            sent += int(words[8])
    return sent


def read_counters(groups: Groups, network_pid: int = 0) -> Counters:
    """Look once. Groups that are gone count nothing.

    Args:
        groups: where to look.
        network_pid: a process in the sandbox's network namespace; 0: it has no network.
    """
    memory, swap, peak = _memory(groups)
    return Counters(
        cpu_seconds=_cpu_seconds(groups),
        memory_bytes=memory,
        memory_peak_bytes=max(peak, memory),
        swap_bytes=swap,
        processes=_number(groups.pids, "pids.current"),
        egress_bytes=parse_sent(_read(f"/proc/{network_pid}/net/dev").decode("ascii", "replace"))
        if network_pid
        else 0,
    )


def _cpu_seconds(groups: Groups) -> float:
    # A v2 group counts time without any controller, the groups of its commands included.
    text = _read(f"{groups.v2}/cpu.stat").decode("ascii", "replace")
    spent = parse_flat(text).get("usage_usec")
    if spent is not None:
        return spent / 1e6
    return _number(groups.cpu, "cpuacct.usage") / 1e9


def _memory(groups: Groups) -> tuple[int, int, int]:
    """Return memory, swap and the most memory there ever was, in bytes."""
    where = groups.memory
    if where == groups.v2:
        now = _number(where, "memory.current")
        return now, _number(where, "memory.swap.current"), _number(where, "memory.peak")
    # memory.stat has the swap, too, but up to seconds late; these two are exact.
    both = _number(where, "memory.memsw.usage_in_bytes")
    now = _number(where, "memory.usage_in_bytes")
    return now, max(0, both - now), _number(where, "memory.max_usage_in_bytes")


def _number(directory: str, name: str) -> int:
    return parse_number(_read(f"{directory}/{name}"))


def _read(path: str) -> bytes:
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        return os.read(handle, _READ_BYTES)
    except OSError:  # removed between the two
        return b""
    finally:
        os.close(handle)
