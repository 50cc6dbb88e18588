"""Function calls: code that is forked inside warm sandboxes and leaves nothing behind."""

from .calls import FunctionCalls, is_warm
from .hearing import Hearing

__all__ = ["FunctionCalls", "Hearing", "is_warm"]
