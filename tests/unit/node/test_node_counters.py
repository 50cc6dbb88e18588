"""What the kernel's counters say, also when they say it badly or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.messages import SandboxUsage
from sandfleet_common.ranking import most
from sandfleet_common.states import State
from sandfleet_node.cgroups import Cgroups
from sandfleet_node.counters import Counters, Groups, parse_number, parse_sent, read_counters
from sandfleet_node.hierarchies import Hierarchies
from sandfleet_node.usage import Track, fitting

DEVICES = """Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs
    lo:  500       5    0    0    0     0          0         0      500       5    0    0    0
  eth0: 9000      12    0    0    0     0          0         0     1234       7    0    0    0
tap-1:1 2 3 4 5 6 7 8 66 10 11 12 13 14 15 16
"""


def groups(root: Path, **files: str) -> Groups:
    """Return groups with these files; `memory__x` is the file x of the memory group."""
    for name in ("v2", "cpu", "memory", "pids"):
        (root / name).mkdir(exist_ok=True)
    for name, text in files.items():
        place, _, file = name.partition("__")
        (root / place / file.replace("_dot_", ".")).write_text(text)
    return Groups(*(str(root / name) for name in ("v2", "cpu", "memory", "pids")))


@pytest.mark.parametrize(
    ("text", "number"),
    [
        (b"42\n", 42),
        (b"0", 0),
        (b"", 0),
        (b"max\n", 0),
        (b"-5", 0),
        (b"\xb2", 0),
        (b"1 2", 0),
        (b"9" * 19, 10**19 - 1),
        (b"9" * 5000, 0),
    ],
)
def test_a_counter_is_a_number_or_nothing(text: bytes, number: int) -> None:
    assert parse_number(text) == number


@given(st.binary())
def test_no_content_of_a_counter_breaks_its_reader(text: bytes) -> None:
    assert parse_number(text) >= 0


def test_what_was_sent_is_that_of_all_devices_but_loopback() -> None:
    assert parse_sent(DEVICES) == 1234 + 66


@given(st.text())
def test_no_list_of_devices_breaks_its_reader(text: str) -> None:
    assert parse_sent(text) >= 0
    assert parse_sent(DEVICES + text) >= 1300


def test_counters_of_version_1_are_read(tmp_path: Path) -> None:
    found = read_counters(
        groups(
            tmp_path,
            v2__cpu_dot_stat="usage_usec 1500000\nuser_usec 1\nsystem_usec 2\n",
            memory__memory_dot_usage_in_bytes="4096\n",
            memory__memory_dot_memsw_dot_usage_in_bytes="12288\n",
            memory__memory_dot_max_usage_in_bytes="65536\n",
            pids__pids_dot_current="7\n",
        )
    )
    assert found == Counters(1.5, 4096, 65536, 8192, 7, 0)


def test_counters_of_version_2_are_read(tmp_path: Path) -> None:
    where = tmp_path / "v2"
    where.mkdir()
    for name, text in (
        ("cpu.stat", "usage_usec 250000\n"),
        ("memory.current", "4096\n"),
        ("memory.peak", "8192\n"),
        ("memory.swap.current", "512\n"),
        ("pids.current", "3\n"),
    ):
        (where / name).write_text(text)
    found = read_counters(Groups(*[str(where)] * 4))
    assert found == Counters(0.25, 4096, 8192, 512, 3, 0)


def test_a_group_that_is_gone_counts_nothing(tmp_path: Path) -> None:
    assert read_counters(Groups(*[str(tmp_path / "gone")] * 4), network_pid=2**22 + 1) == Counters()


def test_time_comes_from_cpuacct_where_version_2_has_none(tmp_path: Path) -> None:
    where = groups(tmp_path, v2__cpu_dot_stat="nonsense\n", cpu__cpuacct_dot_usage="2500000000\n")
    assert read_counters(where).cpu_seconds == 2.5


def test_a_peak_is_never_below_what_is_used_now(tmp_path: Path) -> None:
    where = groups(tmp_path, memory__memory_dot_usage_in_bytes="4096\n")
    assert read_counters(where).memory_peak_bytes == 4096


def test_the_groups_of_a_node_are_above_those_of_its_sandboxes() -> None:
    cgroups = Cgroups(Hierarchies("/v2", frozenset({"cpu"}), {"memory": "/m", "pids": "/p"}), "n")
    assert Groups.of(cgroups, "") == Groups(
        "/v2/sandfleet/n", "/v2/sandfleet/n", "/m/sandfleet/n", "/p/sandfleet/n"
    )
    assert Groups.of(cgroups, "sb").memory == "/m/sandfleet/n/sb"


def test_cores_are_time_spent_over_time_passed() -> None:
    track = Track.begin(Counters(cpu_seconds=5), 100.0, age_seconds=10)
    assert track.cores == 0.5
    track.look(Counters(cpu_seconds=9), 102.0)
    assert track.cores == 2.0


def test_two_looks_in_quick_succession_do_not_make_a_rate() -> None:
    track = Track.begin(Counters(cpu_seconds=5), 100.0, age_seconds=10)
    track.look(Counters(cpu_seconds=5.4), 100.1)
    assert (track.cores, track.counters.cpu_seconds) == (0.5, 5.4)
    track.look(Counters(cpu_seconds=6), 101.0)
    assert track.cores == 1.0


def test_a_peak_that_the_kernel_does_not_keep_is_the_highest_that_was_seen() -> None:
    track = Track.begin(Counters(memory_bytes=50, memory_peak_bytes=50), 1.0, 1.0)
    track.look(Counters(cpu_seconds=1, memory_bytes=20, memory_peak_bytes=20, processes=4), 2.0)
    assert track.counters == Counters(1, 20, 50, 0, 4, 0)


def used(name: str, **amounts: float) -> SandboxUsage:
    return SandboxUsage.of(sandbox_id=name, state=State.RUNNING, at=0, **amounts)


@pytest.mark.parametrize(
    ("order", "first"),
    [
        ("cpu", "a"),
        ("cpu_seconds", "b"),
        ("memory", "c"),
        ("disk", "d"),
        ("egress", "e"),
        ("processes", "f"),
        ("idle", "g"),
    ],
)
def test_those_that_use_most_come_first(order: str, first: str) -> None:
    found = [
        used("a", cpu_cores=1),
        used("b", cpu_seconds=1),
        used("c", memory_bytes=1),
        used("d", disk_bytes=1),
        used("e", egress_bytes=1),
        used("f", processes=1),
        used("g", idle_seconds=1),
    ]
    assert most(found, order, 1)[0].sandbox_id == first  # pyright: ignore[reportArgumentType]


def test_equals_come_by_name_so_that_a_list_does_not_jump() -> None:
    found = [used("c"), used("a", cpu_cores=0.1), used("b")]
    assert [u.sandbox_id for u in most(found, "cpu", 3)] == ["a", "b", "c"]
    assert [u.sandbox_id for u in most(reversed(found), "cpu", 2)] == ["a", "b"]


def test_an_answer_holds_as_many_as_fit() -> None:
    found = [used(name, memory_bytes=7) for name in ("a", "b", "c")]
    each = len(found[0].encode()) + 1
    assert fitting(found, 3 * each) == found
    assert fitting(found, 3 * each - 1) == found[:2]
    assert fitting(found, 0) == []
