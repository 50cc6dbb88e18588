"""Where the bus is, and how patient its clients are."""

from __future__ import annotations

from dataclasses import dataclass

CONNECT_SECONDS = 10.0
PUBLISH_SECONDS = 5.0
RECONNECT_FIRST_SECONDS = 0.05
RECONNECT_MOST_SECONDS = 5.0
FINISH_SECONDS = 5.0
"""What a closing bus gives to requests it is answering."""
GRACE_SECONDS = 5.0
"""After a reconnection the others may still be on their way: nobody answering is no news yet."""


@dataclass(frozen=True, slots=True)
class BusSettings:
    """Where the bus is and who we are there."""

    servers: tuple[str, ...]
    user: str
    password: str
    name: str
    """Shown by the server's monitoring."""


def reconnect_delay(attempt: int, roll: float) -> float:
    """Return seconds before reconnect `attempt` (from 1); `roll` in 0..1 spreads clients apart."""
    ceiling = min(RECONNECT_MOST_SECONDS, RECONNECT_FIRST_SECONDS * 2 ** min(attempt - 1, 16))
    return ceiling * (0.5 + roll / 2)
