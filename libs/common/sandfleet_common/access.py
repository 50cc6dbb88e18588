"""The NATS server's configuration: one user per service, with just the subjects it needs.

Permissions come from `subjects.ACCESS`, so a subject that is not in the table is
closed to everybody but the administrator.
"""

from __future__ import annotations

import json
from pathlib import Path

from .subjects import ACCESS, Access

MAX_PAYLOAD_BYTES = 4 * 1024 * 1024


def server_config(
    passwords: dict[str, str], *, host: str, port: int, store: Path, monitor_port: int | None = None
) -> str:
    """Return the text of a nats-server configuration file.

    Args:
        passwords: one for each user of `subjects.ACCESS`.
        host: address to listen on.
        port: client port.
        store: JetStream's directory.
        monitor_port: port of the HTTP monitoring endpoint, on the same address.
    """
    users = [_user(name, passwords[name], access) for name, access in ACCESS.items()]
    config = {
        "server_name": "sandfleet",
        "listen": f"{host}:{port}",
        "max_payload": MAX_PAYLOAD_BYTES,
        "max_pending": 256 * 1024 * 1024,
        "write_deadline": "10s",
        "jetstream": {
            "store_dir": str(store),
            "max_memory_store": 64 * 1024 * 1024,
            "max_file_store": 1024**3,
        },
        "authorization": {"timeout": 5, "users": users},
    }
    if monitor_port is not None:
        config["http"] = f"{host}:{monitor_port}"
    return json.dumps(config, indent=2) + "\n"


def _user(name: str, password: str, access: Access) -> dict[str, object]:
    inbox = f"_INBOX.{name}.>"
    permissions: dict[str, object] = {
        "publish": {"allow": [*access.publish]},
        "subscribe": {"allow": [inbox, *access.subscribe]},
    }
    if access.answers:
        permissions["allow_responses"] = {"max": 1, "expires": "3m"}
    return {"user": name, "password": password, "permissions": permissions}
