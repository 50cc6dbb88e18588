"""The roster of warm sandboxes: owners, order, growth."""

from __future__ import annotations

import random

import pytest

from sandfleet_node.functions.roster import QueueFull, Roster, Shape


def roster(*, least: int = 0, most: int = 4, queue: int = 8) -> Roster[str, int]:
    return Roster(Shape(least=least, most=most, queue=queue, idle_seconds=10))


def with_idle(*names: str, most: int = 4) -> Roster[str, int]:
    made = roster(most=most)
    for now, name in enumerate(names):
        made.begin_start()
        assert made.started(name, float(now)) is None
    return made


def test_an_idle_sandbox_is_given_at_once_and_only_once() -> None:
    pool = with_idle("a")
    assert pool.ask(1) == "a"
    assert pool.ask(2) is None
    pool.check()


def test_the_one_used_last_is_given_first() -> None:
    pool = with_idle("a", "b")
    assert pool.ask(1) == "b"
    assert pool.settled("b", 5) is None
    assert pool.ask(2) == "b"


def test_those_who_wait_are_served_in_order() -> None:
    pool = with_idle("a")
    pool.ask(0)
    for ticket in (1, 2, 3):
        assert pool.ask(ticket) is None
    pool.abandon(2)
    assert pool.settled("a", 1) == 1
    assert pool.settled("a", 2) == 3
    assert pool.settled("a", 3) is None


def test_a_full_queue_refuses() -> None:
    pool = roster(queue=2)
    pool.ask(1)
    pool.ask(2)
    with pytest.raises(QueueFull):
        pool.ask(3)


def test_as_many_are_started_as_wait_and_no_more_than_fit() -> None:
    pool = roster(most=3)
    pool.ask(1)
    assert pool.wanted() == 1
    pool.begin_start()
    assert pool.wanted() == 0
    for ticket in range(2, 9):
        pool.ask(ticket)
    assert pool.wanted() == 2


def test_one_that_clears_up_is_as_good_as_one_that_starts() -> None:
    pool = with_idle("a", "b")
    for ticket in (1, 2, 3):
        pool.ask(ticket)
    assert pool.wanted() == 1
    pool.answered("a")
    assert pool.wanted() == 0
    pool.remove("a")
    assert pool.wanted() == 1
    pool.check()


def test_who_calls_again_and_again_gets_a_second_sandbox() -> None:
    pool = with_idle("a")
    pool.ask(1)
    pool.answered("a")
    pool.ask(2)
    assert pool.wanted() == 1


def test_the_least_are_started_without_being_asked_for_and_stay() -> None:
    pool = roster(least=2)
    assert pool.wanted() == 2
    for name in ("a", "b", "c"):
        pool.begin_start()
        pool.started(name, 0)
    assert pool.surplus(5) == []
    assert pool.surplus(100) == ["a"]


def test_a_failed_start_is_the_end_of_hope_only_where_nothing_else_is() -> None:
    pool = roster()
    pool.ask(1)
    pool.begin_start()
    pool.begin_start()
    assert pool.failed_start() == []
    assert pool.failed_start() == [1]
    assert not pool.waiting


def test_retry_after_follows_queue_rate_and_width() -> None:
    pool = with_idle("a", "b")
    for ticket in range(10):
        pool.ask(ticket)
    for _ in range(200):
        pool.ran(2.0)
    assert pool.retry_after() == pytest.approx(8.0, rel=0.01)
    assert roster().retry_after() > 0


@pytest.mark.parametrize("seed", range(20))
def test_no_sandbox_ever_has_two_owners(seed: int) -> None:
    dice = random.Random(seed)
    pool = roster(most=3, queue=5)
    owners: dict[str, int] = {}
    tickets = made = 0
    for now in range(400):
        step = dice.randrange(6)
        given: tuple[str, int | None] | None = None
        if step == 0 and len(pool.waiting) < 5:
            tickets += 1
            warm = pool.ask(tickets)
            given = (warm, tickets) if warm is not None else None
        elif step == 1 and pool.wanted():
            pool.begin_start()
        elif step == 2 and pool.starting:
            made += 1
            given = (f"w{made}", pool.started(f"w{made}", now))
        elif step == 3 and owners:
            name = dice.choice(sorted(owners))
            del owners[name]
            pool.answered(name)
            given = (name, pool.settled(name, now))
        elif step == 4 and owners:
            name = dice.choice(sorted(owners))
            del owners[name]
            pool.remove(name)
        elif step == 5 and pool.waiting:
            pool.abandon(pool.waiting[0])
        if given is not None and given[1] is not None:
            assert given[0] not in owners
            owners[given[0]] = given[1]
        pool.check()
        assert pool.busy == set(owners)
