"""Snapshots and forks: what a sandbox has written, packed into a layer."""

from .forks import Forks
from .making import Making
from .records import SnapshotRecords
from .rules import read_rules
from .snapshots import Snapshots
from .storing import Storing

__all__ = ["Forks", "Making", "SnapshotRecords", "Snapshots", "Storing", "read_rules"]
