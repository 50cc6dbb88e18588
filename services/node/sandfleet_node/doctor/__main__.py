"""`python -m sandfleet_node.doctor`."""

from __future__ import annotations

import sys

from .report import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
