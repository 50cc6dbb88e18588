"""Who may do what on NATS and Redis: the servers' configuration, and each service's secrets.

Permissions come from `subjects.ACCESS`, so a subject that is not in the table is
closed to everybody but the administrator.

`python -m sandfleet_common.access` writes all of it for a deployment in containers:
a directory for each user (`--out`), or Kubernetes secrets on the standard output
(`--secrets`). Secrets so reach a service as one file that nobody else mounts,
`settings.toml`, named by SANDFLEET_CONFIG.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from .subjects import ACCESS, Access

ANSWER_EXPIRES = "65m"
"""Longer than the longest wait of any question (creating a sandbox: an hour)."""
MAX_PAYLOAD_BYTES = 4 * 1024 * 1024
REDIS_USERS = ("scheduler", "node", "monitor")
REDIS_PROBE = "probe"
"""A user without a password that may ping, and nothing else; for health checks."""
"""Services that keep live state. The gateway and the sensor have no business there."""
CLIENT = "client"
"""Whose password is the first API key; the gateway gets its hash."""
USERS = (*ACCESS, "grafana", CLIENT)
"""Everybody who has a password."""


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
        permissions["allow_responses"] = {"max": 1, "expires": ANSWER_EXPIRES}
    return {"user": name, "password": password, "permissions": permissions}


def redis_users(passwords: Mapping[str, str]) -> str:
    """Return the text of a Redis ACL file: the services' users, and a probe that may only ping.

    A service reads and writes keys below `sf:`, and has no command that administers
    the server. The file holds hashes, not passwords. Nobody can log in as the default
    user; it keeps its rights because Redis replays its append-only file as that user,
    and without them would drop every transaction and script in it.
    """
    lines = [
        "user default off resetpass ~* &* +@all",
        f"user {REDIS_PROBE} on nopass resetkeys resetchannels -@all +ping",
    ]
    for name in REDIS_USERS:
        digest = hashlib.sha256(passwords[name].encode()).hexdigest()
        lines.append(
            f"user {name} on #{digest} ~sf:* resetchannels "
            "-@all +@read +@write +@connection +@transaction +@scripting -@admin -@dangerous"
        )
    return "\n".join(lines) + "\n"


def redis_config(*, host: str, port: int, acl: Path, data: Path) -> str:
    """Return the text of a redis-server configuration file; state survives a restart."""
    return (
        f"port {port}\nbind {host}\naclfile {acl}\ndir {data}\n"
        "appendonly yes\nappendfsync everysec\nmaxmemory-policy noeviction\n"
    )


@dataclass(frozen=True, slots=True)
class Deployment:
    """Where the servers of a deployment are, and the password of every user."""

    nats: str = "nats://nats:4222"
    redis: str = "redis:6379"
    listen: str = "0.0.0.0"
    monitor_port: int = 8222
    nats_data: Path = Path("/data")
    redis_data: Path = Path("/data")
    mounted_at: Path = Path("/etc/sandfleet")
    """Where each container mounts its own directory."""
    passwords: Mapping[str, str] = field(
        default_factory=lambda: {name: secrets.token_urlsafe(24) for name in USERS}
    )

    def files(self) -> Iterator[tuple[str, str, str]]:
        """Return every file as (owner, name, text)."""
        yield (
            "nats",
            "nats.conf",
            server_config(
                dict(self.passwords),
                host=self.listen,
                port=int(self.nats.rpartition(":")[2]),
                store=self.nats_data / "jetstream",
                monitor_port=self.monitor_port,
            ),
        )
        port = int(self.redis.rpartition(":")[2])
        acl = self.mounted_at / "users.acl"
        yield (
            "redis",
            "redis.conf",
            redis_config(host=self.listen, port=port, acl=acl, data=self.redis_data),
        )
        yield "redis", "users.acl", redis_users(self.passwords)
        key = hashlib.sha256(self.passwords[CLIENT].encode()).hexdigest()
        yield "gateway", "api-keys", f"{CLIENT}:{key}\n"
        for name, password in self.passwords.items():
            yield name, "password", password + "\n"
            if name in ACCESS:
                yield name, "settings.toml", self._settings(name)

    def _settings(self, name: str) -> str:
        lines = [f"[{name}]", f"nats_servers = {json.dumps(self.nats)}"]
        lines += [f"nats_password = {json.dumps(self.passwords[name])}"]
        if name == "gateway":
            lines.append(f"api_keys_file = {json.dumps(str(self.mounted_at / 'api-keys'))}")
        if name in REDIS_USERS:
            url = f"redis://{name}:{self.passwords[name]}@{self.redis}/0"
            lines.append(f"redis_url = {json.dumps(url)}")
        return "\n".join(lines) + "\n"


def write(deployment: Deployment, out: Path, *, shared: bool) -> None:
    """Write each owner's files into a directory of its own below `out`.

    Files can be read by their owner only, or, when `shared`, by every user of the
    container that mounts the directory.
    """
    for owner, name, text in deployment.files():
        place = out / owner
        place.mkdir(parents=True, exist_ok=True, mode=0o755 if shared else 0o700)
        fresh = place / f".{name}.new"
        fresh.unlink(missing_ok=True)
        fresh.touch(mode=0o600)
        fresh.write_text(text)
        fresh.chmod(0o444 if shared else 0o400)
        fresh.replace(place / name)


def known_passwords(out: Path) -> dict[str, str]:
    """Return the passwords an earlier run left, and new ones for users that had none."""
    known: dict[str, str] = {}
    for name in USERS:
        try:
            known[name] = (out / name / "password").read_text().strip()
        except FileNotFoundError:
            known[name] = secrets.token_urlsafe(24)
    return known


def kubernetes_secrets(deployment: Deployment, namespace: str) -> dict[str, object]:
    """Return a Kubernetes list with one secret for each owner, `sandfleet-<owner>`."""
    held: dict[str, dict[str, str]] = {}
    for owner, name, text in deployment.files():
        held.setdefault(owner, {})[name] = text
    return {
        "apiVersion": "v1",
        "kind": "List",
        "items": [_secret(k, v, namespace) for k, v in held.items()],
    }


def _secret(owner: str, texts: dict[str, str], namespace: str) -> dict[str, object]:
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": f"sandfleet-{owner}",
            "namespace": namespace,
            "labels": {"app.kubernetes.io/part-of": "sandfleet"},
        },
        "stringData": texts,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files or the secrets of a deployment; running it again keeps passwords."""
    parser = argparse.ArgumentParser(
        prog="python -m sandfleet_common.access", description=main.__doc__
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument("--out", type=Path, metavar="DIR", help="write DIR/<user>/...")
    target.add_argument("--secrets", metavar="NAMESPACE", help="print Kubernetes secrets")
    parser.add_argument("--host", default="nats", help="where clients find NATS")
    parser.add_argument("--port", type=int, default=4222)
    parser.add_argument("--redis", default="redis:6379", metavar="HOST:PORT")
    parser.add_argument("--shared", action="store_true", help="files readable by every user")
    chosen = parser.parse_args(arguments)
    nats = f"nats://{chosen.host}:{chosen.port}"
    if chosen.secrets:
        found = kubernetes_secrets(Deployment(nats=nats, redis=chosen.redis), chosen.secrets)
        sys.stdout.write(json.dumps(found, indent=2) + "\n")
        return 0
    passwords = known_passwords(chosen.out)
    write(
        Deployment(nats=nats, redis=chosen.redis, passwords=passwords),
        chosen.out,
        shared=chosen.shared,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
