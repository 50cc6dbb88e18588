"""Settings of the sensor (SANDFLEET_SENSOR_*) and of the monitor (SANDFLEET_MONITOR_*)."""

from __future__ import annotations

import shutil
import socket
from pathlib import Path

from pydantic import Field, field_validator

from sandfleet_common.ids import check_node
from sandfleet_common.settings import ServiceSettings

_CHECKOUT = Path(__file__).resolve().parents[3]


def _default_node() -> str:
    # What the node service of this machine calls itself when it is not told either.
    letters = [c if c.isascii() and c.isalnum() else "-" for c in socket.gethostname().lower()]
    return "-".join(part for part in "".join(letters)[:40].split("-") if part) or "node"


class SensorSettings(ServiceSettings):
    """What the sensor of one machine needs to know."""

    node: str = Field(default_factory=_default_node)
    """The name of the node service on this machine."""
    sensor_binary: str = ""
    """sandfleet-sensor; empty: that of the checkout, else the one in PATH."""
    cgroup2_mount: str = ""
    """Where cgroup v2 is mounted; empty: as /proc/self/mountinfo says."""
    cgroup_directory: str = Field(default="sandfleet", pattern=r"^[A-Za-z0-9_.-]{1,100}$")
    """The directory in it below which the node service keeps its sandboxes."""

    calls_per_second: int = Field(default=50, ge=1, le=100_000)
    """Facts about one kind of system call that one sandbox may cause in the long run."""
    calls_burst: int = Field(default=200, ge=1, le=100_000)
    """And at once."""
    execs_per_second: int = Field(default=500, ge=1, le=100_000)
    """Facts about program starts that one sandbox may cause in the long run."""
    execs_burst: int = Field(default=2000, ge=1, le=100_000)
    """And at once."""

    batch_seconds: float = Field(default=0.1, gt=0, le=10)
    """How long a fact waits for others at most."""
    batch_facts: int = Field(default=500, gt=0, le=5000)
    """Facts in one message at most."""
    waiting_facts: int = Field(default=10_000, gt=0)
    """Facts kept while the bus is away; later ones are counted as lost. The same again for
    program starts."""
    starts_each: int = Field(default=50, gt=0)
    """Program starts of one sandbox in one batch that are told one by one; alike ones beyond that
    are told with a count."""
    silence_seconds: float = Field(default=10, ge=3)
    """A sensor program that says nothing for so long is started anew; it speaks each second."""
    retry_seconds: float = Field(default=30, gt=0)
    """Longest wait before the sensor program is tried again."""

    @field_validator("node")
    @classmethod
    def _names_a_node(cls, value: str) -> str:
        return check_node(value)

    def binary(self) -> str | None:
        """Return the path of the sensor program, or None when it is nowhere."""
        if self.sensor_binary:
            return shutil.which(self.sensor_binary)
        built = _CHECKOUT / "native/build/sandfleet-sensor"
        return str(built) if built.exists() else shutil.which("sandfleet-sensor")


class MonitorSettings(ServiceSettings):
    """What a monitor needs to know."""

    rules: Path = Path(__file__).parent / "rules"
    """Directory of the rules' YAML files."""
    half_life_seconds: float = Field(default=600, gt=0)
    """In what time a sandbox's score falls to a half."""
    kill_at: float = Field(default=0, ge=0)
    """End a sandbox whose score reaches this; 0: never, alerts only."""
    kill_within_seconds: float = Field(default=5, gt=0)
    """How long its node may take to answer that."""
    forget_seconds: int = Field(default=86_400, gt=0)
    """How long a sandbox without alerts keeps its standing."""
    stream_replicas: int = Field(default=1, ge=1, le=5)
    """Copies of the alert stream in a JetStream cluster."""
    alerts_waiting: int = Field(default=10_000, gt=0)
    """Alerts kept while JetStream or Redis is away; the oldest go first."""
