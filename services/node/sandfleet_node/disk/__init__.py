"""Where sandboxes write, and the caps of it that hold."""

from .disks import Disks
from .stages import Stage

__all__ = ["Disks", "Stage"]
