"""cp: files between this machine and a sandbox."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import click
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from sandfleet.client import AsyncClient
from sandfleet.files import is_missing
from sandfleet.sandbox import AsyncSandbox
from sandfleet_common.errors import BadRequest, FileProblem, NotFound
from sandfleet_common.messages import MIB, FileType

from . import session

BIG_BYTES = 4 * MIB
"""Less is copied before anybody could read a progress bar."""


def split(place: str) -> tuple[str | None, str]:
    """Return the sandbox and the path of `SANDBOX:PATH`, or None and a path of this machine.

    `./a:b` and `/a:b` are of this machine, as a sandbox's name holds no slash.
    """
    name, colon, path = place.partition(":")
    if not colon or "/" in name or not name:
        return None, place
    return name, path or "."


@click.command(cls=session.Taught)
@click.argument("source", metavar="SRC")
@click.argument("target", metavar="DST")
@click.option("--user", "-u", help="User whose files they are in the sandbox.")
@session.command()
async def cp(client: AsyncClient, *, source: str, target: str, user: str | None) -> None:
    """Copy a file or directory into a sandbox or out of it.

    One of SRC and DST is SANDBOX:PATH; a relative PATH starts at the user's home.
    Into a directory that exists the copy goes under its own name. Links are not
    copied.

      sandfleet cp src 7k2m9qzx:/work
      sandfleet cp 7k2m9qzx:/root/report.json .
    """
    from_name, from_path = split(source)
    to_name, to_path = split(target)
    if (from_name is None) == (to_name is None):
        raise BadRequest("one of SRC and DST is SANDBOX:PATH, the other a path of this machine")
    if to_name is not None:
        sandbox = await session.resolve(client, to_name)
        await _upload(sandbox, Path(from_path), to_path, user)
    elif from_name is not None:
        sandbox = await session.resolve(client, from_name)
        await _download(sandbox, from_path, Path(to_path), user)


async def _upload(sandbox: AsyncSandbox, source: Path, path: str, user: str | None) -> None:
    if await _is_folder(sandbox, path, user):
        name = (await asyncio.to_thread(source.resolve)).name
        path = f"{path.rstrip('/')}/{name}"
    total = await asyncio.to_thread(_total, source)
    with progress(total) as advance:
        await sandbox.files.upload(source, path, user=user, progress=advance)


async def _download(sandbox: AsyncSandbox, path: str, target: Path, user: str | None) -> None:
    entry = await sandbox.files.stat(path, user=user)
    if await asyncio.to_thread(target.is_dir):
        target = target / (entry.name or "root")
    total = entry.size if entry.type is FileType.FILE else None
    with progress(total) as advance:
        await sandbox.files.download(path, target, user=user, progress=advance)


async def _is_folder(sandbox: AsyncSandbox, path: str, user: str | None) -> bool:
    try:
        return (await sandbox.files.stat(path, user=user)).type is FileType.DIRECTORY
    except (FileProblem, NotFound) as problem:
        if is_missing(problem):
            if path.endswith("/"):
                raise
            return False
        raise


def _total(source: Path) -> int:
    if not source.is_dir():
        return source.stat().st_size if source.exists() else 0
    return sum(
        (Path(folder) / name).lstat().st_size
        for folder, _, names in os.walk(source)
        for name in names
    )


@contextmanager
def progress(total: int | None) -> Generator[Callable[[int], None] | None]:
    """Show a bar on a terminal for a copy that takes a while; None: of unknown size."""
    if not sys.stderr.isatty() or (total is not None and total < BIG_BYTES):
        yield None
        return
    columns = (TextColumn("copying"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task("", total=total)
        yield lambda size: shown.advance(task, size)
