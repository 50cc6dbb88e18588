"""`stay`, first process of the node's container, around real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from deployment import REPOSITORY

STAY = REPOSITORY / "services" / "node" / "stay.sh"
SERVICE = """
import os, signal, sys
def stop(number, frame):
    print("drained", flush=True)
    sys.exit(7)
signal.signal(signal.SIGTERM, stop)
print(os.getpid(), flush=True)
signal.pause()
"""

Stay = subprocess.Popen[str]


@pytest.fixture
def stay() -> Iterator[Stay]:
    with subprocess.Popen(
        ["/bin/sh", STAY, sys.executable, "-c", SERVICE], stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        process.kill()


def _line(process: Stay) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_a_killed_service_starts_again(stay: Stay) -> None:
    first = int(_line(stay))
    os.kill(first, signal.SIGKILL)
    second = int(_line(stay))
    assert second != first
    stay.terminate()
    assert _line(stay) == "drained"


def test_a_signal_reaches_the_service_and_its_status_is_the_containers(stay: Stay) -> None:
    _line(stay)
    stay.terminate()
    assert _line(stay) == "drained"
    assert stay.wait() == 7


def test_wrong_settings_end_the_container(tmp_path: Path) -> None:
    started = tmp_path / "started"
    script = f"echo once >> {started}; exit 2"
    done = subprocess.run(["/bin/sh", STAY, "sh", "-c", script], timeout=20, check=False)
    assert done.returncode == 2
    assert started.read_text() == "once\n"
