"""Files in a sandbox. Paths are text; bytes that are not UTF-8 travel as surrogate escapes."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field

from .base import Message, Request
from .sandboxes import MIB, Text

CHUNK_BYTES = MIB // 2
"""Most bytes of a file in one message."""


def _not_empty(value: str) -> str:
    if not value:
        raise ValueError("must not be empty")
    return value


Path = Annotated[Text, AfterValidator(_not_empty), Field(max_length=4096)]
User = Annotated[Text, Field(max_length=64)] | None


class FileType(StrEnum):
    """What an entry is."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


class FileEntry(Message):
    """One file, directory or link."""

    name: str
    path: str
    type: FileType
    size: int
    mode: int
    """Permission bits."""
    uid: int
    gid: int
    modified_at: float
    target: str | None = None
    """Of a symbolic link."""


class FileRequest(Request):
    """What all file requests name. A relative path starts at the user's home."""

    sandbox_id: str
    path: Path
    user: User = None


class FileStat(FileRequest):
    """Describe a file."""

    follow: bool = True


class FileList(FileRequest):
    """List a directory."""


class FilePage(Message):
    """Entries of a directory, by name."""

    entries: list[FileEntry]


class FileRead(FileRequest):
    """Read part of a file."""

    position: int = Field(default=0, ge=0)
    length: int = Field(default=CHUNK_BYTES, gt=0, le=CHUNK_BYTES)


class FileData(Message):
    """Part of a file."""

    data: bytes
    position: int
    end: bool
    """Nothing follows."""


class FileWrite(FileRequest):
    """Write part of a file; it appears, whole, when the part marked `end` has arrived."""

    upload: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    """Ties the parts of one file together."""
    position: int = Field(default=0, ge=0)
    data: bytes = Field(default=b"", max_length=CHUNK_BYTES)
    end: bool = True
    mode: int | None = Field(default=None, ge=0, le=0o7777)
    parents: bool = True


class FileMakeDir(FileRequest):
    """Make a directory."""

    mode: int | None = Field(default=None, ge=0, le=0o7777)
    parents: bool = True


class FileRemove(FileRequest):
    """Remove a file or directory."""

    recursive: bool = False


class FileRename(FileRequest):
    """Rename or move a file or directory."""

    target: Path


class FileWatch(FileRequest):
    """Report changes below a path to the subject `deliver` until FileUnwatch or a minute's silence.

    Sending it again with the same `watch` keeps it alive.
    """

    watch: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    deliver: str = Field(max_length=200)
    recursive: bool = False


class FileUnwatch(Request):
    """End a watch."""

    sandbox_id: str
    watch: str


class FileChange(StrEnum):
    """What happened to a file."""

    CREATE = "create"
    WRITE = "write"
    REMOVE = "remove"
    RENAME = "rename"
    CHMOD = "chmod"


class FileEvent(Message):
    """One change; `path` is relative to the watched path."""

    watch: str
    sequence: int
    kind: FileChange
    path: str
    overflow: bool = False
    """Some events were lost: look again."""
