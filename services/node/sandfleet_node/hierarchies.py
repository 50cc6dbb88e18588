"""Where the control group controllers of this host are: in v2, or in v1 beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CONTROLLERS = ("memory", "pids", "cpu")


class CgroupError(RuntimeError):
    """The host's control groups cannot do what a node needs; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where this host has which controller."""

    unified: str
    """Mount point of the v2 hierarchy."""
    v2: frozenset[str]
    """Controllers there."""
    v1: dict[str, str]
    """Mount points of the v1 controllers that v2 does not have."""

    def describe(self) -> str:
        """Return "v2", or "hybrid" where v1 controllers are used."""
        return "hybrid" if self.v1 else "v2"


def parse_mounts(text: str) -> tuple[str | None, dict[str, str]]:
    """Return from /proc/self/mounts where v2 is, and where each v1 controller is."""
    unified: str | None = None
    v1: dict[str, str] = {}
    for line in text.splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        where, kind, options = words[1].replace("\\040", " "), words[2], words[3].split(",")
        if kind == "cgroup2" and unified is None:
            unified = where
        elif kind == "cgroup":
            for name in CONTROLLERS:
                if name in options:
                    v1.setdefault(name, where)
    return unified, v1


def detect(mounts: str | None = None) -> Hierarchies:
    """Look at what is mounted.

    Raises:
        CgroupError: there is no v2 hierarchy, or a controller is nowhere.
    """
    text = mounts if mounts is not None else Path("/proc/self/mounts").read_text()
    unified, v1 = parse_mounts(text)
    if unified is None:
        raise CgroupError("no cgroup v2 hierarchy is mounted: mount -t cgroup2 none /some/where")
    v2 = frozenset(Path(unified, "cgroup.controllers").read_text().split()) & set(CONTROLLERS)
    missing = [name for name in CONTROLLERS if name not in v2 and name not in v1]
    if missing:
        raise CgroupError(f"the kernel offers no cgroup controller {', '.join(missing)}")
    return Hierarchies(unified, v2, {n: v1[n] for n in CONTROLLERS if n not in v2})
