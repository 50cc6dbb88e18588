"""Finding types by name in the kernel's type information (BTF)."""

from __future__ import annotations

import struct
from pathlib import Path

_MAGIC = 0xEB9F
_TYPEDEF, _FUNC = 8, 12
_HEADER = struct.Struct("<HBBIIIII")
_TYPE = struct.Struct("<III")
# Bytes that follow a type's first twelve: for all of it, and for each member.
_FIXED = {1: 4, 3: 12, 14: 4, 17: 4}
_EACH = {4: 12, 5: 12, 6: 8, 13: 8, 15: 12, 19: 12}


def find_types(path: Path, names: set[str]) -> dict[str, int]:
    """Return the ids of typedefs and functions by name; empty when there is no BTF to read."""
    try:
        data = path.read_bytes()
        magic, _, _, length, type_at, type_size, string_at, string_size = _HEADER.unpack_from(data)
    except (OSError, struct.error):
        return {}
    if magic != _MAGIC:
        return {}
    strings = data[length + string_at : length + string_at + string_size]
    wanted: dict[int, str] = {}
    for name in names:
        place = strings.find(b"\0" + name.encode() + b"\0")
        if place >= 0:
            wanted[place + 1] = name
    return _walk(data, length + type_at, type_size, wanted)


def _walk(data: bytes, start: int, size: int, wanted: dict[int, str]) -> dict[str, int]:
    found: dict[str, int] = {}
    at, end, number = start, start + size, 0
    while at < end and len(found) < len(wanted):
        name, info, _ = _TYPE.unpack_from(data, at)
        number += 1
        kind = info >> 24 & 0x1F
        if name in wanted and kind in (_TYPEDEF, _FUNC):
            found[wanted[name]] = number
        at += 12 + _FIXED.get(kind, 0) + _EACH.get(kind, 0) * (info & 0xFFFF)
    return found
