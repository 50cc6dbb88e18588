"""What of a local platform runs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .endpoints import Endpoints, find
from .layout import Layout
from .parts import PARTS, Part
from .processes import alive, recorded
from .readiness import is_ready

Condition = Literal["ready", "not ready", "died", "stopped"]


@dataclass(frozen=True, slots=True)
class PartStatus:
    """How one process of the platform is."""

    name: str
    condition: Condition
    pid: int | None
    port: int | None
    """Where clients find it; None: on NATS alone."""
    metrics_port: int | None
    """Of /metrics, /healthz and /readyz; None: it has none."""
    log: Path


def status(state: Path) -> list[PartStatus]:
    """Say of each part that was started whether it runs and answers.

    Empty when no platform is up.
    """
    layout = Layout(state)
    endpoints = find(state)
    started = set(endpoints.pids) if endpoints is not None else set[str]()
    return [
        _status(part, layout, endpoints)
        for part in PARTS
        if part.name in started or layout.record(part.name).exists()
    ]


def _status(part: Part, layout: Layout, endpoints: Endpoints | None) -> PartStatus:
    port = metrics = None
    if endpoints is not None:
        port, metrics = port_of(part, endpoints), endpoints.metrics.get(part.name)
    asked = metrics or port
    record = layout.record(part.name)
    process = alive(record)
    condition: Condition
    if process is not None:
        condition = "ready" if asked is not None and is_ready(part, asked) else "not ready"
    else:
        condition = "died" if recorded(record) is not None else "stopped"
    return PartStatus(
        part.name,
        condition,
        process.pid if process else None,
        port,
        metrics,
        layout.log_of(part.name),
    )


def port_of(part: Part, endpoints: Endpoints) -> int | None:
    """Return where clients find a part, None when it only listens on NATS."""
    known = {"nats": endpoints.nats, "redis": endpoints.redis, "gateway": endpoints.gateway}
    address = known.get(part.name)
    return None if address is None else int(address.rpartition(":")[2].partition("/")[0])
