"""What the node tells the chunk server when it starts it. Credentials are in the environment."""

from __future__ import annotations

import hashlib

from pydantic import BaseModel, ConfigDict

PROTOCOL = 1
"""Grows with every change after which a node cannot use a server of before."""


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

    @property
    def identity(self) -> str:
        """What tells servers apart: the settings, and the code's version of this protocol."""
        text = f"{PROTOCOL} {self.model_dump_json()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
