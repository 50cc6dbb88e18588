"""Facts: from records, alike ones together, and never more than fit."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.messages import Fact
from sandfleet_security.facts import Clock, Waiting, is_of, to_fact
from sandfleet_security.records import Call, Dropped, Exec, Header, RecordFlag

SANDBOX = "sb-n1-01h00000000000000000000000"


NO_FLAG = RecordFlag(0)


def header(flags: RecordFlag = NO_FLAG) -> Header:
    return Header(flags, 2_000_000_000, 5)


def fact(at: float = 1.0, *, kind: str = "mount", sandbox: str = SANDBOX, pid: int = 7) -> Fact:
    path = "/bin/true" if kind == "exec" else None
    return Fact(
        sandbox_id=sandbox, at=at, kind=kind, pid=pid, uid=0, program="true", path=path, result=-1
    )


def waiting(limit: int = 100, starts_each: int = 5) -> Waiting:
    return Waiting(limit=limit, starts_each=starts_each)


def test_a_call_becomes_a_fact_in_the_time_of_day() -> None:
    record = Call(header(RecordFlag.AT_INIT), SANDBOX, 10, 11, 100, 101, "x", (16, 1), -1)
    found = to_fact(record, Clock(1000.0))
    assert (found.at, found.kind, found.notes) == (1002.0, "ptrace", ["at-init"])
    assert (found.pid, found.uid, found.program) == (10, 100, "x")
    assert (found.arguments, found.result, found.count) == ([16, 1], -1, 1)


def test_a_32_bit_call_is_named_from_its_own_table() -> None:
    record = Call(header(RecordFlag.I386), SANDBOX, 1, 1, 0, 101, "x", (), 0)
    assert to_fact(record, Clock(0)).kind == "i386-101"


def test_a_program_without_a_file_is_noted() -> None:
    record = Exec(header(RecordFlag.UNLINKED), SANDBOX, 1, 1, 0, "x", "/proc/self/fd/3")
    found = to_fact(record, Clock(0))
    assert (found.kind, found.path, found.notes) == ("exec", "/proc/self/fd/3", ["unlinked"])


def test_what_the_rate_limit_held_back_becomes_one_fact() -> None:
    found = to_fact(Dropped(header(), SANDBOX, 101, 900), Clock(0))
    assert (found.kind, found.notes, found.count) == ("held-back", ["ptrace"], 900)


def test_only_directories_named_like_this_nodes_sandboxes_count() -> None:
    assert is_of(fact(), "n1")
    assert not is_of(fact(), "n2")
    assert not is_of(fact(sandbox="scratch"), "n1")


def test_calls_alike_are_told_once_with_a_count() -> None:
    queue = waiting()
    for at in (1, 2, 3):
        queue.add(fact(at))
    queue.add(fact(4, pid=8))
    taken, lost = queue.take(10)
    assert [(f.pid, f.count) for f in taken] == [(7, 3), (8, 1)]
    assert lost == 0


def test_a_few_program_starts_are_told_one_by_one_and_a_flood_with_a_count() -> None:
    queue = waiting(starts_each=5)
    for at in range(100):
        queue.add(fact(at, kind="exec", pid=at))
    taken, _ = queue.take(100)
    assert [f.pid for f in taken] == [0, 1, 2, 3, 4]
    assert sum(f.count for f in taken) == 100


def test_one_sandboxes_flood_leaves_the_starts_of_another_alone() -> None:
    queue = waiting(starts_each=5)
    other = "sb-n1-01h00000000000000000000001"
    for at in range(100):
        queue.add(fact(at, kind="exec"))
    for at in range(3):
        queue.add(fact(at, kind="exec", sandbox=other))
    taken, _ = queue.take(100)
    assert [f.count for f in taken if f.sandbox_id == other] == [1, 1, 1]


def test_a_flood_of_starts_drops_no_call() -> None:
    queue = waiting(limit=10, starts_each=1000)
    for at in range(50):
        queue.add(fact(at, kind="exec"))
    queue.add(fact(99))
    taken, lost = queue.take(100)
    assert lost == 40
    assert [f.at for f in taken if f.kind == "mount"] == [99]


def test_calls_go_first_when_a_batch_does_not_hold_all() -> None:
    queue = waiting()
    queue.add(fact(1, kind="exec"))
    queue.add(fact(2))
    first, _ = queue.take(1)
    second, _ = queue.take(1)
    assert [f.kind for f in first + second] == ["mount", "exec"]


def test_a_batch_given_back_comes_again_in_order() -> None:
    queue = waiting()
    for at in (1, 2, 3):
        queue.add(fact(at, pid=at))
    taken, lost = queue.take(2)
    queue.give_back(taken, lost)
    again, _ = queue.take(10)
    assert [f.pid for f in again] == [1, 2, 3]


def test_giving_back_to_a_full_queue_drops_the_newest_and_counts_it() -> None:
    queue = waiting(limit=2)
    for pid in (1, 2):
        queue.add(fact(pid, pid=pid))
    taken, _ = queue.take(1)
    queue.add(fact(3, pid=3))
    queue.give_back(taken, 0)
    again, lost = queue.take(10)
    assert ([f.pid for f in again], lost) == ([1, 2], 1)


@given(
    st.lists(
        st.tuples(st.sampled_from(["exec", "mount"]), st.integers(1, 4), st.booleans()),
        max_size=300,
    )
)
def test_every_fact_is_told_or_counted_as_lost(steps: list[tuple[str, int, bool]]) -> None:
    queue = waiting(limit=7, starts_each=3)
    told = lost = 0
    for at, (kind, pid, is_taken) in enumerate(steps):
        queue.add(fact(at, kind=kind, pid=pid))
        if is_taken:
            taken, dropped = queue.take(2)
            if pid == 1:
                queue.give_back(taken, dropped)
            else:
                told += sum(f.count for f in taken)
                lost += dropped
    taken, dropped = queue.take(1000)
    assert told + lost + sum(f.count for f in taken) + dropped == len(steps)
    assert len(queue) == 0
