"""Where a local platform listens: `run/endpoints.json`, which `up` writes."""

from __future__ import annotations

import os
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from sandfleet.endpoints import STATE_DIR


class Endpoints(BaseModel):
    """Addresses of a local platform, and where its secrets are."""

    model_config = ConfigDict(frozen=True)

    nats: str
    redis: str
    gateway: str
    user: str = "trainer"
    """NATS user of local clients; its password is in `password_file`."""
    password_file: Path
    api_key_file: Path
    """Holds a key for the gateway."""
    metrics: dict[str, int]
    """Port of /metrics, /healthz and /readyz of each service."""
    pids: dict[str, int]


def state_dir() -> Path:
    """Return the state directory: SANDFLEET_STATE_DIR, else the system's."""
    return Path(os.environ.get("SANDFLEET_STATE_DIR") or STATE_DIR)


def find(state: Path | None = None) -> Endpoints | None:
    """Return where the platform of a state directory listens, None when none is up."""
    path = (state or state_dir()) / "run" / "endpoints.json"
    try:
        return Endpoints.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
