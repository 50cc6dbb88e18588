"""The slots of a job: every one ends once, and all is told."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.messages import SandboxInfo, SandboxSpec, SlotFailure
from sandfleet_common.states import State
from sandfleet_scheduler.jobnews import chunks
from sandfleet_scheduler.slots import Slot, Slots


def ready(slot: int) -> SandboxInfo:
    return SandboxInfo(
        sandbox_id=f"sb-{slot}",
        node="n1",
        state=State.RUNNING,
        spec=SandboxSpec(),
        slot=slot,
        created_at=0.0,
    )


def failure(slot: int) -> SlotFailure:
    return SlotFailure(slot=slot, code="no_capacity", message="full")


def test_slots_come_in_order_and_once() -> None:
    slots = Slots(3)
    assert [slots.next_waiting() for _ in range(4)] == [0, 1, 2, None]


def test_a_slot_that_waits_again_comes_again_and_keeps_its_holder() -> None:
    slots = Slots(1)
    slots.next_waiting()
    slots.send(0, "a")
    slots.wait(0)
    assert slots.next_waiting() == 0
    assert slots.holders == ["a"]


def test_a_slot_ends_once() -> None:
    slots = Slots(2)
    slots.send(0, "a")
    slots.became_ready(0, ready(0))
    slots.fail(failure(0))
    slots.wait(0)
    slots.send(0, "b")
    assert (slots.state(0), slots.ready, slots.failed) == (Slot.READY, 1, 0)
    assert slots.take_news() == ([ready(0)], [])
    assert slots.take_news() == ([], [])


def test_a_job_is_complete_when_every_slot_has_ended() -> None:
    slots = Slots(2)
    slots.became_ready(0, ready(0))
    assert not slots.is_complete
    slots.fail(failure(1))
    assert slots.is_complete


def test_a_lost_sandbox_is_told_and_still_counts_as_ready() -> None:
    slots = Slots(3)
    slots.became_ready(0, ready(0))
    slots.take_news()
    slots.lost([0, 1], failure(9))
    assert slots.take_news() == ([], [failure(0)])
    assert (slots.ready, slots.failed, slots.failures) == (1, 0, {})


def test_the_first_failures_are_those_of_the_lowest_slots() -> None:
    slots = Slots(300)
    for slot in range(299, -1, -1):
        slots.fail(failure(slot))
    assert [f.slot for f in slots.first_failures(100)] == list(range(100))


def test_chunks_hold_everything_once() -> None:
    assert [list(part) for part in chunks(list(range(7)), 3)] == [[0, 1, 2], [3, 4, 5], [6]]


@given(
    st.lists(
        st.tuples(st.sampled_from(["take", "send", "wait", "ready", "fail"]), st.integers(0, 5)),
        max_size=60,
    )
)
def test_the_totals_are_right_after_any_events(events: list[tuple[str, int]]) -> None:
    slots = Slots(6)
    told_ready: list[int | None] = []
    for kind, slot in events:
        if kind == "take":
            taken = slots.next_waiting()
            assert taken is None or slots.state(taken) == Slot.WAITING
            if taken is not None:
                slots.send(taken, "x")
        elif kind == "send":
            slots.send(slot, "y")
        elif kind == "wait":
            slots.wait(slot)
        elif kind == "ready":
            slots.became_ready(slot, ready(slot))
        else:
            slots.fail(failure(slot))
        told_ready += [info.slot for info in slots.take_news()[0]]
        slots.check()
    assert len(told_ready) == len(set(told_ready)) == slots.ready
