"""Watching files without watches: look, wait, look again, tell the difference."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field
from typing import Self

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import FileProblem, NotFound
from sandfleet_common.messages import FileChange, FileEntry, FileType

from .calls import call
from .transfer import join
from .transport import FilePlace, Transport

PAUSE_SECONDS = 1.0
MOST_ENTRIES = 10_000
"""A tree with more is not followed to its end."""

Snapshot = dict[str, FileEntry]


def differences(before: Snapshot, after: Snapshot) -> list[tuple[FileChange, str]]:
    """Return what happened between two looks, by path."""
    changes = [(FileChange.REMOVE, path) for path in before.keys() - after.keys()]
    for path, entry in after.items():
        old = before.get(path)
        if old is None:
            changes.append((FileChange.CREATE, path))
        elif (old.size, old.modified_at, old.type) != (entry.size, entry.modified_at, entry.type):
            if entry.type is not FileType.DIRECTORY:
                changes.append((FileChange.WRITE, path))
        elif old.mode != entry.mode:
            changes.append((FileChange.CHMOD, path))
    return sorted(changes, key=lambda change: change[1])


@dataclass(slots=True)
class PolledFeed:
    """Changes below a path, found by listing it once a second."""

    transport: Transport
    place: FilePlace
    recursive: bool
    seen: Snapshot
    _waiting: deque[m.FileEvent] = field(default_factory=deque[m.FileEvent])
    _sequence: int = 0

    @classmethod
    async def open(cls, transport: Transport, place: FilePlace, *, recursive: bool) -> Self:
        """Look for the first time.

        Raises:
            FileProblem: there is no such directory.
        """
        feed = cls(transport, place, recursive, {})
        feed.seen = await feed._look()
        return feed

    async def next(self) -> m.FileEvent | None:
        """Wait for the next change."""
        while not self._waiting:
            await asyncio.sleep(PAUSE_SECONDS)
            now = await self._look()
            for kind, path in differences(self.seen, now):
                self._sequence += 1
                self._waiting.append(
                    m.FileEvent(watch="", sequence=self._sequence, kind=kind, path=path)
                )
            self.seen = now
        return self._waiting.popleft()

    async def _look(self) -> Snapshot:
        found: Snapshot = {}
        folders = [""]
        while folders and len(found) < MOST_ENTRIES:
            folder = folders.pop()
            for entry in await self._list(folder):
                path = join(folder, entry.name) if folder else entry.name
                found[path] = entry
                if self.recursive and entry.type is FileType.DIRECTORY:
                    folders.append(path)
        return found

    async def _list(self, folder: str) -> list[FileEntry]:
        path = join(self.place.path, folder) if folder else self.place.path
        body = m.FileList.of(sandbox_id=self.place.sandbox_id, path=path, user=self.place.user)
        try:
            return (await call(self.transport, s.FILE_LIST, body)).entries
        except (FileProblem, NotFound):
            if not folder:
                raise
            return []  # removed while we looked
