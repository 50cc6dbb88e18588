"""Removes what has been moved to the trash, in a process of its own.

A sandbox decides how many files it leaves and how deep; `rm` copes with both, and
does not hold up the service while it works.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from itertools import islice
from pathlib import Path

from sandfleet_common.logs import Logger

_AT_ONCE = 64
_FAILED_SECONDS = 5.0


class Janitor:
    """Empties one trash directory. `run` does the work."""

    def __init__(self, trash: Path, log: Logger) -> None:
        self._trash = trash
        self._log = log
        self._more = asyncio.Event()
        self._more.set()

    def wake(self) -> None:
        """Something lies in the trash."""
        self._more.set()

    async def run(self) -> None:
        """Remove until cancelled."""
        while True:
            await self._more.wait()
            self._more.clear()
            while paths := self._waiting():
                if not await self._remove(paths):
                    await asyncio.sleep(_FAILED_SECONDS)

    async def empty(self) -> None:
        """Remove all that lies in the trash now."""
        while paths := self._waiting():
            if not await self._remove(paths):
                return

    def _waiting(self) -> list[str]:
        return [str(path) for path in islice(self._trash.iterdir(), _AT_ONCE)]

    async def _remove(self, paths: list[str]) -> bool:
        try:
            process = await asyncio.create_subprocess_exec(
                "rm", "-rf", "--one-file-system", "--", *paths,
                stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE,
            )  # fmt: skip
        except OSError as problem:  # no memory, no process or no descriptor to be had just now
            self._log.warning("janitor.failed", said=str(problem))
            return False
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            with suppress(ProcessLookupError):  # it has just ended
                process.kill()
            await process.wait()
            raise
        if process.returncode:
            self._log.warning("janitor.failed", said=said.decode(errors="replace")[:500])
        return process.returncode == 0
