"""Giving files the ids that they have inside their sandbox, where they lie.

The kernel keeps ids in three places: of the file, in lists of access rights, and in file
capabilities, which it drops, as it does set-id bits, when a file changes hands.
"""

from __future__ import annotations

import os
import stat
import struct

from sandfleet_node.config import IDS_EACH

_CAPABILITY = "security.capability"
_ACCESS_LISTS = ("system.posix_acl_access", "system.posix_acl_default")
_REVISION, _REVISION_2, _REVISION_3 = 0xFF00_0000, 0x0200_0000, 0x0300_0000
_ACCESS = struct.Struct("<HHI")
_ACCESS_HEADER = 4
_NAMED = (0x02, 0x08)
"""Entries of a list that name a user, or a group."""


class Ids:
    """Takes the first id of a range from all ids in it; others it leaves alone."""

    def __init__(self, first: int) -> None:
        self._first = first

    def inside(self, number: int) -> int:
        """Return an id as the sandbox sees it."""
        is_ours = self._first <= number < self._first + IDS_EACH
        return number - self._first if is_ours else number

    def shift(self, path: bytes, found: os.stat_result, *, follow: bool) -> None:
        """Shift the ids of one file; once more changes nothing.

        Raises:
            OSError: the disk is full or failed.
        """
        uid, gid = self.inside(found.st_uid), self.inside(found.st_gid)
        if (uid, gid) == (found.st_uid, found.st_gid):
            return
        names = os.listxattr(path, follow_symlinks=follow)
        kept = {
            name: os.getxattr(path, name, follow_symlinks=follow)
            for name in (_CAPABILITY, *_ACCESS_LISTS)
            if name in names
        }
        os.chown(path, uid, gid, follow_symlinks=follow)
        if stat.S_ISREG(found.st_mode) and found.st_mode & (stat.S_ISUID | stat.S_ISGID):
            os.chmod(path, stat.S_IMODE(found.st_mode))  # noqa: PTH101 - bytes
        for name, value in kept.items():
            new = plain_capability(value) if name == _CAPABILITY else self.access_list(value)
            os.setxattr(path, name, new, follow_symlinks=follow)

    def access_list(self, value: bytes) -> bytes:
        """Return a list of access rights with its ids shifted."""
        out = bytearray(value)
        for at in range(_ACCESS_HEADER, len(value) - _ACCESS.size + 1, _ACCESS.size):
            tag, rights, number = _ACCESS.unpack_from(value, at)
            if tag in _NAMED:
                _ACCESS.pack_into(out, at, tag, rights, self.inside(number))
        return bytes(out)


def plain_capability(value: bytes) -> bytes:
    """Return file capabilities without the root that they are for; whoever mounts them is it."""
    if len(value) < 24:
        return value
    (magic,) = struct.unpack_from("<I", value)
    if magic & _REVISION != _REVISION_3:
        return value
    return struct.pack("<I", magic & ~_REVISION | _REVISION_2) + value[4:20]
