"""Whole files and directories between this machine and a sandbox.

Directories are walked entry by entry rather than packed, so that nothing has to
be installed in the sandbox. What comes out of a sandbox is not trusted: names
with a slash in them or that point upwards are refused, links are not followed.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from sandfleet_common.errors import BadRequest, FileProblem, NotFound
from sandfleet_common.messages import FileEntry, FileType
from sandfleet_common.messages.files import CHUNK_BYTES

AT_ONCE = 8
"""Files of a directory under way at the same time."""

Progress = Callable[[int], None]


class Remote(Protocol):
    """The sandbox's side of a transfer."""

    def pieces(self, path: str) -> AsyncIterator[bytes]:
        """Read a file."""
        ...

    async def write(self, path: str, mode: int | None, pieces: AsyncIterator[bytes]) -> None:
        """Write a file."""
        ...

    async def mkdir(self, path: str, mode: int | None) -> None:
        """Make a directory, if it is not there."""
        ...

    async def list(self, path: str) -> list[FileEntry]:
        """List a directory."""
        ...

    async def stat(self, path: str) -> FileEntry:
        """Describe what `path` leads to."""
        ...


async def cut(content: bytes) -> AsyncIterator[bytes]:
    """Yield bytes in pieces of a message's size; one empty piece for nothing."""
    for start in range(0, len(content), CHUNK_BYTES) or (0,):
        yield content[start : start + CHUNK_BYTES]


def join(folder: str, name: str) -> str:
    """Return the path of an entry of a directory in the sandbox."""
    return f"{folder.rstrip('/')}/{name}" if folder != "." else name


def local_name(entry: FileEntry) -> str:
    """Return an entry's name if it may be a file's name on this machine.

    Raises:
        BadRequest: it would lead out of the directory it is in.
    """
    if entry.name in ("", ".", "..") or "/" in entry.name or "\0" in entry.name:
        raise BadRequest(f"the sandbox shows a file named {entry.name[:80]!r}; it is not copied")
    return entry.name


@dataclass(frozen=True, slots=True)
class Transfer:
    """One copy of a file or directory; `progress` hears the bytes of each piece."""

    remote: Remote
    progress: Progress | None = None

    async def upload(self, source: Path, path: str) -> None:
        """Copy `source` of this machine to `path`.

        Raises:
            NotFound: there is no such file here.
            FileProblem: it cannot be read here, or not be written there.
        """
        if await asyncio.to_thread(source.is_dir):
            await self._upload_folder(source, path)
        elif await asyncio.to_thread(source.exists):
            await self._upload_file(source, path)
        else:
            raise NotFound(f"there is no {str(source)!r} on this machine")

    async def download(self, path: str, target: Path) -> None:
        """Copy `path` to `target` on this machine."""
        entry = await self.remote.stat(path)
        if entry.type is FileType.DIRECTORY:
            await self._download_folder(path, target)
        elif entry.type is FileType.FILE:
            await self._download_file(path, target, entry.mode)
        else:
            raise BadRequest(f"{path!r} is neither a file nor a directory")

    async def _upload_folder(self, source: Path, path: str) -> None:
        mode = (await asyncio.to_thread(source.stat)).st_mode & 0o7777
        await self.remote.mkdir(path, mode)
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(item: Path) -> None:
            async with gate:
                await self._upload_file(item, join(path, item.name))

        folders: list[Path] = []
        async with asyncio.TaskGroup() as group:
            for item in sorted(await asyncio.to_thread(lambda: list(source.iterdir()))):
                if item.is_symlink():
                    continue  # where it points to means nothing there
                if item.is_dir():
                    folders.append(item)
                elif item.is_file():
                    group.create_task(one(item))
        for folder in folders:
            await self._upload_folder(folder, join(path, folder.name))

    async def _upload_file(self, source: Path, path: str) -> None:
        try:
            file = await asyncio.to_thread(source.open, "rb")
        except OSError as problem:
            raise _local_problem(problem, source) from problem
        try:
            mode = os.fstat(file.fileno()).st_mode & 0o7777
            await self.remote.write(path, mode, self._read(file))
        finally:
            file.close()

    async def _read(self, file: BinaryIO) -> AsyncIterator[bytes]:
        while data := await asyncio.to_thread(file.read, CHUNK_BYTES):
            yield data
            self._tell(len(data))

    async def _download_folder(self, path: str, target: Path) -> None:
        try:
            await asyncio.to_thread(target.mkdir, parents=True, exist_ok=True)
        except OSError as problem:
            raise _local_problem(problem, target) from problem
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(entry: FileEntry, to: Path) -> None:
            async with gate:
                await self._download_file(join(path, entry.name), to, entry.mode)

        folders: list[FileEntry] = []
        async with asyncio.TaskGroup() as group:
            for entry in await self.remote.list(path):
                to = target / local_name(entry)
                if entry.type is FileType.DIRECTORY:
                    folders.append(entry)
                elif entry.type is FileType.FILE:
                    group.create_task(one(entry, to))
        for entry in folders:
            to = target / local_name(entry)
            if to.is_symlink():
                raise BadRequest(
                    f"{str(to)!r} is a link on this machine; nothing is copied into it"
                )
            await self._download_folder(join(path, entry.name), to)

    async def _download_file(self, path: str, target: Path, mode: int) -> None:
        part = target.with_name(f".{target.name}.part")
        try:
            # O_NOFOLLOW: a link that lies here from before does not lead elsewhere
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
            with os.fdopen(os.open(part, flags, mode & 0o777 | 0o200), "wb") as file:
                async for piece in self.remote.pieces(path):
                    await asyncio.to_thread(file.write, piece)
                    self._tell(len(piece))
                os.fchmod(file.fileno(), mode & 0o777)
            part.replace(target)
        except OSError as problem:
            raise _local_problem(problem, target) from problem
        finally:
            part.unlink(missing_ok=True)

    def _tell(self, size: int) -> None:
        if self.progress is not None:
            self.progress(size)


def _local_problem(problem: OSError, path: Path) -> FileProblem:
    return FileProblem(
        f"{path} on this machine: {problem.strerror or problem}", path=str(path), side="local"
    )
