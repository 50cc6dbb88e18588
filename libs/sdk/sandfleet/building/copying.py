"""Copies into a sandbox: from a context, from another stack, from an archive."""

from __future__ import annotations

import asyncio
import posixpath
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from sandfleet.files import is_missing
from sandfleet.sandbox import AsyncSandbox
from sandfleet_common.errors import BadRequest, FileProblem, NotFound
from sandfleet_common.messages import FileType

from . import ignoring
from .context import Context, Entry
from .parcels import Owner, Parcel, Place, archive_pieces, opened_archive, place_of
from .plainly import unpack_plainly
from .stages import Files, Ground
from .workshop import ROOT, Workshop

_PACKED = "/.sandfleet-copy.tar"
"""In the sandbox that is copied from, which is never packed itself."""
_PASSWD_BYTES = 1 << 22


@dataclass(slots=True)
class Copier:
    """Carries out the copies of one sandbox; `root` is where its tree begins."""

    workshop: Workshop
    sandbox: AsyncSandbox
    root: str = ""
    _tar: list[str] | None = field(default=None)

    async def copy(self, files: Files, context: Context, origin: Ground | None) -> None:
        """Carry out a copy; `origin` is what it copies from when that is not the context.

        Raises:
            BadRequest, NotFound: what is to be copied is not there; names file and line.
            BuildFailed: the sandbox cannot unpack it.
        """
        owner = await self._owner(files)
        try:
            if origin is not None:
                await self._copy_from(files, origin, owner)
            else:
                await self._copy_here(files, context, owner)
        except (NotFound, BadRequest) as problem:
            if "line" in problem.fields:
                raise
            raise files.line.problem(problem.message) from None

    async def unpack(self, folder: str, pieces: Iterable[bytes], what: str) -> None:
        """Unpack a tar into a directory of the sandbox, which is made."""
        place = self.root + folder
        if place != "/":
            await self.sandbox.files.mkdir(place, user=ROOT)
        if self._tar is None:
            self._tar = await self._tar_words()
        try:
            await self.workshop.feed(self.sandbox, [*self._tar, "-C", place], pieces, what=what)
        except NotFound:
            await unpack_plainly(self.sandbox, place, pieces, what)

    async def make_folder(self, path: str) -> None:
        """Have a directory; one that exists stays as it is."""
        await self.sandbox.files.mkdir(self.root + path, user=ROOT)

    async def _copy_here(self, files: Files, context: Context, owner: Owner) -> None:
        what = f"{files.line.file}:{files.line.number}: {files.line.keyword}"
        matched = await asyncio.to_thread(matches, context, files.sources)
        plain: list[Entry] = []
        for entry in matched:
            archive = None
            if files.unpacks and not entry.is_folder:
                archive = await asyncio.to_thread(opened_archive, context.file(entry))
            if archive is None:
                plain.append(entry)
                continue
            with archive:
                await self.unpack(files.target.rstrip("/") or "/", archive_pieces(archive), what)
        if not plain and not files.inline:
            return
        place = await self._place(files, from_folder=any(entry.is_folder for entry in plain))
        if place.name is not None and len(plain) + len(files.inline) > 1:
            raise BadRequest(f"several files go to a directory: write its name as {files.target}/")
        with Parcel(owner) as parcel:
            for name, text in files.inline:
                parcel.add_text(place.name or name, text)
            for entry in plain:
                await asyncio.to_thread(parcel.add_entry, context, entry, place.name)
            await self.unpack(place.folder, parcel.pieces(), what)

    async def _copy_from(self, files: Files, origin: Ground, owner: Owner) -> None:
        what = f"{files.line.file}:{files.line.number}: COPY --from={files.from_}"
        async with AsyncExitStack() as stack:
            scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sandfleet-")))
            source = await stack.enter_async_context(self.workshop.sandbox(origin))
            found = [one for name in files.sources for one in await _find(source, name)]
            place = await self._place(files, from_folder=any(is_dir for _, is_dir in found))
            if place.name is not None and len(found) > 1:
                raise BadRequest(
                    f"several files go to a directory: write its name as {files.target}/"
                )
            parcel = stack.enter_context(Parcel(owner))
            for path, is_folder in found:
                packed = scratch / "packed.tar"
                await self._fetch(source, path, packed, is_folder=is_folder, what=what)
                name = None if is_folder else place.name or posixpath.basename(path)
                with packed.open("rb") as file:
                    await asyncio.to_thread(parcel.add_tar, file, name)
                packed.unlink()
            await self.unpack(place.folder, parcel.pieces(), what)

    async def _fetch(
        self, source: AsyncSandbox, path: str, target: Path, *, is_folder: bool, what: str
    ) -> None:
        """Write a tar of `path` in another sandbox to `target` on this machine."""
        folder, name = (path, ".") if is_folder else posixpath.split(path)
        argv = [
            "tar",
            "-c",
            "-f",
            _PACKED,
            *([] if is_folder else ["-h"]),
            "-C",
            folder,
            "--",
            name,
        ]
        try:
            result = await source.run(argv, user=ROOT, cwd="/")
        except NotFound:
            raise BadRequest(f"{what}: it has no tar, which is needed to copy from it") from None
        if not result.ok:
            said = result.error_text.strip()[-500:]
            raise BadRequest(f"{what}: tar could not read {path}: {said}")
        await source.files.download(_PACKED, target, user=ROOT)
        await source.files.remove(_PACKED, user=ROOT)

    async def _place(self, files: Files, *, from_folder: bool) -> Place:
        is_there = False
        if not from_folder and not files.target.endswith("/"):
            is_there = await self._is_folder(self.root + files.target)
        return place_of(files.target, from_folder=from_folder, is_folder_there=is_there)

    async def _is_folder(self, path: str) -> bool:
        try:
            return (await self.sandbox.files.stat(path, user=ROOT)).type is FileType.DIRECTORY
        except (FileProblem, NotFound) as problem:
            if is_missing(problem):
                return False
            raise

    async def _tar_words(self) -> list[str]:
        """Return how tar unpacks here without replacing links by directories."""
        plain = ["tar", "-x", "-p", "-f", "-"]
        try:
            said = await self.sandbox.run(["tar", "--version"], user=ROOT, cwd="/")
        except NotFound:
            return plain
        if b"GNU tar" not in said.stdout:
            return plain
        return [*plain, "--same-owner", "--numeric-owner", "--keep-directory-symlink"]

    async def _owner(self, files: Files) -> Owner:
        if files.chown is None:
            return Owner(mode=files.chmod)
        user, _, group = files.chown.partition(":")
        users = await self._names("/etc/passwd", user)
        groups = await self._names("/etc/group", group) if group else {}
        uid = _number(files, user, users, 0)
        gid = _number(files, group, groups, 0) if group else _number(files, user, users, 1, uid)
        return Owner(uid, gid, files.chmod)

    async def _names(self, path: str, wanted: str) -> dict[str, list[str]]:
        """Return the numbers by name in a file such as /etc/passwd."""
        if wanted.isdecimal():
            return {}
        try:
            data = await self.sandbox.files.read(self.root + path, user=ROOT, limit=_PASSWD_BYTES)
        except (FileProblem, NotFound):
            return {}
        lines = data.decode(errors="replace").splitlines()
        return {parts[0]: parts[2:4] for line in lines if len(parts := line.split(":")) >= 3}


def matches(context: Context, sources: Sequence[str]) -> list[Entry]:
    """Return what all sources mean, each once."""
    found = [entry for source in sources for entry in context.match(source)]
    return list(dict.fromkeys(found))


def _number(files: Files, name: str, known: dict[str, list[str]], at: int, default: int = 0) -> int:
    if name.isdecimal():
        number = int(name) if at == 0 else default
    elif name in known and len(known[name]) > at and known[name][at].isdecimal():
        number = int(known[name][at])
    else:
        raise files.line.problem(
            f"--chown={files.chown}: the environment has no {name!r}: use its number"
        )
    if number > 65_535:
        raise files.line.problem(f"--chown={files.chown}: numbers go up to 65535")
    return number


async def _find(sandbox: AsyncSandbox, source: str) -> list[tuple[str, bool]]:
    """Return paths that `source` means in a sandbox, each with whether it is a directory."""
    path = posixpath.normpath("/" + source)
    path = path if not path.startswith("//") else path[1:]
    found = [path]
    if ignoring.is_glob(path):
        found = await _globbed(sandbox, path)
    try:
        stats = [(one, await sandbox.files.stat(one, user=ROOT)) for one in found]
    except (FileProblem, NotFound) as problem:
        if is_missing(problem):
            raise NotFound(f"there is no {source!r} to copy from") from None
        raise
    if not stats:
        raise NotFound(f"there is no {source!r} to copy from")
    return [(one, entry.type is FileType.DIRECTORY) for one, entry in stats]


async def _globbed(sandbox: AsyncSandbox, path: str) -> list[str]:
    found = ["/"]
    for name in path.strip("/").split("/"):
        if not ignoring.is_glob(name):
            found = [posixpath.join(folder, name) for folder in found]
            continue
        pattern = ignoring.glob(name)
        deeper: list[str] = []
        for folder in found:
            try:
                entries = await sandbox.files.list(folder, user=ROOT)
            except (FileProblem, NotFound):
                continue
            deeper += [posixpath.join(folder, e.name) for e in entries if pattern.match(e.name)]
        found = deeper
    return found
