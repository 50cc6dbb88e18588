"""What is sent into a sandbox to be unpacked there: a tar made on this machine.

Where things go follows Docker: of a directory its contents, a file under its own name
into a directory, else under the name given.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import posixpath
import stat
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, cast

from sandfleet_common.errors import BadRequest

from .context import Context, Entry

PIECE_BYTES = 256 * 1024
LARGEST_BYTES = 1 << 40
EARLIEST = 315_532_800
"""1980: zip files, wheels among them, know no earlier time."""
_IN_MEMORY_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Owner:
    """Whom files belong to, and their mode where one is given."""

    uid: int = 0
    gid: int = 0
    mode: int | None = None


@dataclass(frozen=True, slots=True)
class Place:
    """Where in the sandbox a copy goes."""

    folder: str
    """Unpack here."""
    name: str | None
    """A single file's name; None: each under its own."""


def place_of(target: str, *, from_folder: bool, is_folder_there: bool) -> Place:
    """Return where a copy to `target` (absolute) goes.

    Args:
        target: ends with a slash when a directory is meant.
        from_folder: the contents of directories are copied.
        is_folder_there: the sandbox has a directory of that name.
    """
    if from_folder or target.endswith("/") or is_folder_there:
        return Place(target.rstrip("/") or "/", None)
    return Place(posixpath.dirname(target) or "/", posixpath.basename(target))


class Parcel:
    """A tar that grows, then is read. Use it in a `with` block."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        # Closed by __exit__.
        self._file = cast("IO[bytes]", tempfile.SpooledTemporaryFile(_IN_MEMORY_BYTES))  # noqa: SIM115
        self._tar = tarfile.open(fileobj=self._file, mode="w|", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self.files = 0

    def __enter__(self) -> Parcel:
        return self

    def __exit__(self, *_: object) -> None:
        self._tar.close()
        self._file.close()

    def add_text(self, name: str, text: str) -> None:
        """Add a file."""
        data = text.encode()
        self._add(name, stat.S_IFREG | 0o644, io.BytesIO(data), len(data))

    def add_entry(self, context: Context, entry: Entry, name: str | None) -> None:
        """Add a file under `name` or its own; of a directory what is in it.

        Raises:
            BadRequest: a file cannot be read, or changed meanwhile.
        """
        if not entry.is_folder:
            self._add_one(context, entry, name or entry.name)
            return
        for path, found in context.below(entry):
            self._add_one(context, found, path)

    def add_tar(self, source: IO[bytes], name: str | None) -> None:
        """Add what a tar from a sandbox holds; a single file gets `name` if given.

        Raises:
            BadRequest: it is no tar.
        """
        try:
            with tarfile.open(fileobj=source, mode="r|") as tar:
                for member in tar:
                    self._add_member(tar, member, name)
        except (tarfile.TarError, EOFError, ValueError, OverflowError) as problem:
            raise BadRequest(f"what came out of the sandbox is no tar: {problem}") from None

    def pieces(self) -> Iterator[bytes]:
        """Yield the whole tar, once."""
        self._tar.close()
        self._file.seek(0)
        while piece := self._file.read(PIECE_BYTES):
            yield piece

    def _add_one(self, context: Context, entry: Entry, name: str) -> None:
        if stat.S_ISREG(entry.mode):
            try:
                with context.file(entry).open("rb") as file:
                    self._add(name, entry.mode, file, entry.size, at=entry.changed_at)
            except OSError as problem:
                raise BadRequest(f"{entry.path!r} cannot be copied: {problem}") from None
        elif entry.is_folder or stat.S_ISLNK(entry.mode):
            self._add(name, entry.mode, None, 0, link=entry.link, at=entry.changed_at)
        # sockets, pipes and devices of this machine mean nothing there

    def _add(
        self,
        name: str,
        mode: int,
        file: IO[bytes] | None,
        size: int,
        *,
        link: str = "",
        at: int = EARLIEST,
    ) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mtime = size, max(at, EARLIEST)
        info.mode = stat.S_IMODE(mode)
        if stat.S_ISDIR(mode):
            info.type = tarfile.DIRTYPE
        elif stat.S_ISLNK(mode):
            info.type, info.linkname = tarfile.SYMTYPE, link
        self._own(info)
        self._tar.addfile(info, file)
        self.files += 1

    def _add_member(self, tar: tarfile.TarFile, member: tarfile.TarInfo, name: str | None) -> None:
        clean = posixpath.normpath("/" + member.name).lstrip("/")
        if not clean or member.ischr() or member.isblk() or member.isfifo():
            return
        made = tarfile.TarInfo(name or clean)
        made.mode, made.type, made.mtime = member.mode, member.type, int(member.mtime)
        made.linkname = member.linkname
        content = tar.extractfile(member) if member.isreg() else None
        made.size = member.size if content is not None else 0
        made.uid, made.gid = member.uid, member.gid
        if made.type == tarfile.GNUTYPE_SPARSE or member.issparse():
            made.type = tarfile.REGTYPE
        if member.islnk():
            made.linkname = posixpath.normpath("/" + member.linkname).lstrip("/")
        self._own(made)
        self._tar.addfile(made, content)
        self.files += 1

    def _own(self, info: tarfile.TarInfo) -> None:
        info.uid, info.gid = self._owner.uid, self._owner.gid
        info.uname = info.gname = ""
        if self._owner.mode is not None and info.type != tarfile.SYMTYPE:
            info.mode = self._owner.mode


_FORMS: tuple[tuple[bytes, Callable[[Path], Any]], ...] = (
    (b"\x1f\x8b", gzip.open),
    (b"BZh", bz2.open),
    (b"\xfd7zXZ\x00", lzma.open),
    (b"", lambda path: path.open("rb")),
)
"""How files begin, and what reads them."""


def opened_archive(path: Path) -> IO[bytes] | None:
    """Return a tar's bytes, decompressed as they are read; None when it is no tar."""
    with path.open("rb") as file:
        head = file.read(8)
    opener = next(opener for begin, opener in _FORMS if head.startswith(begin))
    opened = cast("IO[bytes]", opener(path))
    try:
        is_tar = opened.read(512)[257:262] == b"ustar"
        opened.seek(0)
    except (OSError, EOFError, lzma.LZMAError):
        is_tar = False
    if not is_tar:
        opened.close()
        return None
    return opened


def archive_pieces(archive: IO[bytes]) -> Iterator[bytes]:
    """Yield the bytes of an archive that `opened_archive` returned.

    Raises:
        BadRequest: it is damaged, or goes on without an end.
    """
    size = 0
    try:
        while piece := archive.read(PIECE_BYTES):
            size += len(piece)
            if size > LARGEST_BYTES:
                raise BadRequest(f"the archive is larger than {LARGEST_BYTES} bytes")
            yield piece
    except (OSError, EOFError, lzma.LZMAError) as problem:
        raise BadRequest(f"the archive is damaged: {problem}") from None
