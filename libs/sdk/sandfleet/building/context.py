"""A directory that files are copied from: what is in it, its hashes, its names.

Links are never followed out of it, and what .dockerignore leaves out is not there.
"""

from __future__ import annotations

import hashlib
import json
import os
import posixpath
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sandfleet_common.errors import BadRequest, NotFound

from . import ignoring

MOST_FILES = 500_000
_READ_BYTES = 1024 * 1024
_MOST_LINKS = 40


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in a context."""

    path: str
    """Relative to the context; empty: the context itself."""
    mode: int
    """As lstat has it, type included."""
    size: int
    link: str = ""
    changed_at: int = 0

    @property
    def name(self) -> str:
        """Its last name."""
        return posixpath.basename(self.path)

    @property
    def is_folder(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)


@dataclass(slots=True)
class Context:
    """A directory as copies see it. Blocking: call it in a thread."""

    root: Path
    ignored: ignoring.Ignored = field(default_factory=ignoring.Ignored)
    _entries: dict[str, Entry] | None = None
    _hashes: dict[str, str] = field(default_factory=dict[str, str])

    def entries(self) -> dict[str, Entry]:
        """Return all that is in it, by path, in order.

        Raises:
            NotFound: there is no such directory.
            BadRequest: it holds too many files, or one cannot be read.
        """
        if self._entries is None:
            if not self.root.is_dir():
                raise NotFound(f"there is no directory {str(self.root)!r}")
            try:
                self._entries = dict(sorted((e.path, e) for e in self._walk("")))
            except OSError as problem:
                raise _unreadable(problem) from None
        return self._entries

    def match(self, source: str) -> list[Entry]:
        """Return what `source`, a path or a pattern, means; links at its end are followed.

        Raises:
            NotFound: nothing fits.
        """
        path = posixpath.normpath("/" + source).lstrip("/")
        entries = self.entries()
        if ignoring.is_glob(path):
            pattern = ignoring.glob(path)
            found = [entry for name, entry in entries.items() if name and pattern.match(name)]
            if found:
                return [self._followed(entry) for entry in found]
        elif path in entries:
            return [self._followed(entries[path])]
        hint = "" if not self._is_left_out(path) else " (.dockerignore leaves it out)"
        raise NotFound(f"there is no {source!r} in {str(self.root)!r}{hint}")

    def below(self, entry: Entry) -> Iterator[tuple[str, Entry]]:
        """Yield what is in a directory, by the path from there, parents first."""
        prefix = f"{entry.path}/" if entry.path else ""
        for path, found in self.entries().items():
            if path and path.startswith(prefix):
                yield path[len(prefix) :], found

    def content_hash(self, entry: Entry) -> str:
        """Return a hash of an entry and all below it: names, modes, contents; not times."""
        made = hashlib.sha256()
        parts = [("", entry), *(self.below(entry) if entry.is_folder else ())]
        for path, found in parts:
            kind = stat.S_IFMT(found.mode)
            content = self._file_hash(found) if kind == stat.S_IFREG else found.link
            facts = [os.fsencode(path).hex(), found.mode, os.fsencode(content).hex()]
            made.update(json.dumps(facts).encode() + b"\n")
        return made.hexdigest()

    def file(self, entry: Entry) -> Path:
        """Return where a file is."""
        return self.root / entry.path

    def _walk(self, folder: str) -> Iterator[Entry]:
        waiting = [folder]
        count = 0
        yield self._entry("", self.root.stat())
        while waiting:
            folder = waiting.pop()
            with os.scandir(self.root / folder) as found:
                for item in found:
                    path = f"{folder}/{item.name}" if folder else item.name
                    is_folder = item.is_dir(follow_symlinks=False)
                    left_out = self.ignored.leaves_out(path)
                    if is_folder and (not left_out or self.ignored.may_hold_exceptions()):
                        waiting.append(path)
                    if left_out:
                        continue
                    count += 1
                    if count > MOST_FILES:
                        raise BadRequest(
                            f"{str(self.root)!r} holds more than {MOST_FILES} files: "
                            "leave some out with .dockerignore"
                        )
                    yield self._entry(path, item.stat(follow_symlinks=False))

    def _entry(self, path: str, status: os.stat_result) -> Entry:
        is_link = stat.S_ISLNK(status.st_mode)
        link = str((self.root / path).readlink()) if is_link else ""
        return Entry(path, status.st_mode, status.st_size, link, int(status.st_mtime))

    def _is_left_out(self, path: str) -> bool:
        return self.ignored.leaves_out(path) and os.path.lexists(self.root / path)

    def _followed(self, entry: Entry) -> Entry:
        """Return what a link leads to, inside the context."""
        for _ in range(_MOST_LINKS):
            if not stat.S_ISLNK(entry.mode):
                return entry
            at = posixpath.join("/", posixpath.dirname(entry.path), entry.link)
            path = posixpath.normpath(re.sub("^/+", "/", at)).lstrip("/")
            found = self.entries().get(path)
            if found is None:
                break
            entry = found
        raise NotFound(f"{entry.path!r} is a link to nothing in {str(self.root)!r}")

    def _file_hash(self, entry: Entry) -> str:
        known = self._hashes.get(entry.path)
        if known is None:
            made = hashlib.sha256()
            try:
                with self.file(entry).open("rb") as file:
                    while piece := file.read(_READ_BYTES):
                        made.update(piece)
            except OSError as problem:
                raise _unreadable(problem) from None
            known = self._hashes[entry.path] = made.hexdigest()
        return known


def open_context(root: Path, dockerfile: Path | None = None) -> Context:
    """Return a directory as a context, with the .dockerignore that belongs to it.

    Raises:
        BadRequest: its .dockerignore cannot be read.
    """
    places = [root / ".dockerignore"]
    if dockerfile is not None:
        places.insert(0, dockerfile.with_name(f"{dockerfile.name}.dockerignore"))
    for place in places:
        if place.is_file():
            text = place.read_text(encoding="utf-8", errors="replace")
            return Context(root, ignoring.parse(text, place.name))
    return Context(root)


def _unreadable(problem: OSError) -> BadRequest:
    return BadRequest(f"{problem.filename!r} cannot be read: {problem.strerror}")
