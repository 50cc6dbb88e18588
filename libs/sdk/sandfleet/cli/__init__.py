"""The command `sandfleet`: the platform and its sandboxes, by hand. Needs the extra `cli`."""

from __future__ import annotations

import sys

try:
    from .app import main
except ModuleNotFoundError as problem:
    if problem.name not in ("click", "rich"):
        raise
    sys.exit(f"sandfleet: the command line needs {problem.name!r}: pip install 'sandfleet[cli]'")

__all__ = ["main"]
