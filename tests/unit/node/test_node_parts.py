"""Id ranges, dates, tombstones and settings of a node."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.messages import SandboxInfo, SandboxSpec
from sandfleet_common.states import State
from sandfleet_node.config import IDS_EACH, STRIDE, NodeSettings
from sandfleet_node.machine import limits_of, parse_meminfo, read_machine
from sandfleet_node.timers import Dates
from sandfleet_node.tombstones import Tombstones
from sandfleet_node.uids import IdRanges

BASE = 0x7000_0000


def test_ranges_do_not_overlap_and_run_out() -> None:
    ranges = IdRanges(BASE, 3)
    assert [ranges.take() for _ in range(3)] == [BASE + n * STRIDE for n in range(3)]
    with pytest.raises(LookupError):
        ranges.take()


def test_the_range_freed_last_is_taken_first() -> None:
    ranges = IdRanges(BASE, 10)
    first, second = ranges.take(), ranges.take()
    ranges.free(first)
    ranges.free(second)
    ranges.free(second)
    assert [ranges.take(), ranges.take()] == [second, first]
    assert ranges.take() == BASE + 2 * STRIDE


def test_an_adopted_range_is_not_given_out() -> None:
    ranges = IdRanges(BASE, 2)
    ranges.adopt(BASE)
    assert ranges.take() == BASE + STRIDE
    with pytest.raises(ValueError, match="taken"):
        ranges.adopt(BASE)


def test_a_range_of_other_settings_is_not_given_out_again() -> None:
    ranges = IdRanges(BASE, 1)
    ranges.adopt(BASE + 7 * STRIDE)
    ranges.free(BASE + 7 * STRIDE)
    assert ranges.take() == BASE
    with pytest.raises(LookupError):
        ranges.take()


@given(st.lists(st.integers(0, 5 * STRIDE), max_size=4))
def test_no_range_is_given_out_that_one_of_other_settings_reaches_into(offsets: list[int]) -> None:
    ranges, adopted = IdRanges(BASE, 4), list[int]()
    for offset in offsets:
        if all(abs(BASE + offset - other) >= IDS_EACH for other in adopted):
            ranges.adopt(BASE + offset)
            adopted.append(BASE + offset)
    given: list[int] = []
    with pytest.raises(LookupError):
        while True:
            given.append(ranges.take())
    assert all(abs(ours - other) >= IDS_EACH for ours in given for other in adopted)
    for first in (*adopted, *given):
        ranges.free(first)
    assert {ranges.take() for _ in range(4)} == {BASE + n * STRIDE for n in range(4)}


def test_users_of_sandboxes_are_spread_over_the_kernels_table() -> None:
    ranges = IdRanges(BASE, 1280)
    buckets = [((first >> 7) + first) & 127 for first in (ranges.take() for _ in range(1280))]
    assert {buckets.count(bucket) for bucket in range(128)} == {10}


@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 50)), max_size=300))
def test_dates_come_due_once_in_order_with_their_last_value(
    settings: list[tuple[str, int]],
) -> None:
    dates, expected = Dates(), dict[str, int]()
    for name, at in settings:
        dates.set(name, at)
        expected[name] = at
    assert dates.next_at() == (min(expected.values()) if expected else None)
    due = dates.take_due(25)
    assert sorted(due) == sorted(n for n, at in expected.items() if at <= 25)
    assert [expected[n] for n in due] == sorted(expected[n] for n in due)
    assert dates.take_due(25) == []


def test_a_cleared_date_does_not_come() -> None:
    dates = Dates()
    assert dates.set("a", 5.0)
    assert not dates.set("b", 9.0)
    dates.set("a", None)
    assert dates.next_at() == 9.0


def _ended(at: float) -> SandboxInfo:
    return SandboxInfo(
        sandbox_id=new_sandbox_id("n1"),
        node="n1",
        state=State.STOPPED,
        spec=SandboxSpec(),
        created_at=0,
        ended_at=at,
        reason="stopped by its user",
    )


def test_ends_are_remembered_over_a_restart(tmp_path: Path) -> None:
    info = _ended(100.0)
    Tombstones(tmp_path / "ended.jsonl", 3600, 10).add(info, 100.0)
    with (tmp_path / "ended.jsonl").open("ab") as file:
        file.write(b'{"sandbox_id": "cut sho')
    again = Tombstones(tmp_path / "ended.jsonl", 3600, 10)
    again.load(200.0)
    assert again.get(info.sandbox_id) == info


def test_ends_are_forgotten_by_age_and_number(tmp_path: Path) -> None:
    stones = Tombstones(tmp_path / "ended.jsonl", 50, 2)
    old, first, second, third = _ended(10), _ended(100), _ended(101), _ended(102)
    for info in (old, first, second, third):
        stones.add(info, info.ended_at or 0)
    assert [stones.get(i.sandbox_id) for i in (old, first)] == [None, None]
    assert stones.get(third.sandbox_id) == third
    later = Tombstones(tmp_path / "ended.jsonl", 50, 2)
    later.load(500.0)
    assert len(later) == 0


def test_meminfo_is_read_in_bytes() -> None:
    found = parse_meminfo("MemTotal:       16 kB\nHugePages_Total:   3\nnonsense\n")
    assert found == {"MemTotal": 16384, "HugePages_Total": 3}


def test_limits_are_what_there_is_times_overcommit(tmp_path: Path) -> None:
    reading = read_machine(tmp_path)
    settings = NodeSettings(name="n1", cpu=2, overcommit_cpu=3, overcommit_memory=2)
    limits = limits_of(settings, reading)
    assert limits.cpu == 6
    assert limits.memory_bytes == 2 * reading.memory_total_bytes


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"name": "Not A Name"}, "cannot name a node"),
        ({"uid_base": 65537}, "multiple of 65536"),
        ({"uid_base": 0xFFFE_0000}, "too few ids"),
        ({"sandboxes_max": 0}, "greater than 0"),
        ({"heartbeat_seconds": 0}, "greater than 0"),
    ],
)
def test_settings_that_cannot_work_are_refused(values: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        NodeSettings.model_validate({"name": "n1", **values})


def test_a_missing_binary_is_named(tmp_path: Path) -> None:
    settings = NodeSettings(name="n1", native_binary=str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="none does not exist"):
        settings.binary()
