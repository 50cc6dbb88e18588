"""What a platform holds on its host, counted, so that two counts can be compared.

Kernel objects are counted where their owner keeps them: the launcher's descriptors
hold namespaces, its mount namespace holds layers, the control group trees hold one
directory per sandbox. What is meant to stay (the ends of sandboxes on record, logs)
is not counted.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import cast

import host
from redis import Redis

from sandfleet import local
from sandfleet.local.layout import Layout

_USER = "scheduler"
_FOREVER = -1
"""Redis' answer for a key that does not expire."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """Counts of everything that could leak."""

    sandbox_processes: int
    network_namespaces: int
    """Of those made ahead; that of a sandbox is held by the sandbox alone."""
    launcher_descriptors: int
    """All but user namespaces, which the launcher keeps for each range it has seen."""
    node_descriptors: int
    mounts_host: int
    mounts_launcher: int
    cgroups: int
    sandbox_directories: int
    trash_directories: int
    loop_devices: int
    redis_keys_forever: int
    redis_live_sandboxes: int

    def differences(self, later: Ledger) -> dict[str, tuple[int, int]]:
        """Return what is not the same in `later`: before and after."""
        before, after = asdict(self), asdict(later)
        return {k: (before[k], after[k]) for k in before if before[k] != after[k]}


def launcher_of(state: Path) -> int:
    """Return the process of a platform's launcher."""
    return host.process_of("launcher", "--run-dir", str(state))


def read(state: Path) -> Ledger:
    """Count what the platform of a state directory holds now.

    Raises:
        RuntimeError: it is not up.
    """
    places = local.find(state)
    if places is None:
        raise RuntimeError(f"no platform is up in {state}")
    layout = Layout(state)
    node_dir = layout.state / "node" / layout.node_name()
    launcher = launcher_of(state)
    forever, live = _redis(layout, places.redis)
    return Ledger(
        sandbox_processes=sum(parent == launcher for parent, _ in host.processes().values()),
        network_namespaces=_descriptors(launcher)["net"],
        launcher_descriptors=_descriptors(launcher).total() - _descriptors(launcher)["user"],
        node_descriptors=_entries(Path(f"/proc/{places.pids['node']}/fd")),
        mounts_host=_lines("/proc/self/mountinfo", str(layout.state)),
        mounts_launcher=_lines(f"/proc/{launcher}/mountinfo", ""),
        cgroups=cgroups(layout.node_name()),
        sandbox_directories=_entries(node_dir / "sandboxes"),
        trash_directories=_entries(node_dir / "trash"),
        loop_devices=len(_loops(str(layout.state))),
        redis_keys_forever=forever,
        redis_live_sandboxes=live,
    )


def cgroups(node: str) -> int:
    """Return how many control groups a node has, in all hierarchies."""
    root = Path("/sys/fs/cgroup")
    below = f"sandfleet/{node}"
    tops = [root / below, *root.glob(f"*/{below}")]
    return sum(1 for top in tops for _ in os.walk(top))


def _descriptors(pid: int) -> Counter[str]:
    """Return how many descriptors of each kind a process holds: net, user, pipe, socket ..."""
    kinds: Counter[str] = Counter()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            kinds[str(link.readlink()).partition(":")[0]] += 1
    return kinds


def _loops(below: str) -> list[str]:
    """Return the loop devices on files below a directory."""
    found: list[str] = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        with contextlib.suppress(OSError):
            if (backing := path.read_text().strip()).startswith(f"{below}/node/"):
                found.append(f"{path.parts[3]} on {backing}")
    return found


def _entries(folder: Path) -> int:
    try:
        return sum(1 for _ in folder.iterdir())
    except FileNotFoundError:
        return 0


def _lines(path: str, part: str) -> int:
    return sum(part in line for line in _read_lines(path))


def _redis(layout: Layout, url: str) -> tuple[int, int]:
    """Return how many keys never expire, and how many sandboxes are indexed as live."""
    password = (layout.passwords / _USER).read_text().strip()
    with Redis.from_url(url, username=_USER, password=password) as redis:
        names = list(cast(Iterator[bytes], redis.scan_iter("sf:*", count=1000)))
        pipe = redis.pipeline(transaction=False)
        for name in names:
            pipe.ttl(name)
        lives = cast(list[int], pipe.execute())
        return lives.count(_FOREVER), redis.zcard("sf:sandboxes:live")


def left_after_down(state: Path) -> list[str]:
    """Return what is left of a platform that is down: it should be nothing."""
    layout = Layout(state)
    own = str(layout.state)
    left = [line.strip() for line in _read_lines("/proc/self/mountinfo") if own in line]
    left += [f"{n} control groups" for n in [cgroups(layout.node_name())] if n]
    left += [f"swap {line.split()[0]}" for line in _read_lines("/proc/swaps") if own in line]
    left += _loops(own)
    node_dir = layout.state / "node" / layout.node_name()
    left += [
        str(path) for path in node_dir.glob("*/*") if path.parent.name in ("sandboxes", "trash")
    ]
    with contextlib.suppress(RuntimeError):
        left.append(f"launcher {launcher_of(state)}")
    return left


def _read_lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()
