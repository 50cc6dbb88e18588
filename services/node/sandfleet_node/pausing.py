"""Pausing and resuming: a sandbox stands still, and its memory is the machine's again."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from .sandbox import Sandbox


class Pausing:
    """Freezes and thaws sandboxes. What is done to one sandbox happens one after the other."""

    async def pause(self, sandbox: Sandbox, *, reason: str | None = None) -> None:
        """Freeze a sandbox; its memory is given back after that, in the background.

        It is frozen and on record as paused when this returns. One that is paused already
        stays so.

        Args:
            sandbox: which.
            reason: why, for the log; None: its user asked for it.

        Raises:
            Busy: operations on it are under way that do not come to an end.
            SandboxGone: it is ending.
        """
        raise NotImplementedError

    async def resume(self, sandbox: Sandbox) -> None:
        """Let a paused sandbox run; one that runs already is no error.

        Raises:
            SandboxGone: it is ending.
        """
        raise NotImplementedError

    @asynccontextmanager
    async def using(self, sandbox: Sandbox) -> AsyncGenerator[Sandbox]:
        """Resume a sandbox if it is paused, and keep it from being paused while the block runs.

        Everything that waits for the sandbox's agent belongs into such a block.
        """
        raise NotImplementedError
        yield sandbox

    async def pause_idle(self, target_bytes: int) -> int:
        """Pause idle best-effort sandboxes, longest idle first, until so much memory came back.

        Returns:
            How many bytes were given back; fewer than asked for when no such sandbox is left.
        """
        raise NotImplementedError
