"""Checks of what sandboxes' file systems are made of."""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path

from sandfleet_node.disk.pool import POOL_BYTES_MIN, Pool, PoolError

from .check import Check, Host


def erofs(host: Host) -> Check:
    """Mount a small EROFS image."""
    why = "layers are EROFS images"
    outcome = host.tried()
    if not outcome.erofs:
        how = "through a loop device" if outcome.by_loop else "straight from a file"
        return Check("erofs", "ok", f"mounted {how}", why)
    if "not installed" in outcome.erofs:
        return Check("erofs", "fail", outcome.erofs, why, "apt-get install erofs-utils")
    known = "erofs" in host.text("proc/filesystems").split()
    mend = "modprobe loop" if known else "modprobe erofs"
    return Check("erofs", "fail", f"cannot be mounted: {outcome.erofs}", why, mend)


def overlay(host: Host) -> Check:
    """Overlay a directory of the state directory on an id-mapped layer."""
    why = "a sandbox writes over read-only layers whose ids are mapped to its own"
    problem = host.tried().overlay
    if not problem:
        return Check("overlay", "ok", f"works on id-mapped layers in {host.folder()}", why)
    known = "overlay" in host.text("proc/filesystems").split()
    mend = (
        "put the state directory (SANDFLEET_STATE_DIR) on ext4 or xfs, not on an overlay or NFS"
        if known
        else "modprobe overlay"
    )
    return Check("overlay", "fail", f"{problem} (in {host.folder()})", why, mend)


def disk_caps(host: Host) -> Check:
    """Make a small pool, and remove it."""
    why = "a sandbox cannot write more than its disk; without a pool one that did is ended"
    try:
        with tempfile.TemporaryDirectory(prefix=".sandfleet-doctor-", dir=host.folder()) as place:
            pool = Pool.make(Path(place, "1.img"), Path(place, "1"), POOL_BYTES_MIN)
            pool.discard()
    except (PoolError, OSError, subprocess.SubprocessError) as problem:
        missing = "not installed" in str(problem)
        mend = "apt-get install btrfs-progs" if missing else "boot Linux 6.7 or newer with btrfs"
        return Check("disk-caps", "warn", f"accounting only: {problem}", why, mend)
    return Check("disk-caps", "ok", "held by the kernel (btrfs with simple quotas)", why)
