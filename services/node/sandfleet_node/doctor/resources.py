"""Checks of what the machine has to give: memory, swap, disk, time."""

from __future__ import annotations

import ctypes
import os
import time
from pathlib import Path

from sandfleet_node.machine import parse_meminfo

from .check import Check, Host

GIB = 1024**3
_TIME_ERROR = 5


def memory(host: Host) -> Check:
    """Look at the memory that is available."""
    why = "an idle sandbox takes about a megabyte, a busy one what its work takes"
    amounts = parse_meminfo(host.text("proc/meminfo"))
    total, free = amounts.get("MemTotal", 0), amounts.get("MemAvailable", 0)
    found = f"{free / GIB:.1f} of {total / GIB:.1f} GiB available"
    if free < GIB // 2:
        mend = "end something: the node takes no sandbox with less than 0.5 GiB available"
        return Check("memory", "fail", found, why, mend)
    if free < 2 * GIB:
        return Check("memory", "warn", found, why, "have 2 GiB available")
    return Check("memory", "ok", found, why)


def swap(host: Host) -> Check:
    """Look for swap."""
    why = "memory of idle and paused sandboxes is given back by swapping it out"
    lines = host.text("proc/swaps").splitlines()[1:]
    if lines:
        total = sum(int(line.split()[2]) * 1024 for line in lines)
        names = ", ".join(line.split()[0] for line in lines)
        return Check("swap", "ok", f"{total / GIB:.1f} GiB on {names}", why)
    mend = "modprobe zram && zramctl /dev/zram0 -s 8G && mkswap /dev/zram0 && swapon /dev/zram0"
    return Check("swap", "warn", "none", why, mend)


def disk(host: Host) -> Check:
    """Look at the state directory's file system."""
    why = "layers, and what sandboxes write"
    folder = host.folder()
    stat = os.statvfs(folder)
    free = stat.f_bavail * stat.f_frsize
    found = f"{free / GIB:.1f} GiB and {stat.f_favail:,} inodes free in {folder}"
    few_inodes = stat.f_files > 0 and stat.f_favail < 10_000
    mend = "free some space, or set SANDFLEET_STATE_DIR to a larger file system"
    if not os.access(folder, os.W_OK):
        return Check("disk", "fail", f"may not write in {folder}", why, "run as root")
    if free < GIB or few_inodes:
        return Check("disk", "fail", found, why, mend)
    if free < 5 * GIB or (stat.f_files > 0 and stat.f_favail < 200_000):
        return Check("disk", "warn", found, why, mend)
    return Check("disk", "ok", found, why)


def clock(host: Host) -> Check:
    """Look whether the clock can be right."""
    why = "heartbeats and deadlines of a fleet compare the clocks of its machines"
    newest = Path(__file__).stat().st_mtime
    source = host.text("sys/devices/system/clocksource/clocksource0/current_clocksource")
    if time.time() < newest - 86_400:
        found = "the clock is behind the files on this disk"
        return Check("clock", "fail", found, why, "set the date, or start a time service")
    if _is_unsynchronised():
        found = f"{source or 'clock'}, kept in step by nobody; one machine alone does not mind"
        return Check("clock", "ok", found, why, "apt-get install chrony (for a fleet)")
    return Check("clock", "ok", f"{source}, synchronised", why)


def _is_unsynchronised() -> bool:
    buffer = ctypes.create_string_buffer(256)
    return ctypes.CDLL(None).adjtimex(buffer) == _TIME_ERROR
