"""The whole platform on this machine, behind `sandfleet up` and `sandfleet down`.

    endpoints = local.up(local.state_dir(), progress=print)
    ...
    local.down(local.state_dir(), progress=print)

Each part is a process of its own, detached from the caller. There is no
supervisor: `status` says what has died, and `up` starts it again.
"""

from .endpoints import Endpoints, find, state_dir
from .platform import down, up
from .state import PartStatus, status

__all__ = ["Endpoints", "PartStatus", "down", "find", "state_dir", "status", "up"]
