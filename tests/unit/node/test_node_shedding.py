"""What a node that runs out of memory or disk does, one step after another."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.messages import MIB, Qos
from sandfleet_node.shedding import (
    Depths,
    Ladder,
    Step,
    Victim,
    choose,
    disk_ladder,
    disk_reason,
    memory_ladder,
    memory_reason,
)

DEPTHS = Depths(
    floor_bytes=512 * MIB, end_bytes=256 * MIB, margin=0.25, settle_seconds=4, rest_seconds=30
)


def _take(ladder: Ladder, free_mib: int, now: float, *, found: bool = True) -> Step | None:
    step = ladder.next_step(free_mib * MIB, now)
    if step is not None:
        ladder.took(step, free_mib * MIB, now, found=found)
    return step


def test_nothing_is_done_while_there_is_enough() -> None:
    assert _take(memory_ladder(DEPTHS), 512, 0) is None


def test_steps_that_do_not_help_lead_to_the_next_and_each_is_waited_for() -> None:
    ladder = memory_ladder(DEPTHS)
    assert _take(ladder, 200, 0) is Step.RECLAIM
    assert _take(ladder, 200, 0.5) is None
    assert _take(ladder, 200, 1) is Step.PAUSE
    assert _take(ladder, 200, 2) is Step.END
    assert _take(ladder, 200, 5.9) is None
    assert _take(ladder, 200, 6) is Step.END


def test_a_step_that_helped_is_taken_again() -> None:
    ladder = memory_ladder(DEPTHS)
    assert _take(ladder, 300, 0) is Step.RECLAIM
    assert _take(ladder, 350, 4) is Step.RECLAIM
    assert _take(ladder, 351, 8) is Step.PAUSE


def test_nobody_is_ended_while_memory_is_only_short() -> None:
    ladder = memory_ladder(DEPTHS)
    steps = [_take(ladder, 300, now) for now in range(0, 100, 2)]
    assert set(steps) == {Step.RECLAIM, Step.PAUSE, None}
    assert steps.count(Step.RECLAIM) > 1, "it must begin anew after a rest"


def test_a_step_with_nothing_to_take_it_on_is_not_waited_for() -> None:
    ladder = memory_ladder(DEPTHS)
    assert _take(ladder, 200, 0, found=False) is Step.RECLAIM
    assert _take(ladder, 200, 0, found=False) is Step.PAUSE
    assert _take(ladder, 200, 0, found=False) is Step.END
    assert _take(ladder, 200, 29) is None, "nobody was there to be ended: rest"
    assert _take(ladder, 200, 30) is Step.END


def test_the_steps_begin_anew_once_all_was_well() -> None:
    ladder = memory_ladder(DEPTHS)
    assert _take(ladder, 200, 0) is Step.RECLAIM
    assert _take(ladder, 200, 1) is Step.PAUSE
    assert _take(ladder, 700, 2) is None
    assert _take(ladder, 200, 10) is Step.RECLAIM


def test_a_full_disk_ends_sandboxes_only_far_below_its_floor() -> None:
    depths = Depths(256 * MIB, 256 * MIB, 0.25, 4, 30)
    assert _take(disk_ladder(depths), 256, 0) is None
    assert _take(disk_ladder(depths), 255, 0) is Step.END


@given(
    st.lists(
        st.tuples(st.integers(0, 900), st.floats(0.01, 5), st.booleans()), min_size=1, max_size=80
    )
)
def test_no_order_of_events_ends_a_sandbox_without_need(
    looks: list[tuple[int, float, bool]],
) -> None:
    ladder, now, taken, over_at = memory_ladder(DEPTHS), 0.0, [], -1e9
    for free, later, found in looks:
        now += later
        if free * MIB >= DEPTHS.floor_bytes * (1 + DEPTHS.margin):
            taken = []
        step = _take(ladder, free, now, found=found)
        if step is None:
            continue
        assert free < 512
        if step is Step.END:
            assert free < 256
            assert Step.RECLAIM in taken
            assert Step.PAUSE in taken
            assert now - over_at >= DEPTHS.settle_seconds, "two ends in a row"
            over_at = now
        taken.append(step)


def _victim(name: str, mib: int, qos: Qos = Qos.BEST_EFFORT) -> Victim:
    return Victim(name, qos, mib * MIB)


def test_the_largest_best_effort_sandbox_is_chosen() -> None:
    all_of_them = [_victim("a", 100), _victim("b", 300), _victim("c", 900, Qos.LATENCY)]
    chosen = choose(all_of_them)
    assert chosen is not None
    assert chosen.sandbox_id == "b"
    assert memory_reason(chosen) == (
        "the node ran out of memory: it was the largest best-effort sandbox, 300 MiB"
    )
    assert "written most, 300 MiB" in disk_reason(chosen)


@given(st.lists(st.tuples(st.sampled_from(Qos), st.integers(0, 500))))
def test_a_latency_sensitive_sandbox_is_never_chosen(all_of_them: list[tuple[Qos, int]]) -> None:
    chosen = choose([_victim("x", mib, qos) for qos, mib in all_of_them])
    assert chosen is None or chosen.qos is Qos.BEST_EFFORT


def test_a_sandbox_too_small_to_help_is_left_alone() -> None:
    assert choose([_victim("a", 15)]) is None
