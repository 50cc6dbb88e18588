"""Admission by measured pressure: what refuses, what slows, and when it is over."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.messages import GIB, MIB, Pressure
from sandfleet_node.pressure import Gate, Reading, Thresholds, parse_psi

LIMITS = Thresholds(
    memory_floor_bytes=512 * MIB,
    disk_floor_bytes=GIB,
    inodes_floor=1000,
    memory_stall_percent=10,
    cpu_slow_percent=80,
    io_slow_percent=40,
    load_slow_per_core=8,
    margin=0.25,
)
WELL = Reading(
    memory_total_bytes=24 * GIB,
    memory_available_bytes=20 * GIB,
    disk_total_bytes=100 * GIB,
    disk_free_bytes=50 * GIB,
    load_per_core=0.5,
    cores=2,
    pressure=Pressure(cpu_some=3, memory_some=0, memory_full=0, io_some=1, io_full=0),
    inodes_free=10**6,
)


def _gate(*readings: Reading) -> Gate:
    gate = Gate(LIMITS)
    for reading in readings:
        gate.look(reading)
    return gate


def test_a_machine_that_is_well_takes_sandboxes_at_full_speed() -> None:
    gate = _gate(WELL)
    assert (gate.refusing, gate.slowing) == (None, None)


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (
            replace(WELL, memory_available_bytes=100 * MIB),
            "only 100 MiB of memory available, below its floor of 512 MiB (memory_floor_bytes)",
        ),
        (
            replace(WELL, disk_free_bytes=5 * MIB),
            "only 5 MiB of disk free, below its floor of 1024 MiB (disk_floor_bytes)",
        ),
        (replace(WELL, inodes_free=7), "only 7 inodes free, below its floor of 1000"),
        (
            replace(WELL, memory_available_bytes=GIB, pressure=Pressure(memory_full=30)),
            "30 percent of the time for want of memory, not below its limit of 10 percent "
            "(memory_stall_percent)",
        ),
    ],
)
def test_a_refusal_says_number_limit_and_setting(reading: Reading, words: str) -> None:
    refusing = _gate(reading).refusing
    assert refusing is not None
    assert words in refusing


@pytest.mark.parametrize(
    ("reading", "words"),
    [
        (replace(WELL, pressure=Pressure(cpu_some=90)), "cpu_slow_percent"),
        (replace(WELL, pressure=Pressure(cpu_some=0, io_full=60)), "io_slow_percent"),
        (replace(WELL, pressure=Pressure(), load_per_core=12.0), "load_slow_per_core"),
    ],
)
def test_work_that_can_wait_slows_and_does_not_refuse(reading: Reading, words: str) -> None:
    gate = _gate(reading)
    assert gate.refusing is None
    assert gate.slowing is not None
    assert words in gate.slowing


def test_the_load_average_counts_only_where_pressure_is_not_measured() -> None:
    assert _gate(replace(WELL, load_per_core=50.0)).slowing is None


def test_a_sandbox_that_thrashes_at_its_own_cap_does_not_close_the_node() -> None:
    thrashing = Pressure(memory_some=99, memory_full=99)
    assert _gate(replace(WELL, pressure=thrashing)).refusing is None


def test_a_file_system_without_a_table_of_inodes_is_not_judged_by_them() -> None:
    assert _gate(replace(WELL, inodes_free=None)).refusing is None


def test_a_node_that_refused_takes_sandboxes_again_only_with_a_margin() -> None:
    low, nearly = (replace(WELL, memory_available_bytes=m * MIB) for m in (500, 600))
    assert _gate(nearly).refusing is None
    refusing = _gate(low, nearly).refusing
    assert refusing is not None
    assert "600 MiB of memory available; it crossed 512 MiB" in refusing
    assert "goes on from 640 MiB" in refusing
    assert _gate(low, nearly, replace(WELL, memory_available_bytes=640 * MIB)).refusing is None


def test_two_things_wanting_are_both_named() -> None:
    refusing = _gate(replace(WELL, memory_available_bytes=0, disk_free_bytes=0)).refusing
    assert refusing is not None
    assert "memory_floor_bytes" in refusing
    assert "disk_floor_bytes" in refusing


@given(st.lists(st.integers(400, 800), min_size=1, max_size=40))
def test_admission_turns_only_at_the_floor_and_at_its_margin(amounts: list[int]) -> None:
    gate = Gate(LIMITS)
    is_open = True
    for amount in amounts:
        gate.look(replace(WELL, memory_available_bytes=amount * MIB))
        if is_open and gate.refusing is not None:
            assert amount < 512
        if not is_open and gate.refusing is None:
            assert amount >= 640
        is_open = gate.refusing is None


def test_pressure_files_are_read_with_and_without_full() -> None:
    some = "some avg10=19.92 avg60=24.68 avg300=9.03 total=1841435429\n"
    assert parse_psi(some) == (19.92, None)
    assert parse_psi(some + "full avg10=0.50 avg60=0.00 avg300=0.00 total=0\n") == (19.92, 0.5)
    assert parse_psi("") == (None, None)
