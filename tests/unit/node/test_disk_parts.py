"""What the disk's parts decide and measure, without btrfs, mounts or root."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from sandfleet_common.messages import GIB, MIB
from sandfleet_node.disk import btrfs, guard
from sandfleet_node.disk.accounting import interval, over
from sandfleet_node.disk.mounts import mounted_in
from sandfleet_node.disk.tree import INODE_BYTES, measure, unlinked

RESERVE = 512 * MIB


def test_a_pool_may_take_what_is_free_but_the_reserve() -> None:
    assert guard.bound(3 * GIB, 10 * GIB, RESERVE) == 13 * GIB - RESERVE


def test_a_pool_on_a_full_disk_may_keep_what_it_has_and_take_nothing() -> None:
    assert guard.bound(3 * GIB, RESERVE // 2, RESERVE) == 3 * GIB


def test_a_bound_is_lowered_sooner_than_raised() -> None:
    step = RESERVE // 16
    assert guard.is_worth_setting(GIB - step, GIB, RESERVE)
    assert not guard.is_worth_setting(GIB + step, GIB, RESERVE)
    assert guard.is_worth_setting(GIB + RESERVE, GIB, RESERVE)


def test_a_disk_that_fills_is_looked_at_more_often() -> None:
    assert guard.pause(2 * RESERVE, RESERVE) < guard.pause(100 * RESERVE, RESERVE)


def test_the_closer_to_its_cap_the_sooner_a_sandbox_is_measured() -> None:
    waits = [interval(used, 64 * GIB) for used in (0, 60 * GIB, 63 * GIB, 64 * GIB, 65 * GIB)]
    assert waits == sorted(waits, reverse=True)
    assert waits[-1] > 0


def test_a_sandbox_over_its_cap_is_told_how_much() -> None:
    assert over(70 * MIB, 64 * MIB) == "it wrote more than its disk allows: 70 MiB of 64 MiB"


# ------------------------------------------------------------------------ trees


def test_a_tree_counts_blocks_and_files(tmp_path: Path) -> None:
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "file").write_bytes(b"x" * 100_000)
    size = measure(str(tmp_path), GIB)
    assert size.files == 4
    assert size.is_whole
    assert 100_000 + 4 * INODE_BYTES <= size.bytes < 200_000


def test_a_file_of_several_names_counts_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x" * 100_000)
    for name in "abc":
        os.link(tmp_path / "file", tmp_path / name)
    assert measure(str(tmp_path), GIB).files == 2


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "up").symlink_to(tmp_path)
    (tmp_path / "tree" / "root").symlink_to("/")
    assert measure(str(tmp_path / "tree"), GIB).files == 3


def test_a_tree_deeper_than_any_path_is_measured(tmp_path: Path) -> None:
    here = os.open(tmp_path, os.O_RDONLY)
    for _ in range(600):
        os.mkdir("a-directory-name", dir_fd=here)
        below = os.open("a-directory-name", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = below
    os.close(here)
    assert measure(str(tmp_path), GIB).files == 601


def test_measuring_ends_when_it_is_over(tmp_path: Path) -> None:
    for number in range(500):
        (tmp_path / str(number)).touch()
    size = measure(str(tmp_path), 100 * INODE_BYTES)
    assert size.bytes > 100 * INODE_BYTES
    assert size.files < 110
    assert not size.is_whole


def test_a_directory_that_may_not_be_opened_makes_it_uncertain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "vanishing").mkdir()
    real = os.open

    def gone(path: str, flags: int, **fields: int) -> int:
        if path == "vanishing":
            raise FileNotFoundError(path)
        return real(path, flags, **fields)

    monkeypatch.setattr(os, "open", gone)
    assert not measure(str(tmp_path), GIB).is_whole


def test_files_held_open_without_a_name_are_found(tmp_path: Path) -> None:
    before = unlinked([os.getpid()], GIB)
    with (tmp_path / "file").open("wb") as file:
        file.write(b"x" * 1_000_000)
        file.flush()
        os.fsync(file.fileno())
        (tmp_path / "file").unlink()
        assert unlinked([os.getpid()], GIB) - before >= 1_000_000


# --------------------------------------------------------------------- layouts


def test_requests_have_the_numbers_and_sizes_of_the_kernels_header() -> None:
    header = Path("/usr/include/linux/btrfs.h")
    if not header.exists():
        pytest.skip("needs the kernel's headers: apt-get install linux-libc-dev")
    text = header.read_text()
    for name, number in (
        ("SUBVOL_CREATE_V2", 24), ("SNAP_DESTROY", 15), ("QGROUP_LIMIT", 43),
        ("QGROUP_CREATE", 42), ("QUOTA_CTL", 40), ("INO_LOOKUP", 18),
        ("TREE_SEARCH_V2", 17), ("FS_INFO", 31),
    ):  # fmt: skip
        made = re.search(rf"BTRFS_IOC_{name}\s+_IO\w+\(BTRFS_IOCTL_MAGIC,\s+(\d+),", text)
        assert made is not None, name
        assert int(made[1]) == number, name


def test_a_group_of_all_is_of_the_first_level() -> None:
    assert btrfs.group_of_all(1) == 0x1_0000_0000_0001


def test_what_a_process_sees_mounted_is_found_by_place() -> None:
    assert Path("/proc") in mounted_in(os.getpid(), Path("/"))
