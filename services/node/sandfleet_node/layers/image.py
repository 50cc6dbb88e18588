"""Making an EROFS image of a tree, the same bytes for the same content.

Names and attributes go into one file, the contents of files into another, so that a reader
can have the first whole and the second on demand.
"""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

from sandfleet_common.errors import BadRequest, Broken, NotFound, TimedOut

UUID = "5a4df1ee-7000-4000-8000-000000000001"
"""The same for all images: a layer is known by its digest, equal trees must give equal bytes."""
OPTIONS = ("--quiet", "-Eforce-inode-extended", "-U", UUID, "--chunksize=1048576")
"""Times are kept, in inodes that have room for them. Equal chunks of a MiB are stored once. Nothing
is compressed: measured with Python's start-up on Debian's base, LZ4 makes an image 37 % smaller
and neither the first nor a later start faster, and costs CPU for every page that memory pressure
throws out."""
# struct erofs_super_block: u32 magic, u32 checksum, u32 compatible features, ..., at 24 the build
# time, u64 seconds and u32 nanoseconds
_SUPERBLOCK_AT, _SUPERBLOCK_BYTES, _MAGIC = 1024, 128, 0xE0F5E1E2
_CHECKSUM_AT, _FEATURES_AT, _BUILT_AT = 4, 8, 24
_HAS_CHECKSUM = 1
_U32, _BUILT = struct.Struct("<I"), struct.Struct("<QI")
FILES_MAX = 5_000_000
BYTES_MAX = 1 << 38
PACK_SECONDS = 3600.0


def pack(
    tree: Path,
    folder: Path,
    *,
    bytes_max: int = BYTES_MAX,
    files_max: int = FILES_MAX,
    seconds: float = PACK_SECONDS,
    keep_times: bool = True,
) -> None:
    """Write `meta` and `data` of a tree into a folder; blocks.

    Args:
        tree: what becomes the root of the layer.
        folder: exists; what it has of the two files is replaced.
        bytes_max: sizes of all files together, holes included: they are read.
        files_max: how many files there may be.
        seconds: how long it may take.
        keep_times: False: every time is 0, so that the same files built twice are one layer.

    Raises:
        BadRequest: the tree is over a bound.
        NotFound: mkfs.erofs is not installed.
        TimedOut: it took too long.
        Broken: it failed.
    """
    _demand_bounds(tree, bytes_max, files_max)
    meta, data = folder / "meta", folder / "data"
    times = () if keep_times else ("-T0",)
    argv = ["mkfs.erofs", *OPTIONS, *times, f"--blobdev={data}", str(meta), str(tree)]
    try:
        _run(argv, seconds)
        forget_build(meta)
    except BaseException:
        meta.unlink(missing_ok=True)
        data.unlink(missing_ok=True)
        raise


def forget_build(meta: Path) -> None:
    """Take out of an image when it was made, with the checksum over that: the digest is ours.

    Raises:
        Broken: it is no image.
    """
    with meta.open("r+b") as file:
        file.seek(_SUPERBLOCK_AT)
        block = bytearray(file.read(_SUPERBLOCK_BYTES))
        if len(block) < _SUPERBLOCK_BYTES or _U32.unpack_from(block)[0] != _MAGIC:
            raise Broken("mkfs.erofs wrote no image")
        features = _U32.unpack_from(block, _FEATURES_AT)[0]
        _U32.pack_into(block, _FEATURES_AT, features & ~_HAS_CHECKSUM)
        _U32.pack_into(block, _CHECKSUM_AT, 0)
        _BUILT.pack_into(block, _BUILT_AT, 0, 0)
        file.seek(_SUPERBLOCK_AT)
        file.write(block)


def _run(argv: list[str], seconds: float) -> None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=seconds)
    except FileNotFoundError:
        raise NotFound("mkfs.erofs is missing: apt-get install erofs-utils") from None
    except subprocess.TimeoutExpired:
        raise TimedOut(f"packing took longer than {seconds:g} s") from None
    if done.returncode != 0:
        raise Broken(f"mkfs.erofs failed on {argv[-1]}: {done.stderr.strip()[-300:]}")


def _demand_bounds(tree: Path, bytes_max: int, files_max: int) -> None:
    size = count = 0
    folders = [str(tree)]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                count += 1
                if entry.is_dir(follow_symlinks=False):
                    folders.append(entry.path)
                elif entry.is_file(follow_symlinks=False):
                    size += entry.stat(follow_symlinks=False).st_size
        if count > files_max:
            raise BadRequest(f"the tree has more than {files_max} files")
        if size > bytes_max:
            raise BadRequest(f"the files of the tree are longer than {bytes_max} bytes together")
