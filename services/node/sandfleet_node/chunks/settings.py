"""What the node tells the chunk server when it starts it. Credentials are in the environment."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ChunkSettings(BaseModel):
    """One server's settings."""

    model_config = ConfigDict(frozen=True)

    device: int
    """Descriptor of /dev/fuse, inherited."""
    socket: str
    """Where the node's requests are taken."""
    cache: str
    """Directory of the cache."""
    cache_bytes: int
    store_url: str
    store_endpoint: str
    store_timeout_seconds: float
    wait_seconds: float
    """A read waits so long for a store that does not answer, then it fails (EIO)."""
    foresight: bool
    """Whether lists of what is read are kept and followed."""
