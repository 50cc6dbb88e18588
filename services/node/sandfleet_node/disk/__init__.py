"""Where sandboxes write, and the caps of it that hold."""

from .disks import Disks

__all__ = ["Disks"]
