"""Settings of the gateway, read from SANDFLEET_GATEWAY_*."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from sandfleet_common.messages import MIB
from sandfleet_common.settings import ServiceSettings


class GatewaySettings(ServiceSettings):
    """What one replica of the gateway needs to know."""

    host: str = "127.0.0.1"
    port: int = Field(default=8080, ge=0, le=65535)
    """0: any free port; the event `gateway.listening` says which."""

    api_keys_file: Path | None = None
    """File with a line `name:sha256hex` for each API key; read again when it changes."""
    call_keys: list[str] = Field(default_factory=list[str])
    """Names of keys that open nothing but function calls: those that stand in a URL."""
    open_to_loopback: bool = False
    """Take requests without a key from programs of this machine. Never from a browser's
    foreign page and never through a proxy."""

    body_limit_bytes: int = Field(default=3 * MIB, ge=65_536, le=3 * MIB)
    """Largest JSON body; what is larger does not fit on the bus."""
    requests_max: int = Field(default=5000, gt=0)
    """Requests under way at once; one more is answered with `busy`."""
    ask_seconds: float = Field(default=30, gt=0, le=100)
    """How long an answer is awaited, beyond the time for which it is held back on purpose."""
    run_code_environment: str = "debian"
    """Environment in which POST /run_code runs code."""
    run_code_queue_seconds: float = Field(default=8, ge=0, le=600)
    """How long such code waits for a warm sandbox. verl gives up ten seconds after the limits
    it asked for, so it should be less."""
    upload_silence_seconds: float = Field(default=60, gt=0)
    """An upload that sends nothing for so long is given up."""
    events_keepalive_seconds: float = Field(default=15, gt=0, le=50)
    """A quiet stream of job events sends a comment, and looks for events it missed, so often."""

    sockets_max: int = Field(default=4000, gt=0)
    """WebSocket sessions at once."""
    sockets_per_key: int = Field(default=2000, gt=0)
    """WebSocket sessions at once for one API key."""
    channels_per_socket: int = Field(default=64, gt=0, le=1024)
    """Commands at once on one session."""
    window_bytes: int = Field(default=MIB, ge=65_536, le=16 * MIB)
    """Largest window of one channel, and so the most output held for it here."""
    socket_message_bytes: int = Field(default=MIB, ge=65_536, le=4 * MIB)
    """Largest message that a session takes."""
    ping_seconds: float = Field(default=20, gt=0)
    """How often a session is pinged."""
    pong_seconds: float = Field(default=60, gt=0)
    """A session that does not answer a ping for so long is closed."""
    quiet_seconds: float = Field(default=10, gt=0, le=30)
    """A channel on which the node says nothing for so long is attached anew: the node
    may have been started anew and know nothing of it."""
    reattach_seconds: float = Field(default=30, gt=0)
    """How long a channel whose node does not answer is tried again."""
