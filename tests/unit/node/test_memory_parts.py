"""Memory and swap as the kernel tells of them, what is cold, and a swap area's first page."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from sandfleet_common.messages import GIB, MIB
from sandfleet_node.memorygroup import MemoryGroup
from sandfleet_node.processmemory import Range, parse_maps
from sandfleet_node.reclaim import cold
from sandfleet_node.swap import SwapArea, automatic_size, parse_swaps, signature

SMAPS = """\
55d0c8a00000-55d0c8b00000 r-xp 00001000 fe:00 1234    /usr/bin/python3 (deleted)
Size:               1024 kB
Rss:                 512 kB
Referenced:          512 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
7f0000000000-7f0000400000 rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                2048 kB
Referenced:            0 kB
Swap:               1024 kB
VmFlags: rd wr mr mw me ac
7ffe00000000-7ffe00021000 rw-p 00000000 00:00 0       [stack]
Rss:                  16 kB
7ffe00030000-7ffe00034000 r--p 00000000 00:00 0       [vvar]
Rss:                   0 kB
"""


def test_ranges_of_a_process_are_read_with_their_amounts() -> None:
    program, heap, stack = parse_maps(SMAPS)
    assert (program.is_anonymous, program.resident) == (False, 512 * 1024)
    assert heap == Range(
        0x7F0000000000, 0x7F0000400000, True, resident=2 * MIB, referenced=0, swapped=MIB
    )
    assert heap.size == 4 * MIB
    assert (stack.is_anonymous, stack.resident) == (True, 16 * 1024)


def test_this_process_has_ranges() -> None:
    found = parse_maps(Path("/proc/self/smaps").read_text())
    assert sum(each.resident for each in found) > MIB


def test_only_large_untouched_memory_without_a_file_is_cold_the_largest_first() -> None:
    small = Range(0, 4096, True, resident=4096)
    touched = Range(0, MIB, True, resident=MIB, referenced=4096)
    file = Range(0, MIB, False, resident=MIB)
    less, more = Range(0, MIB, True, resident=MIB), Range(0, 2 * MIB, True, resident=2 * MIB)
    assert cold([small, touched, file, less, more]) == [more, less]


def test_swap_areas_are_read() -> None:
    text = "Filename\tType\tSize\tUsed\tPriority\n/a\\040b/swap file 1024 4 -2\n"
    assert parse_swaps(text) == [SwapArea("/a b/swap", 1024 * 1024, 4096)]


def test_an_automatic_swap_file_is_as_large_as_memory_but_takes_a_tenth_of_the_disk_at_most() -> (
    None
):
    assert automatic_size(8 * GIB, 1000 * GIB) == 8 * GIB
    assert automatic_size(8 * GIB, 10 * GIB) == GIB


def test_a_swap_area_is_signed_as_mkswap_does_it(tmp_path: Path) -> None:
    mkswap = shutil.which("mkswap")
    if mkswap is None:
        pytest.skip("needs mkswap: apt-get install util-linux")
    name, size, page = bytes(range(16)), 4 * MIB, os.sysconf("SC_PAGE_SIZE")
    theirs = tmp_path / "theirs"
    theirs.touch(0o600)
    os.truncate(theirs, size)
    text = "00010203-0405-0607-0809-0a0b0c0d0e0f"
    subprocess.run([mkswap, "--uuid", text, str(theirs)], check=True, capture_output=True)
    assert signature(size, page, name) == theirs.read_bytes()[:page]


def test_a_group_that_has_gone_is_empty(tmp_path: Path) -> None:
    for is_v2 in (True, False):
        group = MemoryGroup(str(tmp_path / "gone"), is_v2)
        with group.swappable():
            group.empty(lambda: False)
        assert (group.usage(), group.swapped(), group.pids()) == (0, 0, [])


def test_a_group_of_version_2_may_swap_only_while_it_is_reclaimed(tmp_path: Path) -> None:
    group = MemoryGroup(str(tmp_path), is_v2=True)
    limit = tmp_path / "memory.swap.max"
    limit.write_text("0")
    with group.swappable():
        assert limit.read_text().startswith("max")
    limit.write_text("x")
    group.allow_swap(False)
    assert limit.read_text() == "0"


def test_usage_and_processes_of_both_versions_are_read(tmp_path: Path) -> None:
    (tmp_path / "memory.current").write_text("5\n")
    (tmp_path / "memory.swap.current").write_text("6\n")
    (tmp_path / "memory.usage_in_bytes").write_text("7\n")
    (tmp_path / "memory.stat").write_text("swap 1\ntotal_swap 8\n")
    (tmp_path / "cgroup.procs").write_text("11\n12\n")
    (tmp_path / "command").mkdir()
    (tmp_path / "command" / "cgroup.procs").write_text("13\n")
    new, old = MemoryGroup(str(tmp_path), True), MemoryGroup(str(tmp_path), False)
    assert (new.usage(), new.swapped(), new.pids()) == (5, 6, [11, 12, 13])
    assert (old.usage(), old.swapped()) == (7, 8)
