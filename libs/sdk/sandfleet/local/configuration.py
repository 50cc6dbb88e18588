"""The files a local platform is configured with: secrets, servers, services.

Secrets are made once and kept. Everything else is written anew at each `up`.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from pathlib import Path

from sandfleet_common.access import redis_config, redis_users, server_config
from sandfleet_common.subjects import ACCESS

from .layout import Layout, write_private
from .parts import SERVICES
from .ports import HOST

_PASSED_ON = ("PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH")
_PASSED_ON_PREFIXES = ("LC_", "PYTHON", "AWS_", *(f"SANDFLEET_{p.name.upper()}_" for p in SERVICES))


def write_all(layout: Layout, ports: Mapping[str, int]) -> dict[str, str]:
    """Write every file of `config/`; returns the NATS passwords by user."""
    passwords = {user: _kept(layout.passwords / user) for user in ACCESS}
    key = _kept(layout.api_key, prefix="sf-")
    digest = hashlib.sha256(key.encode()).hexdigest()
    write_private(layout.api_keys, f"local:{digest}\n")
    _write_servers(layout, ports, passwords)
    for part in SERVICES:
        text = toml_section(part.name, service_settings(part.name, layout, ports, passwords))
        write_private(layout.settings / f"{part.name}.toml", text)
    return passwords


def _write_servers(layout: Layout, ports: Mapping[str, int], passwords: Mapping[str, str]) -> None:
    nats = server_config(dict(passwords), host=HOST, port=ports["nats"], store=layout.nats)
    write_private(layout.config / "nats.conf", nats)
    acl = layout.config / "redis_users.acl"
    write_private(acl, redis_users(passwords))
    # The append-only file matters while the platform is up: which sandbox a job's slot was
    # given is on record nowhere else, and a Redis that is killed and started again must know it.
    redis = redis_config(host=HOST, port=ports["redis"], acl=acl, data=layout.redis)
    write_private(layout.config / "redis.conf", redis)


def service_settings(
    service: str, layout: Layout, ports: Mapping[str, int], passwords: Mapping[str, str]
) -> dict[str, str | int | bool]:
    """Return the settings of one service."""
    found: dict[str, str | int | bool] = {
        "nats_servers": f"nats://{HOST}:{ports['nats']}",
        "nats_password_file": str(layout.passwords / service),
        "metrics_host": HOST,
        "metrics_port": ports[service],
    }
    if service in ("scheduler", "node", "monitor"):
        where = f"{HOST}:{ports['redis']}/0"
        found["redis_url"] = f"redis://{service}:{passwords[service]}@{where}"
    if service == "node":
        found["name"] = layout.node_name()
        found["state_dir"] = str(layout.state)
        found["uid_base"] = layout.uid_base()
        found["stop_sandboxes_on_exit"] = True
    if service == "sensor":
        found["node"] = layout.node_name()
    if service == "gateway":
        found["host"] = HOST
        found["port"] = ports["http"]
        found["api_keys_file"] = str(layout.api_keys)
    return found


def toml_section(name: str, values: Mapping[str, str | int | bool]) -> str:
    """Return one section of a TOML file."""
    return "\n".join([f"[{name}]", *(f"{k} = {json.dumps(v)}" for k, v in values.items())]) + "\n"


def environment(service: str, layout: Layout) -> dict[str, str]:
    """Return what a process of the platform gets to see of this environment.

    A setting in the environment (SANDFLEET_NODE_...) wins over the written file.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    kept["SANDFLEET_STATE_DIR"] = str(layout.state)
    kept["SANDFLEET_CONFIG"] = str(layout.settings / f"{service}.toml")
    return kept


def _kept(path: Path, prefix: str = "") -> str:
    """Return the secret in a file, made now if there is none."""
    try:
        if value := path.read_text().strip():
            return value
    except FileNotFoundError:
        pass
    value = prefix + secrets.token_urlsafe(24)
    write_private(path, value + "\n")
    return value
