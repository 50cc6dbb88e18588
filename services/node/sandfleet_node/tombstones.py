"""Sandboxes that have ended lately, so that whoever asks for one learns why."""

from __future__ import annotations

from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import SandboxInfo


class Tombstones:
    """Ended sandboxes by id, in memory and in a file; bounded in time and number."""

    def __init__(self, path: Path, keep_seconds: float, keep: int) -> None:
        self._path = path
        self._keep_seconds = keep_seconds
        self._keep = keep
        self._known: OrderedDict[str, tuple[float, bytes]] = OrderedDict()
        self._lines = 0
        self._is_torn = False

    def __len__(self) -> int:
        return len(self._known)

    def load(self, now: float) -> None:
        """Read what an earlier service wrote, and drop from the file what is old."""
        try:
            lines = self._path.read_bytes().splitlines()
        except FileNotFoundError:
            return
        for line in lines:
            try:
                info = SandboxInfo.decode(line)
            except BadRequest:
                continue  # a line cut short
            self._known[info.sandbox_id] = (info.ended_at or now, line)
        self._prune(now)
        with suppress(OSError):  # the disk is full: the old file does as well
            self._rewrite()

    def add(self, info: SandboxInfo, now: float) -> None:
        """Remember an ended sandbox.

        Raises:
            OSError: it is remembered, but not beyond the life of this service.
        """
        line = info.encode()
        self._known[info.sandbox_id] = (info.ended_at or now, line)
        self._prune(now)
        if self._lines > 2 * max(1000, len(self._known)):
            self._rewrite()
            return
        try:
            with self._path.open("ab") as file:
                file.write((b"\n" if self._is_torn else b"") + line + b"\n")
        except OSError:
            self._is_torn = True  # it may end in half a line, which costs that line only
            raise
        self._is_torn = False
        self._lines += 1

    def get(self, sandbox_id: str) -> SandboxInfo | None:
        """Return how a sandbox ended, if it did so lately."""
        found = self._known.get(sandbox_id)
        return None if found is None else SandboxInfo.decode(found[1])

    def _prune(self, now: float) -> None:
        while self._known:
            ended_at, _ = next(iter(self._known.values()))
            if ended_at > now - self._keep_seconds and len(self._known) <= self._keep:
                return
            self._known.popitem(last=False)

    def _rewrite(self) -> None:
        beside = self._path.with_suffix(".new")
        beside.write_bytes(b"".join(line + b"\n" for _, line in self._known.values()))
        beside.replace(self._path)
        self._lines = len(self._known)


__all__ = ["Tombstones"]
