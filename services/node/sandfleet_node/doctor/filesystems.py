"""Checks of what sandboxes' file systems are made of."""

from __future__ import annotations

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
