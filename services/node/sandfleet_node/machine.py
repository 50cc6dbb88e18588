"""What the machine has, and how it is doing."""

from __future__ import annotations

import os
import resource
from pathlib import Path

from sandfleet_common.messages import Pressure

from .config import NodeSettings
from .core import Limits
from .pressure import Reading, Thresholds, parse_psi
from .shedding import Depths


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the amounts of /proc/meminfo in bytes."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def read_pressure() -> Pressure:
    """Return how much work stands still; empty where the kernel does not measure it."""
    cpu, _ = _psi("cpu")
    memory_some, memory_full = _psi("memory")
    io_some, io_full = _psi("io")
    return Pressure(
        cpu_some=cpu,
        memory_some=memory_some,
        memory_full=memory_full,
        io_some=io_some,
        io_full=io_full,
    )


def _psi(what: str) -> tuple[float | None, float | None]:
    try:
        return parse_psi(Path("/proc/pressure", what).read_text())
    except OSError:  # not built in, or switched off at boot
        return None, None


def read_available_bytes() -> int:
    """Return how much memory is available now."""
    memory = parse_meminfo(Path("/proc/meminfo").read_text())
    return memory.get("MemAvailable", memory["MemFree"])


def read_machine(disk_dir: Path) -> Reading:
    """Look at memory, the disk that a directory is on, load and pressure now."""
    memory = parse_meminfo(Path("/proc/meminfo").read_text())
    disk = os.statvfs(disk_dir)
    cores = os.cpu_count() or 1
    return Reading(
        memory_total_bytes=memory["MemTotal"],
        memory_available_bytes=memory.get("MemAvailable", memory["MemFree"]),
        disk_total_bytes=disk.f_blocks * disk.f_frsize,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        load_per_core=os.getloadavg()[0] / cores,
        cores=cores,
        pressure=read_pressure(),
        swap_free_bytes=memory.get("SwapFree", 0),
        inodes_free=disk.f_favail if disk.f_files else None,
    )


def thresholds_of(settings: NodeSettings) -> Thresholds:
    """Return from where on a node refuses or slows down."""
    return Thresholds(
        memory_floor_bytes=settings.memory_floor_bytes,
        disk_floor_bytes=settings.disk_floor_bytes,
        inodes_floor=settings.inodes_floor,
        memory_stall_percent=settings.memory_stall_percent,
        cpu_slow_percent=settings.cpu_slow_percent,
        io_slow_percent=settings.io_slow_percent,
        load_slow_per_core=settings.load_slow_per_core,
        margin=settings.pressure_margin,
    )


def depths_of(settings: NodeSettings) -> tuple[Depths, Depths]:
    """Return how little memory, and how little disk, leads to which step of shedding."""
    margin, settle = settings.pressure_margin, settings.shed_settle_seconds
    rest = settings.shed_rest_seconds
    floor, end = settings.memory_floor_bytes, settings.disk_end_bytes
    memory = Depths(floor, min(floor, settings.memory_end_bytes), margin, settle, rest)
    return memory, Depths(end, end, margin, settle, rest)


def limits_of(settings: NodeSettings, reading: Reading) -> Limits:
    """Return what a node offers: what the machine has, or was told to have, times overcommit."""
    return Limits(
        sandboxes=settings.sandboxes_max,
        cpu=(settings.cpu or reading.cores) * settings.overcommit_cpu,
        memory_bytes=int(
            (settings.memory_bytes or reading.memory_total_bytes) * settings.overcommit_memory
        ),
        disk_bytes=int(
            (settings.disk_bytes or reading.disk_total_bytes) * settings.overcommit_disk
        ),
        starting=settings.starting_limit,
    )


def raise_file_limit(wanted: int) -> int:
    """Allow this process so many open files if it may, and return how many it has."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft >= wanted:
        return soft
    for ceiling in (max(hard, wanted), hard):
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (min(wanted, ceiling), ceiling))
            return min(wanted, ceiling)
        except (ValueError, OSError):
            continue
    return soft
