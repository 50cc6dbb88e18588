"""The life of a sandbox."""

from __future__ import annotations

import pytest

from sandfleet_common.states import LIVE, TERMINAL, TRANSITIONS, State, may_follow
from sandfleet_common.store.scripts import SOURCES, reachable


def test_every_state_is_in_the_table_and_can_be_reached() -> None:
    assert set(TRANSITIONS) == set(State)
    assert reachable(TRANSITIONS)[State.REQUESTED] | {State.REQUESTED} == set(State)


@pytest.mark.parametrize("state", sorted(LIVE))
def test_every_live_state_can_fail_and_end(state: State) -> None:
    assert may_follow(state, State.FAILED)
    assert reachable(TRANSITIONS)[state] & TERMINAL


@pytest.mark.parametrize("state", sorted(TERMINAL))
def test_nothing_follows_an_end(state: State) -> None:
    assert not any(may_follow(state, after) for after in State)
    assert all(f",{state}," not in SOURCES[after] for after in State)


def test_a_record_may_skip_states_but_not_go_back() -> None:
    assert ",placing," in SOURCES[State.STOPPED]
    assert ",running," in SOURCES[State.RUNNING]
    assert ",running," not in SOURCES[State.PREPARING]
    assert ",running," not in SOURCES[State.REJECTED]
