"""The doctor: what this host has and lacks for running sandboxes, and how to mend it.

`python -m sandfleet_node.doctor [--json] [--state DIR]`, or `sandfleet doctor`.
"""

from .check import Check, Status
from .report import main, run_checks

__all__ = ["Check", "Status", "main", "run_checks"]
