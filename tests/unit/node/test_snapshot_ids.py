"""Ids of files as their sandbox sees them, in the three places where the kernel keeps them."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from sandfleet_node.snapshots.ids import Ids, plain_capability

FIRST = 0x7000_0000
ENTRY = struct.Struct("<HHI")


def test_ids_of_the_range_begin_at_zero_and_others_stay() -> None:
    ids = Ids(FIRST)
    assert [ids.inside(FIRST + n) for n in (0, 1000, 65_535)] == [0, 1000, 65_535]
    assert [ids.inside(n) for n in (0, 65_535, FIRST - 1, FIRST + 65_536)] == [
        0, 65_535, FIRST - 1, FIRST + 65_536,
    ]  # fmt: skip


@given(st.integers(0, 65_535))
def test_shifting_twice_is_shifting_once(number: int) -> None:
    ids = Ids(FIRST)
    assert ids.inside(ids.inside(FIRST + number)) == number


def test_a_list_of_rights_names_the_sandboxs_own_users() -> None:
    entries = [(1, 7, 0xFFFF_FFFF), (2, 6, FIRST + 5), (8, 4, FIRST + 9), (0x20, 0, 0xFFFF_FFFF)]
    value = struct.pack("<I", 2) + b"".join(ENTRY.pack(*entry) for entry in entries)
    shifted = Ids(FIRST).access_list(value)
    assert shifted[:4] == value[:4]
    found = [ENTRY.unpack_from(shifted, at) for at in range(4, len(shifted), ENTRY.size)]
    assert found == [(1, 7, 0xFFFF_FFFF), (2, 6, 5), (8, 4, 9), (0x20, 0, 0xFFFF_FFFF)]


@given(st.binary(max_size=60))
def test_a_list_of_any_bytes_keeps_its_length(value: bytes) -> None:
    assert len(Ids(FIRST).access_list(value)) == len(value)


def test_capabilities_lose_their_root_and_nothing_else() -> None:
    rights = struct.pack("<IIII", 0x400, 1, 2, 3)
    bound = struct.pack("<I", 0x0300_0001) + rights + struct.pack("<I", FIRST)
    assert plain_capability(bound) == struct.pack("<I", 0x0200_0001) + rights
    plain = struct.pack("<I", 0x0200_0001) + rights
    assert plain_capability(plain) == plain


@given(st.binary(max_size=40))
def test_capabilities_of_any_bytes_do_no_harm(value: bytes) -> None:
    assert len(plain_capability(value)) <= max(len(value), 20)
