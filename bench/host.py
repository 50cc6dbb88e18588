"""What the benchmarks read of the host: memory that is left, CPU time that was used."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")
_QUIET_BYTES = 4 * 1024**2
_QUIET_LOOKS = 5
_LOOKS = 60


def available_bytes() -> int:
    """Return MemAvailable."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")


def settled_available_bytes(*, drop_caches: bool = True) -> int:
    """Return MemAvailable once it has stood still for some seconds, or after a minute.

    Caches are dropped first, so that what only waits to be freed counts neither way;
    not where that would slow down what is measured next.
    """
    os.sync()
    if drop_caches:
        Path("/proc/sys/vm/drop_caches").write_text("3")
    seen = [available_bytes()]
    for _ in range(_LOOKS):
        time.sleep(1)
        seen.append(available_bytes())
        last = seen[-_QUIET_LOOKS:]
        if len(last) == _QUIET_LOOKS and max(last) - min(last) < _QUIET_BYTES:
            break
    return seen[-1]


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def processes() -> dict[int, tuple[int, float]]:
    """Return parent and CPU seconds of every process."""
    found: dict[int, tuple[int, float]] = {}
    for pid in _pids():
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue  # it has ended meanwhile
        fields = text[text.rindex(")") + 2 :].split()
        found[pid] = (int(fields[1]), (int(fields[11]) + int(fields[12])) / _TICKS)
    return found


def process_of(*words: str) -> int:
    """Return the process whose command line holds all `words`, and its parent's does not.

    The second tells a launcher from its sandboxes, which are clones of it.

    Raises:
        RuntimeError: there is none.
    """
    found = {pid for pid in _pids() if pid != os.getpid() and _says(pid, words)}
    for pid, (parent, _) in processes().items():
        if pid in found and parent not in found:
            return pid
    raise RuntimeError(f"no process has {' '.join(words)} in its command line")


def _says(pid: int, words: tuple[str, ...]) -> bool:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except (OSError, UnicodeDecodeError):
        return False
    return all(word in line for word in words)


def cpu_seconds(pids: Iterable[int], seen: dict[int, tuple[int, float]]) -> float:
    """Return the CPU seconds of some processes and of their direct children in `seen`."""
    wanted = set(pids)
    return sum(cpu for pid, (parent, cpu) in seen.items() if pid in wanted or parent in wanted)
