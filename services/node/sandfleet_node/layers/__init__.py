"""Layers and environments: immutable EROFS images, and named stacks of them.

A `Store` holds them, a directory (`DirectoryStore`) or an object store; the `Catalog` says what
a reference stands for. Building a base layer is a command of its own:
`python -m sandfleet_node.layers build-base --state DIR`.
"""

from .catalog import Catalog, Resolved
from .directory import DirectoryStore
from .opening import open_store
from .store import LayerFiles, Store, StoredLayer

__all__ = [
    "Catalog",
    "DirectoryStore",
    "LayerFiles",
    "Resolved",
    "Store",
    "StoredLayer",
    "open_store",
]
