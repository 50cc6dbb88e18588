"""Making an EROFS image of a directory, the same bytes for the same content."""

from __future__ import annotations

import subprocess
from pathlib import Path

from sandfleet_common.errors import Broken, NotFound

UUID = "5a4df1ee-7000-4000-8000-000000000001"
"""The same for all images: a layer is known by its digest, equal trees must give equal bytes."""


def pack(tree: Path, image: Path) -> None:
    """Write an image of `tree`; every time in it is 0.

    It is not compressed. Measured with Python's start-up on Debian's base: LZ4 makes the
    image 37 % smaller (74 MB for 118 MB) and neither the first nor a later start faster,
    and costs CPU for every page that memory pressure throws out.

    Raises:
        NotFound: mkfs.erofs is not installed.
        Broken: it failed.
    """
    argv = ["mkfs.erofs", "--quiet", "-T0", "-U", UUID, str(image), str(tree)]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise NotFound("mkfs.erofs is missing: apt-get install erofs-utils") from None
    if done.returncode != 0:
        image.unlink(missing_ok=True)
        raise Broken(f"mkfs.erofs failed on {tree}: {done.stderr.strip()[-300:]}")
