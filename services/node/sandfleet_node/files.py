"""Files in sandboxes, through their agents only: this host never opens a path inside one."""

from __future__ import annotations

import asyncio
import posixpath
import stat
import time
from collections import OrderedDict
from collections.abc import Callable

from sandfleet_common import messages as m
from sandfleet_common import wire
from sandfleet_common.errors import Conflict, FileProblem, OutputLimit
from sandfleet_common.wire import Entry, Frame, FrameFlag, FrameType, Tag

from .agentlink import Answer
from .sandbox import Sandbox

LIST_BYTES = 3 * 1024 * 1024
"""Most bytes of a directory's entries in one answer, as the agent counts them."""
LIST_ENTRIES = 10_000
UPLOAD_SILENCE_SECONDS = 120.0
_UPLOADS_DONE_KEPT = 4096

FileBody = (
    m.FileStat
    | m.FileList
    | m.FileRead
    | m.FileWrite
    | m.FileMakeDir
    | m.FileRemove
    | m.FileRename
    | m.FileWatch
)
Pairs = list[tuple[Tag, bytes | int | str]]


class _Upload:
    """A file that arrives in parts."""

    __slots__ = ("answer", "heard_at", "id", "position")

    def __init__(self, id: int, answer: asyncio.Future[Answer]) -> None:
        self.id = id
        self.answer = answer
        self.position = 0
        self.heard_at = time.monotonic()


class Files:
    """File operations. Those that change something count as activity, and so do reads."""

    def __init__(self) -> None:
        self._uploads: dict[tuple[str, str], _Upload] = {}
        self._done: OrderedDict[tuple[str, str], None] = OrderedDict()

    async def stat(self, sandbox: Sandbox, body: m.FileStat) -> m.FileEntry:
        """Describe a file."""
        flags = FrameFlag.NONE if body.follow else FrameFlag.NOFOLLOW
        frames = await _ask(sandbox, FrameType.STAT, body, path_fields(body), flags)
        return _only_entry(frames, body.path)

    async def list(self, sandbox: Sandbox, body: m.FileList) -> m.FilePage:
        """List a directory."""
        frames = await _ask(sandbox, FrameType.LIST, body, path_fields(body))
        entries = [
            _entry(value, posixpath.join(body.path, text(value.name)))
            for frame in frames
            for tag, value in wire.unpack_fields(frame.payload)
            if tag is Tag.ENTRY and isinstance(value, Entry)
        ]
        if len(entries) > LIST_ENTRIES or sum(len(f.payload) for f in frames) > LIST_BYTES:
            raise OutputLimit(
                f"the directory has more entries than one answer holds ({LIST_ENTRIES}): "
                "list it with a command",
                path=body.path,
            )
        return m.FilePage(entries=sorted(entries, key=lambda entry: entry.name))

    async def read(self, sandbox: Sandbox, body: m.FileRead) -> m.FileData:
        """Read part of a file."""
        pairs: Pairs = [*path_fields(body), (Tag.LENGTH, body.length)]
        frames = await _ask(sandbox, FrameType.READ, body, pairs, position=body.position)
        return m.FileData(
            data=b"".join(frame.payload for frame in frames)[: body.length],
            position=body.position,
            end=bool(frames[-1].flags & FrameFlag.EOF),
        )

    async def make_dir(self, sandbox: Sandbox, body: m.FileMakeDir) -> m.FileEntry:
        """Make a directory."""
        flags = FrameFlag.PARENTS if body.parents else FrameFlag.NONE
        pairs = [*path_fields(body), *_mode(body.mode)]
        frames = await _ask(sandbox, FrameType.MKDIR, body, pairs, flags)
        return _only_entry(frames, body.path)

    async def remove(self, sandbox: Sandbox, body: m.FileRemove) -> m.Ok:
        """Remove a file or directory."""
        flags = FrameFlag.RECURSIVE if body.recursive else FrameFlag.NONE
        await _ask(sandbox, FrameType.REMOVE, body, path_fields(body), flags)
        return m.Ok()

    async def rename(self, sandbox: Sandbox, body: m.FileRename) -> m.FileEntry:
        """Rename a file or directory."""
        pairs: Pairs = [*path_fields(body), (Tag.TARGET, body.target)]
        frames = await _ask(sandbox, FrameType.RENAME, body, pairs)
        return _only_entry(frames, body.target)

    # ------------------------------------------------------------- writing

    async def write(self, sandbox: Sandbox, body: m.FileWrite) -> m.Ok:
        """Take part of a file; the last one puts it in its place. What came before is skipped.

        Raises:
            Conflict: a part is missing before this one: start the upload over.
            FileProblem: the file cannot be written.
        """
        sandbox.touch()
        key = (sandbox.id, body.upload)
        if key in self._done:
            return m.Ok()
        upload = self._uploads.get(key)
        if upload is None:
            if body.position > 0:
                raise Conflict("this upload is not known any more: start it over", position=0)
            upload = self._open(sandbox, key, body)
        if body.position > upload.position:
            raise Conflict(
                f"this part starts at {body.position}, but only {upload.position} bytes have come",
                position=upload.position,
            )
        try:
            await self._take(sandbox, upload, body)
            if body.end:
                await asyncio.shield(upload.answer)
                self._finish(key)
        except FileProblem as problem:
            self._drop(sandbox, key)
            raise _at(problem, body.path) from None
        return m.Ok()

    def _open(self, sandbox: Sandbox, key: tuple[str, str], body: m.FileWrite) -> _Upload:
        link, number = sandbox.agent(), sandbox.next_id()
        upload = self._uploads[key] = _Upload(number, link.expect(number))
        link.send(
            FrameType.WRITE,
            number,
            flags=FrameFlag.PARENTS if body.parents else FrameFlag.NONE,
            payload=wire.pack_fields([*path_fields(body), *_mode(body.mode)]),
        )
        return upload

    async def _take(self, sandbox: Sandbox, upload: _Upload, body: m.FileWrite) -> None:
        link = sandbox.agent()
        upload.heard_at = time.monotonic()
        if upload.answer.done():
            upload.answer.result()
        fresh = memoryview(body.data)[upload.position - body.position :]
        for start in range(0, len(fresh), wire.FRAME_DATA_MAX_BYTES):
            part = bytes(fresh[start : start + wire.FRAME_DATA_MAX_BYTES])
            link.send(FrameType.WRITE_DATA, upload.id, position=upload.position, payload=part)
            upload.position += len(part)
        if body.end:
            link.send(FrameType.WRITE_END, upload.id)
        await link.calm()

    def _finish(self, key: tuple[str, str]) -> None:
        self._uploads.pop(key, None)
        self._done[key] = None
        if len(self._done) > _UPLOADS_DONE_KEPT:
            self._done.popitem(last=False)

    def _drop(self, sandbox: Sandbox, key: tuple[str, str]) -> None:
        upload = self._uploads.pop(key, None)
        if upload is not None and sandbox.link is not None:
            sandbox.link.unexpect(upload.id)
            sandbox.link.tell(FrameType.WRITE_END, upload.id, flags=FrameFlag.ABORT)

    def forget(self, sandbox: Sandbox) -> None:
        """Drop what was under way in a sandbox that ends."""
        for key in [k for k in self._uploads if k[0] == sandbox.id]:
            del self._uploads[key]

    def expire(self, find: Callable[[str], Sandbox | None], now: float) -> None:
        """Drop uploads of which nothing has been heard for long."""
        for key, upload in list(self._uploads.items()):
            if now - upload.heard_at > UPLOAD_SILENCE_SECONDS:
                sandbox = find(key[0])
                if sandbox is None:
                    del self._uploads[key]
                else:
                    self._drop(sandbox, key)


async def _ask(
    sandbox: Sandbox,
    type: FrameType,
    body: FileBody,
    fields: Pairs,
    flags: FrameFlag = FrameFlag.NONE,
    position: int = 0,
) -> Answer:
    sandbox.touch()
    try:
        return await sandbox.agent().request(
            type,
            sandbox.next_id(),
            flags=flags,
            position=position,
            payload=wire.pack_fields(fields),
        )
    except FileProblem as problem:
        raise _at(problem, body.path) from None


def _at(problem: FileProblem, path: str) -> FileProblem:
    return FileProblem(problem.message, **{"path": path, **problem.fields})


def path_fields(body: FileBody) -> Pairs:
    """Return the fields that name a path and who asks."""
    pairs: Pairs = [(Tag.PATH, body.path)]
    if body.user is not None:
        pairs.append((Tag.USER, body.user))
    return pairs


def _mode(mode: int | None) -> Pairs:
    return [] if mode is None else [(Tag.MODE, mode)]


def text(raw: bytes) -> str:
    """Return a name as text. JSON cannot carry bytes that are not UTF-8: they show as U+FFFD."""
    return raw.decode("utf-8", "replace")


_KINDS = {
    stat.S_IFREG: m.FileType.FILE,
    stat.S_IFDIR: m.FileType.DIRECTORY,
    stat.S_IFLNK: m.FileType.SYMLINK,
}


def _entry(entry: Entry, path: str) -> m.FileEntry:
    kind = _KINDS.get(stat.S_IFMT(entry.mode), m.FileType.OTHER)
    return m.FileEntry(
        name=text(entry.name).rstrip("/").rpartition("/")[2] or path,
        path=path,
        type=kind,
        size=entry.size_bytes,
        mode=stat.S_IMODE(entry.mode),
        uid=entry.uid,
        gid=entry.gid,
        modified_at=entry.mtime_ns / 1e9,
        target=text(entry.target) if kind is m.FileType.SYMLINK else None,
    )


def _only_entry(frames: list[Frame], path: str) -> m.FileEntry:
    for tag, value in wire.unpack_fields(frames[-1].payload):
        if tag is Tag.ENTRY and isinstance(value, Entry):
            return _entry(value, path)
    raise FileProblem("the sandbox's agent gave no description of the file", path=path)
