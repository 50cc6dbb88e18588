"""Files in a sandbox: bytes in, bytes out, through the sandbox's own agent.

    await sandbox.files.write("/tmp/task.py", "print(1)")
    data = await sandbox.files.read("/tmp/result.bin")

A relative path starts at the home of the user, who is the sandbox's own unless
`user` says otherwise.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import FileProblem, NotFound, OutputLimit

from .calls import CALL_SECONDS, call
from .connection import Connection
from .transfer import Transfer, cut
from .transport import FilePlace, FileTarget

READ_LIMIT_BYTES = m.GIB
"""What `read` takes into memory unless told otherwise; `download` has no limit."""


class AsyncFiles:
    """The files of one sandbox."""

    def __init__(self, connection: Connection, sandbox_id: str) -> None:
        self._connection = connection
        self._sandbox_id = sandbox_id

    async def read(
        self, path: str, *, user: str | None = None, limit: int = READ_LIMIT_BYTES
    ) -> bytes:
        """Return a file's bytes.

        Raises:
            FileProblem: it cannot be read; `errno` says why.
            OutputLimit: it is longer than `limit`.
        """
        pieces: list[bytes] = []
        size = 0
        place = FilePlace(self._sandbox_id, path, user)
        async for piece in self._connection.transport.read_file(place, within=CALL_SECONDS):
            pieces.append(piece)
            size += len(piece)
            if size > limit:
                raise OutputLimit(f"{path!r} is longer than {limit} bytes", path=path)
        return b"".join(pieces)

    async def read_text(
        self, path: str, *, user: str | None = None, encoding: str = "utf-8", errors: str = "strict"
    ) -> str:
        """Return a file's text."""
        return (await self.read(path, user=user)).decode(encoding, errors)

    async def write(
        self,
        path: str,
        data: bytes | str,
        *,
        user: str | None = None,
        mode: int | None = None,
        parents: bool = True,
    ) -> None:
        """Make `data` the content of a file; no reader ever sees half of it.

        Directories on the way are made when `parents`. `mode` is what `chmod` takes.
        """
        content = data.encode() if isinstance(data, str) else bytes(data)
        target = FileTarget(FilePlace(self._sandbox_id, path, user), mode, parents)
        await self._connection.transport.write_file(target, cut(content), within=CALL_SECONDS)

    async def list(self, path: str = ".", *, user: str | None = None) -> list[m.FileEntry]:
        """Return the entries of a directory, by name."""
        body = m.FileList.of(sandbox_id=self._sandbox_id, path=path, user=user)
        return (await call(self._connection.transport, s.FILE_LIST, body)).entries

    async def stat(self, path: str, *, user: str | None = None, follow: bool = True) -> m.FileEntry:
        """Describe a file; a symbolic link's target when `follow`."""
        body = m.FileStat.of(sandbox_id=self._sandbox_id, path=path, user=user, follow=follow)
        return await call(self._connection.transport, s.FILE_STAT, body)

    async def exists(self, path: str, *, user: str | None = None) -> bool:
        """Return whether there is anything at `path`, a broken link included."""
        try:
            await self.stat(path, user=user, follow=False)
        except (FileProblem, NotFound) as problem:
            if is_missing(problem):
                return False
            raise
        return True

    async def mkdir(
        self, path: str, *, user: str | None = None, mode: int | None = None, parents: bool = True
    ) -> m.FileEntry:
        """Make a directory; with `parents` also those on the way, and one that exists is fine."""
        body = m.FileMakeDir.of(
            sandbox_id=self._sandbox_id, path=path, user=user, mode=mode, parents=parents
        )
        return await call(self._connection.transport, s.FILE_MKDIR, body)

    async def remove(self, path: str, *, user: str | None = None, recursive: bool = False) -> None:
        """Remove a file, or a directory with all in it when `recursive`."""
        body = m.FileRemove.of(
            sandbox_id=self._sandbox_id, path=path, user=user, recursive=recursive
        )
        await call(self._connection.transport, s.FILE_REMOVE, body)

    async def rename(self, path: str, target: str, *, user: str | None = None) -> m.FileEntry:
        """Rename or move a file or directory; an existing file at `target` is replaced."""
        body = m.FileRename.of(sandbox_id=self._sandbox_id, path=path, user=user, target=target)
        return await call(self._connection.transport, s.FILE_RENAME, body)

    async def upload(
        self,
        source: str | os.PathLike[str],
        path: str,
        *,
        user: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Copy a file or directory of this machine to `path`.

        `progress` is told the number of bytes of each piece that was sent.
        """
        await self._transfer(user, progress).upload(Path(source), path)

    async def download(
        self,
        path: str,
        target: str | os.PathLike[str],
        *,
        user: str | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        """Copy a file or directory to `target` on this machine.

        Nothing is ever written outside `target`, whatever names or links the
        sandbox shows.
        """
        await self._transfer(user, progress).download(path, Path(target))

    async def watch(
        self, path: str, *, user: str | None = None, recursive: bool = False
    ) -> AsyncIterator[m.FileEvent]:
        """Report changes below `path` until the caller has seen enough.

            async for event in sandbox.files.watch("/work", recursive=True):
                print(event.kind, event.path)

        An event with `overflow` says that some were lost: look again.
        """
        place = FilePlace(self._sandbox_id, path, user)
        last = 0
        async with self._connection.transport.file_events(place, recursive=recursive) as feed:
            while True:
                event = await feed.next()
                if event is None:
                    kind = m.FileChange.WRITE
                    yield m.FileEvent(watch="", sequence=last, kind=kind, path=".", overflow=True)
                else:
                    last = event.sequence
                    yield event

    def _transfer(self, user: str | None, progress: Callable[[int], None] | None) -> Transfer:
        remote = _Remote(self, self._connection, self._sandbox_id, user)
        return Transfer(remote, progress)


@dataclass(frozen=True, slots=True)
class _Remote:
    """A sandbox's files as `transfer` sees them."""

    files: AsyncFiles
    connection: Connection
    sandbox_id: str
    user: str | None

    def pieces(self, path: str) -> AsyncIterator[bytes]:
        place = FilePlace(self.sandbox_id, path, self.user)
        return self.connection.transport.read_file(place, within=CALL_SECONDS)

    async def write(self, path: str, mode: int | None, pieces: AsyncIterator[bytes]) -> None:
        target = FileTarget(FilePlace(self.sandbox_id, path, self.user), mode)
        await self.connection.transport.write_file(target, pieces, within=CALL_SECONDS)

    async def mkdir(self, path: str, mode: int | None) -> None:
        await self.files.mkdir(path, user=self.user, mode=mode)

    async def list(self, path: str) -> list[m.FileEntry]:
        return await self.files.list(path, user=self.user)

    async def stat(self, path: str) -> m.FileEntry:
        return await self.files.stat(path, user=self.user)


def is_missing(problem: FileProblem | NotFound) -> bool:
    """Return whether a file operation failed because there is no such file."""
    return problem.fields.get("errno") in ("ENOENT", "ENOTDIR") or (
        isinstance(problem, NotFound) and "path" in problem.fields
    )
