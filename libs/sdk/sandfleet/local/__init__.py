"""The whole platform on this machine, behind `sandfleet up` and `sandfleet down`.

    endpoints = local.up(local.state_dir(), progress=print)
    ...
    local.down(local.state_dir(), progress=print)

Each part is a process of its own, detached from the caller. There is no
supervisor: `status` says what has died, and `up` starts it again.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .endpoints import Endpoints, find, state_dir
from .state import PartStatus, status

if TYPE_CHECKING:
    from .platform import down, up

__all__ = ["Endpoints", "PartStatus", "down", "find", "state_dir", "status", "up"]


def __getattr__(name: str) -> Any:
    """Import what starts and stops the platform only when it is used: it needs NATS."""
    if name in ("down", "up"):
        return getattr(import_module(".platform", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
