"""Layers read on demand: a server of its own behind a FUSE mount, and the node's side of it.

`python -m sandfleet_node.chunks` answers the kernel's reads from a cache on disk and fetches
what is missing from the store, verified chunk by chunk. It outlives the node service.
"""

from .service import Chunks

__all__ = ["Chunks"]
