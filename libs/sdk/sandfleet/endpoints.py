"""Where the platform is: given, from the environment, or the one running on this machine.

The order is: what the caller gave; `SANDFLEET_NATS`; `SANDFLEET_URL` with
`SANDFLEET_API_KEY`; the file `run/endpoints.json` that `sandfleet up` writes into
the state directory (`SANDFLEET_STATE_DIR`, else /var/lib/sandfleet).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from pydantic import BaseModel, ValidationError

from sandfleet_common.errors import BadRequest, Denied, NotFound

STATE_DIR = Path("/var/lib/sandfleet")


@dataclass(frozen=True, slots=True)
class NatsPlace:
    """A NATS server and who we are there."""

    servers: tuple[str, ...]
    user: str = "trainer"
    password: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True)
class GatewayPlace:
    """A gateway and the key that opens it."""

    url: str
    api_key: str = field(default="", repr=False)


Place = NatsPlace | GatewayPlace


class _Endpoints(BaseModel):
    nats: str
    gateway: str | None = None
    user: str = "trainer"
    password_file: Path
    api_key_file: Path | None = None


def find(
    *,
    nats: str | None = None,
    url: str | None = None,
    api_key: str | None = None,
    state: Path | str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Place:
    """Return where the platform is.

    Raises:
        BadRequest: an address is malformed, or two were given.
        NotFound: none was given, and none runs here.
    """
    env = os.environ if environment is None else environment
    if nats is not None and url is not None:
        raise BadRequest("give nats or url, not both")
    if nats is not None:
        return nats_place(nats)
    key = api_key if api_key is not None else env.get("SANDFLEET_API_KEY", "")
    if url is not None:
        return gateway_place(url, key)
    if state is None:
        if env.get("SANDFLEET_NATS"):
            return nats_place(env["SANDFLEET_NATS"])
        if env.get("SANDFLEET_URL"):
            return gateway_place(env["SANDFLEET_URL"], key)
    return local_place(Path(state or env.get("SANDFLEET_STATE_DIR") or STATE_DIR))


def nats_place(text: str) -> NatsPlace:
    """Parse `nats://user:password@host:port`, several separated by commas.

    Raises:
        BadRequest: it is not such an address.
    """
    servers: list[str] = []
    user, password = "trainer", ""
    for part in filter(None, (p.strip() for p in text.split(","))):
        url = urlsplit(part if "://" in part else f"nats://{part}")
        if url.scheme not in ("nats", "tls") or not url.hostname:
            raise BadRequest("a NATS address looks like nats://user:password@host:4222")
        if url.username:
            user, password = unquote(url.username), unquote(url.password or "")
        servers.append(f"{url.scheme}://{url.netloc.rpartition('@')[2]}")
    if not servers:
        raise BadRequest("a NATS address looks like nats://user:password@host:4222")
    return NatsPlace(tuple(servers), user, password)


def gateway_place(url: str, api_key: str) -> GatewayPlace:
    """Parse the address of a gateway.

    Raises:
        BadRequest: it is not an http or https address.
    """
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise BadRequest(f"{url[:80]!r} is not the address of a gateway (http://host:port)")
    return GatewayPlace(url.rstrip("/"), api_key.strip())


def local_place(state: Path) -> NatsPlace:
    """Return where the platform with this state directory listens.

    Raises:
        NotFound: none is up.
        Denied: it is up, but not for this user of the machine.
    """
    path = state / "run" / "endpoints.json"
    try:
        found = _Endpoints.model_validate_json(path.read_bytes())
        password = found.password_file.read_text().strip()
    except PermissionError:
        raise Denied(f"the platform in {state} belongs to another user of this machine") from None
    except (OSError, ValidationError):
        raise NotFound(
            f"no platform is up in {state}: start one with `sandfleet up`, or set SANDFLEET_NATS, "
            "or SANDFLEET_URL and SANDFLEET_API_KEY"
        ) from None
    place = nats_place(found.nats)
    return NatsPlace(place.servers, found.user, password)


def local_gateway(state: Path) -> GatewayPlace:
    """Return the gateway of the platform with this state directory.

    Raises:
        NotFound: it is not up, or has no gateway.
    """
    path = state / "run" / "endpoints.json"
    try:
        found = _Endpoints.model_validate_json(path.read_bytes())
        if found.gateway is None or found.api_key_file is None:
            raise NotFound(f"the platform in {state} has no gateway")
        return gateway_place(found.gateway, found.api_key_file.read_text().strip())
    except (OSError, ValidationError):
        raise NotFound(f"no platform is up in {state}") from None
