"""What the machine has, and how it is doing."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

from .config import NodeSettings
from .core import Limits


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the machine."""

    memory_total_bytes: int
    memory_available_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    load_per_core: float
    cores: int


def parse_meminfo(text: str) -> dict[str, int]:
    """Return the amounts of /proc/meminfo in bytes."""
    found: dict[str, int] = {}
    for line in text.splitlines():
        name, _, rest = line.partition(":")
        words = rest.split()
        if words and words[0].isdigit():
            found[name] = int(words[0]) * (1024 if words[-1] == "kB" else 1)
    return found


def read_machine(state_dir: Path) -> Reading:
    """Look at memory, disk and load now."""
    memory = parse_meminfo(Path("/proc/meminfo").read_text())
    disk = os.statvfs(state_dir)
    cores = os.cpu_count() or 1
    return Reading(
        memory_total_bytes=memory["MemTotal"],
        memory_available_bytes=memory.get("MemAvailable", memory["MemFree"]),
        disk_total_bytes=disk.f_blocks * disk.f_frsize,
        disk_free_bytes=disk.f_bavail * disk.f_frsize,
        load_per_core=os.getloadavg()[0] / cores,
        cores=cores,
    )


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
        memory_floor_bytes=settings.memory_floor_bytes,
        disk_floor_bytes=settings.disk_floor_bytes,
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
