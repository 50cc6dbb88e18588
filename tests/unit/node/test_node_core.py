"""Admission, lifetimes and reasons: what a node decides."""

from __future__ import annotations

import signal

import pytest

from sandfleet_common.errors import Busy, NoCapacity
from sandfleet_common.messages import GIB, MIB, Resources
from sandfleet_common.states import Origin, State
from sandfleet_node.core import (
    Life,
    Limits,
    Load,
    closed,
    death,
    is_to_pause,
    next_state,
    refusal,
    verdict,
)

LIMITS = Limits(
    sandboxes=10,
    cpu=8.0,
    memory_bytes=8 * GIB,
    disk_bytes=100 * GIB,
    starting=4,
)
ASKED = Resources(cpu=1.5, memory_bytes=GIB, disk_bytes=GIB)


def test_a_node_with_room_takes_a_sandbox() -> None:
    assert refusal(Load(), LIMITS, ASKED, 0) is None


@pytest.mark.parametrize(
    ("load", "words"),
    [
        (Load(is_draining=True), "draining"),
        (Load(broken="its launcher is down"), "its launcher is down"),
        (Load(sandboxes=10), "10 sandboxes, its limit"),
        (Load(starting=4), "starting 4 sandboxes"),
        (Load(pressed="the node has only 5 MiB of disk free"), "only 5 MiB of disk free"),
        (Load(sandboxes=1, cpu=7.0), "1 of 8 cores left, 1.5 were asked for"),
        (Load(sandboxes=1, memory_bytes=8 * GIB), "0 of 8192 MiB of memory left"),
        (Load(sandboxes=1, disk_bytes=100 * GIB), "MiB of disk left"),
    ],
)
def test_a_refusal_names_what_is_in_the_way(load: Load, words: str) -> None:
    problem = refusal(load, LIMITS, ASKED, 0)
    assert problem is not None
    assert words in problem.message


def test_a_node_closed_to_all_says_so_without_a_request() -> None:
    assert closed(Load(is_draining=True), LIMITS, 0) == "the node is draining"
    assert closed(Load(sandboxes=1, cpu=8.0), LIMITS, 0) is None


def test_a_full_queue_says_when_to_come_back_by_the_measured_rate() -> None:
    load = Load(starting=4)
    for second in range(10):
        load.starts.note(float(second))
    problem = refusal(load, LIMITS, ASKED, 9.5)
    assert isinstance(problem, Busy)
    assert problem.fields == {"retry_after_seconds": 2.0}  # two of four, one a second
    assert "starting_limit" in problem.message
    assert "1 a second" in problem.message


def test_a_sandbox_that_will_never_fit_is_not_told_to_come_back() -> None:
    load = Load(sandboxes=1, starting=4, cpu=7.5)
    assert isinstance(refusal(load, LIMITS, ASKED, 0), NoCapacity)


def test_sums_return_to_zero_when_all_have_gone() -> None:
    load = Load()
    odd = [Resources(cpu=0.1), Resources(cpu=0.2), Resources(cpu=0.7)]
    for asked in odd:
        load.add(asked)
    for asked in odd:
        load.remove(asked)
    assert (load.sandboxes, load.cpu, load.memory_bytes, load.disk_bytes) == (0, 0.0, 0, 0)


def _life(**values: object) -> Life:
    fields: dict[str, object] = {
        "expires_at": None,
        "idle_seconds": None,
        "active_at": 100.0,
        "is_busy": False,
    }
    return Life(**{**fields, **values})  # pyright: ignore[reportArgumentType]


def test_a_sandbox_without_limits_lives_on() -> None:
    assert verdict(_life(), 1e9) == (None, None)


def test_a_sandbox_ends_when_its_time_is_over_even_if_busy() -> None:
    reason, _ = verdict(_life(expires_at=200.0, is_busy=True), 200.0)
    assert reason == "its time to live is over"
    assert verdict(_life(expires_at=200.0), 199.0) == (None, 200.0)


def test_an_idle_sandbox_ends_and_a_busy_one_is_looked_at_later() -> None:
    reason, _ = verdict(_life(idle_seconds=10.0), 110.0)
    assert reason == "it was idle for 10 s"
    assert verdict(_life(idle_seconds=10.0), 105.0) == (None, 110.0)
    assert verdict(_life(idle_seconds=10.0, is_busy=True), 500.0) == (None, 510.0)


def test_the_earlier_of_two_ends_decides_when_to_look_again() -> None:
    life = _life(idle_seconds=10.0, expires_at=104.0)
    assert verdict(life, 101.0) == (None, 104.0)


def test_a_paused_sandbox_ends_when_its_pause_was_too_long_and_never_for_idleness() -> None:
    paused = _life(expires_at=200.0, idle_seconds=10.0, is_paused=True)
    assert verdict(paused, 150.0) == (None, 200.0)
    assert verdict(paused, 200.0) == ("it was paused for too long", None)


def test_idleness_pauses_a_sandbox_that_wants_it_but_its_time_to_live_ends_it() -> None:
    life = _life(expires_at=200.0, idle_seconds=10.0, idle_pauses=True)
    assert verdict(life, 115.0)[0] is not None
    assert is_to_pause(life, 115.0)
    assert not is_to_pause(life, 200.0)
    assert not is_to_pause(_life(idle_seconds=10.0), 115.0)


def test_a_transition_outside_the_table_is_a_mistake() -> None:
    assert next_state(State.PREPARING, State.RUNNING) is State.RUNNING
    with pytest.raises(ValueError, match="cannot go from stopped to running"):
        next_state(State.STOPPED, State.RUNNING)


def test_a_death_by_the_oom_killer_names_the_limit() -> None:
    reason, origin = death(signal.SIGKILL, 1, 64 * MIB)
    assert reason == "it ran out of memory: its limit is 64 MiB"
    assert origin is Origin.AGENT


@pytest.mark.parametrize(
    ("status", "oom_kills", "words"),
    [
        (signal.SIGKILL, 0, "killed by SIGKILL"),
        (signal.SIGRTMIN, 0, "killed by SIGRTMIN"),
        (3 << 8, 0, "ended with status 3"),
        (3 << 8, 2, "ended with status 3"),
        (None, 0, "closed the channel"),
    ],
)
def test_other_deaths_are_told_as_they_were(status: int | None, oom_kills: int, words: str) -> None:
    reason, origin = death(status, oom_kills, GIB)
    assert words in reason
    assert origin is Origin.PLATFORM
