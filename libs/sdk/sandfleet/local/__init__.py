"""The whole platform on this machine, behind `sandfleet up` and `sandfleet down`.

    endpoints = local.up(local.state_dir(), progress=print)
    ...
    local.down(local.state_dir(), progress=print)

Each part is a process of its own, detached from the caller. There is no
supervisor: `status` says what has died, and `up` starts it again.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .endpoints import Endpoints, administration, find, state_dir

if TYPE_CHECKING:
    from .platform import down, up
    from .state import PartStatus, status

__all__ = ["Endpoints", "PartStatus", "administration", "down", "find", "state_dir", "status", "up"]

_LATER = {"down": ".platform", "up": ".platform", "PartStatus": ".state", "status": ".state"}
"""What needs NATS, and so is imported only when it is used."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_LATER[name], __name__), name)
