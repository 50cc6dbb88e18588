"""Starts one of the two: `python -m sandfleet_security sensor` or `... monitor`."""

from __future__ import annotations

import asyncio
import sys

from sandfleet_common.errors import SandfleetError

from .monitor import run_monitor
from .sensor import run_sensor

_ROLES = {"sensor": run_sensor, "monitor": run_monitor}


def main() -> int:
    """Run the role that the command line names, and return the exit status."""
    role = _ROLES.get(sys.argv[1]) if len(sys.argv) == 2 else None
    if role is None:
        sys.stderr.write("usage: python -m sandfleet_security sensor|monitor\n")
        return 2
    try:
        return asyncio.run(role())
    except SandfleetError as problem:
        sys.stderr.write(f"{sys.argv[1]}: {problem.message}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
