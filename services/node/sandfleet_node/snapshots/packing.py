"""Packing a staged tree into a layer's image, by a program that may use no more than it needs.

The tree is shown to the program in a mount namespace of its own, with the ids that it has
inside the sandbox. The program dies with the node.
"""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandfleet_common.errors import NoCapacity, SandboxFailed, SandfleetError, TimedOut
from sandfleet_node.config import IDS_EACH
from sandfleet_node.disk import Stage
from sandfleet_node.disk.mounts import in_own_mounts, shift_ids
from sandfleet_node.layers.image import OPTIONS, forget_build
from sandfleet_node.programs import run

_MEMORY_BYTES = 4 * 1024**3
_NAME_MAX = 255
"""What Linux allows; mkfs.erofs 1.5 cuts the last byte off and then misses the file."""
_KINDLY = ["nice", "-n", "5", "ionice", "-c2", "-n7"]


@dataclass(frozen=True, slots=True)
class Allowance:
    """What packing one tree may take."""

    seconds: float
    file_bytes: int
    """Of each file that it writes."""


def pack_stage(
    stage: Stage,
    inner: Path,
    first_id: int | None,
    folder: Path,
    allowance: Allowance,
    is_stopping: Callable[[], bool],
) -> None:
    """Write `meta` and `data` of a staged tree into `folder`. Blocks.

    Args:
        stage: where the tree is.
        inner: the directory of the stage that is packed.
        first_id: of the sandbox's range on this host; None: the tree has its ids already.
        folder: exists; `tree` beside it becomes the place where the stage is seen meanwhile.
        allowance: of the program.
        is_stopping: looked at again and again.

    Raises:
        SandfleetError: it failed, says why.
        OSError: the tree cannot be shown.
    """
    place = folder.parent / "tree"
    place.mkdir()
    mount = stage.mount()
    try:
        if first_id is not None:
            shift_ids(mount, first_id, IDS_EACH)
        in_own_mounts(mount, place, lambda: _pack(place / inner, folder, allowance, is_stopping))
    finally:
        os.close(mount)
        place.rmdir()


def _pack(tree: Path, folder: Path, allowance: Allowance, is_stopping: Callable[[], bool]) -> None:
    argv = [*_KINDLY, "mkfs.erofs", *OPTIONS]
    argv += [f"--blobdev={folder}/data", f"{folder}/meta", str(tree)]
    try:
        status, said = run(
            argv, allowance.seconds, is_stopping, began=lambda pid: _bound(pid, allowance),
            cwd=folder, env={"PATH": os.environ.get("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")},
        )  # fmt: skip
    except TimeoutError:
        raise TimedOut(
            f"packing took longer than {allowance.seconds:g} s (snapshot_pack_seconds)"
        ) from None
    if status != 0:
        raise _failure(status, said, tree)
    forget_build(folder / "meta")


def _bound(pid: int, allowance: Allowance) -> None:
    """Bound a program that has just begun: what it has done so far is nothing."""
    seconds = int(allowance.seconds) + 1
    for what, most in (
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, allowance.file_bytes),
        (resource.RLIMIT_AS, _MEMORY_BYTES),
        (resource.RLIMIT_CORE, 0),
    ):
        try:
            resource.prlimit(pid, what, (most, most))
        except ProcessLookupError:
            return


def _failure(status: int, said: str, tree: Path) -> SandfleetError:
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if status == -signal.SIGXFSZ or "No space left" in said or "File too large" in said:
        return NoCapacity("the node's disk has no room for the layer")
    if status < 0:
        return SandboxFailed(f"mkfs.erofs was ended by {signal.Signals(-status).name}")
    below = _with_longest_name(tree)
    if below is not None:
        return SandboxFailed(
            f"/{below} has a name of {_NAME_MAX} bytes, one more than mkfs.erofs here can pack"
        )
    return SandboxFailed(
        f"mkfs.erofs ended with {status}: {lines[-1][-300:] if lines else 'it said nothing'}"
    )


def _with_longest_name(tree: Path) -> str | None:
    """Return a directory, from the root of the tree, with a name as long as any can be."""
    for here, folders, names in os.walk(os.fsencode(tree)):
        if any(len(name) == _NAME_MAX for name in (*folders, *names)):
            return os.path.relpath(here, os.fsencode(tree)).decode(errors="backslashreplace")
    return None
