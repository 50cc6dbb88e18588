"""The platform's processes: starting them detached, knowing them again, ending them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from sandfleet_common.errors import NotFound

from . import starter

POLL_SECONDS = 0.02
LOG_MAX_BYTES = 16 * 1024**2
"""A log longer than this is set aside when its part starts."""


class Process(BaseModel):
    """Which process a part is; a process id alone may mean another one by now."""

    model_config = ConfigDict(frozen=True)

    pid: int
    started: int
    """Clock ticks from boot to its start."""
    boot: str

    def is_alive(self) -> bool:
        """Whether it still runs; one that only waits to be reaped does not."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
            boot = starter.BOOT_ID.read_text().strip()
        except (FileNotFoundError, ProcessLookupError):
            return False
        fields = stat.rpartition(")")[2].split()
        return fields[0] not in "ZX" and int(fields[19]) == self.started and boot == self.boot


def recorded(record: Path) -> Process | None:
    """Return the process a record names, whether or not it lives."""
    try:
        return Process.model_validate_json(record.read_bytes())
    except (OSError, ValidationError):
        return None


def alive(record: Path) -> Process | None:
    """Return the process a record names if it lives."""
    process = recorded(record)
    return process if process is not None and process.is_alive() else None


def start(record: Path, log: Path, argv: Sequence[str], env: Mapping[str, str]) -> Process:
    """Start a program detached from this process.

    Raises:
        NotFound: it cannot be run.
    """
    if log.exists() and log.stat().st_size > LOG_MAX_BYTES:
        log.replace(log.with_suffix(".log.1"))
    script = [sys.executable, "-I", "-S", starter.__file__, str(record), str(log), *argv]
    done = subprocess.run(
        script, env=env, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, check=True
    )
    process = recorded(record)
    if done.stdout or process is None:
        raise NotFound(f"cannot run {argv[0]}: {done.stdout.decode(errors='replace')}")
    return process


def stop(record: Path, seconds: float) -> bool:
    """End the process a record names; returns False if it had to be killed.

    None, or one that is gone already, counts as ended by itself.
    """
    process = alive(record)
    gentle = process is None or _signal_and_wait(process, signal.SIGTERM, seconds)
    if not gentle and process is not None:
        _signal_and_wait(process, signal.SIGKILL, 10)
    record.unlink(missing_ok=True)
    return gentle


def _signal_and_wait(process: Process, number: signal.Signals, seconds: float) -> bool:
    # A descriptor names the process, not its number, which might be given to another.
    try:
        descriptor = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return True
    try:
        if not process.is_alive():
            return True
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(descriptor, number)
        until = time.monotonic() + seconds
        while process.is_alive():
            if time.monotonic() > until:
                return False
            time.sleep(POLL_SECONDS)
        return True
    finally:
        os.close(descriptor)


def last_lines(log: Path, count: int = 5) -> list[str]:
    """Return the end of a log."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 65_536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return []
    return [line.strip() for line in lines if line.strip()][-count:]
