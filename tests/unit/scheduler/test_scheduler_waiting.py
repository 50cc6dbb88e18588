"""Waiting for room: refusals, the line, rates, and what a job is told of it. No clock."""

from __future__ import annotations

import asyncio

import pytest

from sandfleet_scheduler.line import WOKEN_AT_ONCE, Line, wait
from sandfleet_scheduler.pace import (
    RETRY_MOST_SECONDS,
    RETRY_UNKNOWN_SECONDS,
    Pace,
    retry_after,
)
from sandfleet_scheduler.reasons import BUSY, REASONS_SHOWN, refused, sentence
from sandfleet_scheduler.refusals import BUSY_MOST_SECONDS, Refusals


def test_a_node_that_refuses_is_left_alone_longer_each_time() -> None:
    refusals, now, pauses = Refusals(), 0.0, list[float]()
    for _ in range(8):
        refusals.refuse("n1", "no", now, 1.0)
        assert refusals.avoided(now) == {"n1"}
        pause = refusals.soonest(now)
        assert pause is not None
        pauses.append(pause)
        now += pause
        assert refusals.avoided(now) == frozenset()
        assert refusals.soonest(now) is None
    assert pauses == sorted(pauses) and pauses[0] < pauses[-1] == pytest.approx(1.0)


def test_a_node_that_accepts_is_forgiven() -> None:
    refusals = Refusals()
    refusals.refuse("n1", "no", 0, 1.0)
    refusals.refuse("n1", "no", 10, 1.0)
    longer = refusals.soonest(10)
    refusals.accepted("n1")
    refusals.refuse("n1", "no", 20, 1.0)
    assert longer is not None
    assert (refusals.soonest(20) or 0) < longer


def test_a_busy_node_says_itself_when_to_come_again_within_reason() -> None:
    refusals = Refusals()
    refusals.refuse("n1", "its queue is full", 0, 1.0, wait_seconds=3)
    refusals.refuse("n2", "its queue is full", 0, 1.0, wait_seconds=3600)
    refusals.refuse("n3", "its queue is full", 0, 1.0, wait_seconds=0)
    assert refusals.avoided(0) == {"n1", "n2", "n3"}
    assert refusals.avoided(1) == {"n1", "n2"}
    assert refusals.avoided(3.1) == {"n2"}
    assert refusals.avoided(BUSY_MOST_SECONDS + 0.1) == frozenset()
    assert set(refusals.reasons.values()) == {BUSY}


def test_many_different_reasons_are_cut_short() -> None:
    said = sentence([refused(f"reason {n}") for n in range(30)], 30)
    assert said.count("refused (") == REASONS_SHOWN
    assert said.endswith(f"{30 - REASONS_SHOWN} could not for other reasons")


def test_without_samples_nothing_is_expected() -> None:
    assert Pace().expected_seconds(10, 0, 0.0) is None
    assert Pace().expected_seconds(0, 0, 0.0) == 0.0


def test_while_there_is_room_the_fleets_rate_counts() -> None:
    pace = Pace()
    pace.note(0, 0, is_short=False)
    assert pace.expected_seconds(100, 100, 20.0) == pytest.approx(10)
    pace.note(4, 200, is_short=False)
    assert pace.expected_seconds(100, 100, 20.0) == pytest.approx(4), "its own is higher"


def test_when_room_runs_out_measuring_begins_anew() -> None:
    pace = Pace()
    for second in range(5):
        pace.note(second, 50 * second, is_short=False)
    pace.note(5, 250, is_short=True)
    assert pace.expected_seconds(100, 0, 50.0) is None, "the burst says nothing about what follows"
    pace.note(9, 258, is_short=True)
    assert pace.expected_seconds(100, 0, 50.0) == pytest.approx(50)
    for second in range(10, 17):
        pace.note(second, 258, is_short=True)
    assert pace.expected_seconds(100, 20, 3.0) == pytest.approx(40), "the fleet's window is clean"


def test_when_to_come_again_is_known_only_within_bounds() -> None:
    assert retry_after(100, 50) == pytest.approx(2)
    assert retry_after(1, 1000) == 1
    assert retry_after(10**6, 1) == RETRY_MOST_SECONDS
    assert retry_after(10, 0) == RETRY_UNKNOWN_SECONDS


async def test_the_first_of_the_line_are_woken_in_their_order() -> None:
    line, woken = Line(), list[int]()

    async def stand(number: int) -> None:
        wake = asyncio.Event()
        with line.place(float(number), wake):
            await wake.wait()
        woken.append(number)

    count = WOKEN_AT_ONCE + 10
    async with asyncio.TaskGroup() as group:
        for number in reversed(range(count)):
            group.create_task(stand(number))
        await asyncio.sleep(0)
        assert len(line) == count
        line.notify()
        while len(woken) < WOKEN_AT_ONCE:
            await asyncio.sleep(0)
        assert woken == list(range(WOKEN_AT_ONCE)) and len(line) == 10
        line.notify()
    assert woken == list(range(count))


async def test_waiting_ends_by_itself() -> None:
    wake = asyncio.Event()
    await wait(wake, 0.0)
    assert not wake.is_set()
