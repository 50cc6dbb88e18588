"""What is under way with one sandbox that is, or once was, paused."""

from __future__ import annotations

import asyncio
import threading


class Turn:
    """Who may freeze or thaw a sandbox now, and what follows in the background."""

    __slots__ = ("fetching", "given_bytes", "giving", "lock", "quiet", "stop")

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        """Held while it is frozen or thawed: one at a time."""
        self.quiet: asyncio.Future[None] | None = None
        """Somebody waits for it: done when no operation is under way."""
        self.stop = threading.Event()
        """Set when what gives memory back in a thread shall leave off."""
        self.giving: asyncio.Task[None] | None = None
        self.fetching: asyncio.Task[None] | None = None
        self.given_bytes = 0
        """By the last pause."""

    def is_quiet(self) -> None:
        """No operation is under way any more: tell whoever waits for that."""
        if self.quiet is not None and not self.quiet.done():
            self.quiet.set_result(None)
