"""Layers and environments: immutable EROFS images, and named stacks of them.

`LayerStore` is what the node reads. Building a base layer is a command of its own:
`python -m sandfleet_node.layers build-base --state DIR`.
"""

from .manifest import Environment, Manifest
from .store import LayerStore

__all__ = ["Environment", "LayerStore", "Manifest"]
