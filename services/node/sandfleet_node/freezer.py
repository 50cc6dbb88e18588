"""Stops and starts all processes of a sandbox at once, with the freezer of cgroup v2."""

from __future__ import annotations

import asyncio
import os
import select
import time
from concurrent.futures import Executor
from pathlib import Path

from .cgroups import Cgroups
from .kernelfiles import parse_flat, write_file

FREEZE_SECONDS = 5.0
"""A process that waits for a disk, say, cannot be stopped before that is over."""


class Freezer:
    """Freezes sandboxes. One that is frozen can be killed all the same."""

    def __init__(self, cgroups: Cgroups, pool: Executor) -> None:
        self._cgroups = cgroups
        self._pool = pool

    async def freeze(self, sandbox_id: str) -> bool:
        """Stop all processes, those in groups below too; False if one did not stop in time.

        Raises:
            OSError: the sandbox has gone, or the kernel has no freezer (before 5.2).
        """
        directory = self._cgroups.v2_dir(sandbox_id)
        write_file(f"{directory}/cgroup.freeze", "1")
        if self.is_frozen(sandbox_id):
            return True
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._pool, _until_frozen, directory)

    def thaw(self, sandbox_id: str) -> None:
        """Let all processes go on. A sandbox that has gone is no error."""
        try:
            write_file(f"{self._cgroups.v2_dir(sandbox_id)}/cgroup.freeze", "0")
        except OSError:
            return

    def is_frozen(self, sandbox_id: str) -> bool:
        """Return whether all its processes stand still."""
        try:
            text = Path(self._cgroups.v2_dir(sandbox_id), "cgroup.events").read_text()
        except OSError:
            return False
        return parse_flat(text).get("frozen", 0) == 1


def _until_frozen(directory: str) -> bool:
    """Wait for the kernel's word, which comes as an exceptional event of the file."""
    deadline = time.monotonic() + FREEZE_SECONDS
    handle = os.open(f"{directory}/cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    try:
        waiting = select.poll()
        waiting.register(handle, select.POLLPRI)
        while True:
            if parse_flat(os.pread(handle, 4096, 0).decode()).get("frozen", 0) == 1:
                return True
            left = deadline - time.monotonic()
            if left <= 0:
                return False
            waiting.poll(left * 1000)
    finally:
        os.close(handle)
