"""Shares of the CPU by class and phase, the rate of starts, and the turnstile before them."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.messages import Qos, SandboxPhase
from sandfleet_node.qos import Share, changes, effective, share_of
from sandfleet_node.starts import StartRate, retry_after
from sandfleet_node.turnstile import Turnstile

P = SandboxPhase
PHASES = [P.WAITING, P.ACTIVE, P.SCORING]


@pytest.mark.parametrize("qos", list(Qos))
def test_a_share_does_not_shrink_from_waiting_to_active_to_scoring(qos: Qos) -> None:
    weights = [share_of(qos, phase, 2).weight for phase in PHASES]
    assert weights == sorted(weights)


@pytest.mark.parametrize("phase", PHASES)
def test_best_effort_never_has_the_share_of_a_latency_sensitive_sandbox(phase: P) -> None:
    assert share_of(Qos.BEST_EFFORT, phase, 1).weight < share_of(Qos.LATENCY, phase, 1).weight
    assert not share_of(Qos.LATENCY, phase, 1).is_idle


def test_best_effort_is_idle_until_somebody_waits_for_its_score() -> None:
    assert share_of(Qos.BEST_EFFORT, P.WAITING, 1).is_idle
    assert share_of(Qos.BEST_EFFORT, P.ACTIVE, 1).is_idle
    assert not share_of(Qos.BEST_EFFORT, P.SCORING, 1).is_idle
    assert share_of(Qos.BEST_EFFORT, P.ACTIVE, 8, has_idle=False) == Share(0.01, False)


def test_the_phase_follows_commands_unless_its_user_has_said_one() -> None:
    assert effective(P.AUTO, is_busy=True) is P.ACTIVE
    assert effective(P.AUTO, is_busy=False) is P.WAITING
    assert effective(P.SCORING, is_busy=False) is P.SCORING
    assert effective(P.WAITING, is_busy=True) is P.WAITING


_SHARES = st.builds(Share, st.floats(0.01, 64), st.booleans())


class _Group:
    """A group as the kernel keeps it: what is idle takes no weight, and loses the one it had."""

    def __init__(self, is_v2: bool) -> None:
        self.file = "cpu.weight" if is_v2 else "cpu.shares"
        self.is_idle, self.weight = False, "none"

    def write(self, name: str, value: str) -> None:
        if name == "cpu.idle":
            assert value in "01"
            if self.is_idle != (value == "1"):
                self.weight = "none"
            self.is_idle = value == "1"
        else:
            assert name == self.file
            assert not self.is_idle, "EINVAL"
            self.weight = value


@given(st.lists(_SHARES, min_size=1, max_size=6), st.booleans())
def test_whatever_the_way_a_group_ends_with_the_share_it_was_given(
    shares: list[Share], is_v2: bool
) -> None:
    walked, at_once = _Group(is_v2), _Group(is_v2)
    before: Share | None = None
    for share in shares:
        for name, value in changes(before, share, is_v2=is_v2):
            walked.write(name, value)
        before = share
    for name, value in changes(None, shares[-1], is_v2=is_v2):
        at_once.write(name, value)
    assert (walked.is_idle, walked.weight) == (at_once.is_idle, at_once.weight)


def test_a_share_that_stays_is_not_written_again() -> None:
    assert changes(Share(1, False), Share(1, False), is_v2=False) == []
    assert changes(Share(0.01, True), Share(0.5, True), is_v2=True) == []


# ------------------------------------------------------------------- starts


@given(st.lists(st.floats(0, 60), max_size=200))
def test_the_rate_counts_what_became_ready_in_the_last_ten_seconds(moments: list[float]) -> None:
    rate = StartRate()
    for moment in sorted(moments):
        rate.note(moment)
    counted = [m for m in moments if int(m) > 60 - 10]
    assert rate.per_second(60.0) == len(counted) / 10
    assert rate.per_second(75.0) == 0


def test_who_finds_the_queue_full_comes_back_when_half_of_it_is_done() -> None:
    assert retry_after(512, 512, 32.0) == 8.0
    assert retry_after(512, 512, 1000.0) == 0.5
    assert retry_after(512, 512, 0.1) == 30.0
    assert retry_after(512, 512, 0.0) == 2.0


# ---------------------------------------------------------------- turnstile


async def test_no_more_than_its_width_are_inside_and_all_get_in_in_turn() -> None:
    gate, order = Turnstile(2), list[int]()

    async def visit(number: int) -> None:
        async with gate:
            order.append(number)
            assert gate.inside <= 2
            await asyncio.sleep(0)

    await asyncio.gather(*(visit(number) for number in range(20)))
    assert order == list(range(20))
    assert gate.inside == 0


async def test_a_turnstile_that_narrows_throws_nobody_out_and_admits_later() -> None:
    gate, leave = Turnstile(3), asyncio.Event()

    async def visit() -> None:
        async with gate:
            await leave.wait()

    visits = [asyncio.create_task(visit()) for _ in range(5)]
    await asyncio.sleep(0)
    gate.set_width(1)
    assert gate.inside == 3
    gate.set_width(4)
    assert gate.inside == 4
    leave.set()
    await asyncio.gather(*visits)
    assert gate.inside == 0


async def _cancel_in_turn(numbers: list[int]) -> None:
    gate = Turnstile(2)

    async def visit() -> None:
        async with gate:
            await asyncio.sleep(0)

    visits = [asyncio.create_task(visit()) for _ in range(8)]
    for number in numbers:
        await asyncio.sleep(0)
        visits[number].cancel()
    for each in visits:
        with suppress(asyncio.CancelledError):
            await each
    assert gate.inside == 0
    async with gate:
        assert gate.inside == 1


@given(st.lists(st.integers(0, 7), max_size=8))
def test_whoever_is_cancelled_at_the_turnstile_takes_no_place(numbers: list[int]) -> None:
    asyncio.run(_cancel_in_turn(numbers))
