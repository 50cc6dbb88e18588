"""Function calls: code that is forked inside warm sandboxes and leaves nothing behind."""

from .calls import FunctionCalls
from .hearing import Hearing

__all__ = ["FunctionCalls", "Hearing"]
