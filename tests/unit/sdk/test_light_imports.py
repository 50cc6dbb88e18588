"""What the command line imports before it knows what it is to do."""

from __future__ import annotations

import subprocess
import sys


def test_the_command_line_starts_without_nats_and_http() -> None:
    program = (
        "import sys, sandfleet.cli.app; "
        "print([m for m in ('nats', 'redis', 'httpx', 'aiohttp') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
