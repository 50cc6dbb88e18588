"""Unpacks a tar in a sandbox that has no tar, file by file, as far as that goes."""

from __future__ import annotations

import asyncio
import posixpath
import tarfile
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import IO

from sandfleet.sandbox import AsyncSandbox
from sandfleet_common.errors import BadRequest

from .workshop import ROOT

MOST_FILES = 20_000
"""Each is a request of its own."""


async def unpack_plainly(
    sandbox: AsyncSandbox, folder: str, pieces: Iterable[bytes], what: str
) -> None:
    """Write the files of a tar into a directory of a sandbox.

    Raises:
        BadRequest: it is no tar, or holds links or owners, which only tar can make.
    """
    with tempfile.TemporaryDirectory(prefix="sandfleet-") as scratch:
        packed, one = Path(scratch, "packed"), Path(scratch, "one")
        await asyncio.to_thread(_keep, pieces, packed)
        with await asyncio.to_thread(packed.open, "rb") as source:
            await _unpack(sandbox, folder, source, one, what)


async def _unpack(
    sandbox: AsyncSandbox, folder: str, source: IO[bytes], one: Path, what: str
) -> None:
    try:
        with tarfile.open(fileobj=source, mode="r:") as tar:
            for count, member in enumerate(tar):
                if count >= MOST_FILES:
                    raise BadRequest(f"{what}: more than {MOST_FILES} files need a tar there")
                path = posixpath.join(folder, posixpath.normpath("/" + member.name).lstrip("/"))
                if not (member.isdir() or member.isreg()) or member.uid or member.gid:
                    raise BadRequest(
                        f"{what}: the environment has no tar, which is needed for "
                        f"links and owners ({member.name[:100]})"
                    )
                mode = member.mode & 0o7777
                if member.isdir():
                    await sandbox.files.mkdir(path, user=ROOT, mode=mode)
                    continue
                await asyncio.to_thread(_extract, tar, member, one, mode)
                await sandbox.files.upload(one, path, user=ROOT)
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as problem:
        raise BadRequest(f"{what}: this is no tar: {problem}") from None


def _keep(pieces: Iterable[bytes], target: Path) -> None:
    with target.open("wb") as file:
        for piece in pieces:
            file.write(piece)


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, mode: int) -> None:
    target.unlink(missing_ok=True)
    content = tar.extractfile(member)
    with target.open("wb") as file:
        while content is not None and (piece := content.read(1024 * 1024)):
            file.write(piece)
    target.chmod(mode & 0o777)
