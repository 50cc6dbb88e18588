"""Where a local platform listens: `run/endpoints.json`, which `up` writes."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote

from pydantic import BaseModel, ConfigDict, ValidationError

from sandfleet.endpoints import STATE_DIR
from sandfleet_common.errors import Denied, NotFound

from .layout import Layout


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


def administration(state: Path | None = None) -> str:
    """Return NATS's address with the administrator's password, of the platform that is up here.

    Raises:
        NotFound: none is up.
        Denied: this user may not read the password.
    """
    where = state or state_dir()
    found = find(where)
    if found is None:
        raise NotFound("no platform is up on this machine: name its NATS with --nats")
    try:
        password = (Layout(where).passwords / "admin").read_text().strip()
    except OSError as problem:
        raise Denied(f"cannot read the administrator's password: {problem.strerror}") from None
    return found.nats.replace("nats://", f"nats://admin:{quote(password, safe='')}@", 1)


def find(state: Path | None = None) -> Endpoints | None:
    """Return where the platform of a state directory listens, None when none is up."""
    path = (state or state_dir()) / "run" / "endpoints.json"
    try:
        return Endpoints.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
