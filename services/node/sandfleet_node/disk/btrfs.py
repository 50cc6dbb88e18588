"""What the node asks of btrfs beyond files: subvolumes, simple quotas, counters. All by ioctl.

Every layout here is the kernel's (linux/btrfs.h, linux/btrfs_tree.h) and the same on all
64-bit machines; numbers are little-endian on disk and native in ioctls. A function takes a
descriptor of a directory of the file system and raises OSError with what the kernel said.
Arguments of over 1,024 bytes are handed over as bytearrays, as fcntl wants it.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import struct
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

_WRITE, _READ = 1, 2
_MAGIC = 0x94

FIRST_DIRECTORY = 256
"""Inode number of the root of every subvolume."""
TOP_LEVEL = 5
"""The subvolume that a mount shows unless it names another."""
_ROOT_TREE, _QUOTA_TREE = 1, 8
_ROOT_REF, _QGROUP_INFO = 156, 242
_GROUP_LEVEL_SHIFT = 48


def _number(direction: int, number: int, size: int) -> int:
    """Return an ioctl's number as the kernel's _IOW, _IOR and _IOWR macros make it."""
    return direction << 30 | size << 16 | _MAGIC << 8 | number


# struct btrfs_ioctl_vol_args: s64 fd, then a name of 4,087 bytes and NUL
_VOLUME = struct.Struct("<q4088s")
_SNAP_DESTROY = _number(_WRITE, 15, _VOLUME.size)
# struct btrfs_ioctl_vol_args_v2: s64 fd, u64 transid, u64 flags, u64 size of what is inherited
# and its address, two u64 unused, then a name of 4,039 bytes and NUL
_VOLUME_2 = struct.Struct("<qQQQQ16x4040s")
_SUBVOL_CREATE_2 = _number(_WRITE, 24, _VOLUME_2.size)
_SNAP_CREATE_2 = _number(_WRITE, 23, _VOLUME_2.size)
_INHERIT_GROUPS = 1 << 2
# struct btrfs_qgroup_inherit: u64 flags, count of groups, two counts not used, then a limit,
# then a u64 for each group the new subvolume's group becomes a member of
_INHERIT = struct.Struct("<QQQQ40sQ")
_SET_LIMITS = 1
# struct btrfs_qgroup_limit: u64 flags, max_rfer, max_excl, rsv_rfer, rsv_excl
_LIMIT = struct.Struct("<QQQQQ")
_MAX_RFER = 1
# struct btrfs_ioctl_qgroup_limit_args: u64 group, then a limit
_GROUP_LIMIT = struct.Struct("<QQQQQQ")
_QGROUP_LIMIT = _number(_READ, 43, _GROUP_LIMIT.size)
# struct btrfs_ioctl_qgroup_create_args: u64 1 to make and 0 to remove, u64 group
_GROUP_CREATE = struct.Struct("<QQ")
_QGROUP_CREATE = _number(_WRITE, 42, _GROUP_CREATE.size)
# struct btrfs_ioctl_quota_ctl_args: u64 command, u64 status
_QUOTA = struct.Struct("<QQ")
_QUOTA_CTL = _number(_READ | _WRITE, 40, _QUOTA.size)
_ENABLE_SIMPLE = 4
# struct btrfs_ioctl_fs_info_args: u64 highest device, u64 devices, the id, more
_INFO = struct.Struct("<QQ16s992x")
_FS_INFO = _number(_READ, 31, _INFO.size)
# struct btrfs_ioctl_ino_lookup_args: u64 tree, u64 inode, path
_LOOKUP = struct.Struct("<QQ4080s")
_INO_LOOKUP = _number(_READ | _WRITE, 18, _LOOKUP.size)
# struct btrfs_ioctl_search_args_v2: u64 tree; the lowest and highest u64 objectid, offset,
# transid; the lowest and highest u32 type; u32 count; 36 bytes unused; u64 size of the buffer,
# then the buffer
_SEARCH = struct.Struct("<Q6QIII36xQ")
_TREE_SEARCH_2 = _number(_READ | _WRITE, 17, _SEARCH.size)
# struct btrfs_ioctl_search_header, before each item: u64 transid, objectid, offset; u32 type, size
_FOUND = struct.Struct("<QQQII")
_SEARCH_BYTES = 65_536
# struct btrfs_qgroup_info_item: u64 generation, referenced, the same compressed, then exclusive
_GROUP_INFO = struct.Struct("<QQQQQ")
# struct btrfs_root_ref: u64 directory, u64 sequence, u16 length of the name that follows
_REF = struct.Struct("<QQH")
_ANY = (1 << 64) - 1


def group_of_all(number: int) -> int:
    """Return the id of a group above those of the subvolumes."""
    return 1 << _GROUP_LEVEL_SHIFT | number


def enable_simple_quotas(fd: int) -> None:
    """Count every extent for the subvolume that wrote it first, from now on (Linux 6.7)."""
    fcntl.ioctl(fd, _QUOTA_CTL, _QUOTA.pack(_ENABLE_SIMPLE, 0))


def make_group(fd: int, group: int) -> None:
    """Make a group; one that exists is no error."""
    try:
        fcntl.ioctl(fd, _QGROUP_CREATE, _GROUP_CREATE.pack(1, group))
    except FileExistsError:
        return


def remove_group(fd: int, group: int) -> bool:
    """Remove a subvolume's group; returns whether it is gone, which takes until all is freed."""
    try:
        fcntl.ioctl(fd, _QGROUP_CREATE, _GROUP_CREATE.pack(0, group))
    except OSError as problem:
        return problem.errno == errno.ENOENT
    return True


def limit_group(fd: int, group: int, limit_bytes: int) -> None:
    """Bound what the members of a group take together; over it, writes fail with EDQUOT.

    A group that is above a new, lower limit keeps what it has.
    """
    fcntl.ioctl(fd, _QGROUP_LIMIT, _GROUP_LIMIT.pack(group, _MAX_RFER, limit_bytes, 0, 0, 0))


def make_subvolume(fd: int, name: str, limit_bytes: int, above: int) -> None:
    """Make a bounded subvolume in a directory, member of the group `above`."""
    limit = _LIMIT.pack(_MAX_RFER, limit_bytes, 0, 0, 0)
    inherit = bytearray(_INHERIT.pack(_SET_LIMITS, 1, 0, 0, limit, above))
    address = ctypes.addressof(ctypes.c_char.from_buffer(inherit))
    asked = _VOLUME_2.pack(0, 0, _INHERIT_GROUPS, len(inherit), address, name.encode())
    fcntl.ioctl(fd, _SUBVOL_CREATE_2, bytearray(asked))


def make_snapshot(fd: int, name: str, of: int, above: int) -> None:
    """Make a writable copy of a subvolume in a directory, member of the group `above`.

    What both share goes on counting for the subvolume that wrote it, until neither has it.

    Args:
        fd: of the directory.
        name: of the copy.
        of: descriptor of the subvolume's root.
        above: the group.
    """
    inherit = bytearray(_INHERIT.pack(0, 1, 0, 0, bytes(_LIMIT.size), above))
    address = ctypes.addressof(ctypes.c_char.from_buffer(inherit))
    asked = _VOLUME_2.pack(of, 0, _INHERIT_GROUPS, len(inherit), address, name.encode())
    fcntl.ioctl(fd, _SNAP_CREATE_2, bytearray(asked))


def remove_subvolume(fd: int, name: str) -> None:
    """Remove a subvolume with all in it, at once; the kernel frees its space a little later."""
    fcntl.ioctl(fd, _SNAP_DESTROY, bytearray(_VOLUME.pack(0, name.encode())))


def file_system_id(fd: int) -> str:
    """Return the file system's id, as /sys/fs/btrfs names it."""
    found = fcntl.ioctl(fd, _FS_INFO, bytes(_INFO.size))
    return str(uuid.UUID(bytes=_INFO.unpack(found)[2]))


def subvolume_id(fd: int) -> int:
    """Return the id of the subvolume that a file is in."""
    found = bytearray(_LOOKUP.pack(0, FIRST_DIRECTORY, b""))
    fcntl.ioctl(fd, _INO_LOOKUP, found)
    return int(_LOOKUP.unpack(found)[0])


def subvolumes(fd: int) -> dict[str, int]:
    """Return the ids of the subvolumes directly in the top level, by name."""
    found: dict[str, int] = {}
    first, last = (TOP_LEVEL, _ROOT_REF, 0), (TOP_LEVEL, _ROOT_REF, _ANY)
    for item in _search(fd, _ROOT_TREE, first, last):
        _, _, length = _REF.unpack_from(item.data)
        name = item.data[_REF.size : _REF.size + length]
        found[name.decode(errors="replace")] = item.offset
    return found


def used(fd: int) -> dict[int, int]:
    """Return the bytes that each group takes, as of the last commit, by its id."""
    return {
        item.offset: _GROUP_INFO.unpack_from(item.data)[1]
        for item in _search(fd, _QUOTA_TREE, (0, _QGROUP_INFO, 0), (0, _QGROUP_INFO, _ANY))
    }


@dataclass(frozen=True, slots=True)
class _Item:
    kind: int
    objectid: int
    offset: int
    data: bytes


def _search(
    fd: int, tree: int, first: tuple[int, int, int], last: tuple[int, int, int]
) -> Iterator[_Item]:
    """Yield a tree's items between two keys (objectid, type, offset) that have the same type."""
    buffer = bytearray(_SEARCH.size + _SEARCH_BYTES)
    at = first
    while True:
        _SEARCH.pack_into(
            buffer, 0, tree, at[0], last[0], at[2], last[2], 0, _ANY, at[1], last[1],
            0xFFFF_FFFF, _SEARCH_BYTES,
        )  # fmt: skip
        fcntl.ioctl(fd, _TREE_SEARCH_2, buffer, True)
        count = _SEARCH.unpack_from(buffer)[9]
        if not count:
            return
        place = _SEARCH.size
        item = None
        for _ in range(count):
            _, objectid, offset, kind, size = _FOUND.unpack_from(buffer, place)
            place += _FOUND.size
            item = _Item(kind, objectid, offset, bytes(buffer[place : place + size]))
            place += size
            if kind == first[1]:
                yield item
        if item is None or item.offset == _ANY:
            return
        at = (item.objectid, item.kind, item.offset + 1)
