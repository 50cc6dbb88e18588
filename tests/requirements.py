"""What a test needs of its host; without it the test skips with the line of `sandfleet doctor`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
NATIVE = REPOSITORY / "native" / "build" / "sandfleet-native"


def need_root() -> None:
    """Skip unless the test runs as root with the native binary built."""
    if os.geteuid() != 0:
        pytest.skip("doctor line `root`: sandboxes need root; run the tests as root")
    if not NATIVE.exists():
        pytest.skip("doctor line `native`: the native binary is not built; run `make native`")
