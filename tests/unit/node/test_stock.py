"""Parts made ahead: which range is handed out, what is taken over, work that travels together."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_node.batching import Batching
from sandfleet_node.config import STRIDE
from sandfleet_node.places import write_page
from sandfleet_node.stock import Stock, is_quiet, sort_found
from sandfleet_node.uids import IdRanges

BASE = 0x7000_0000


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as executor:
        yield executor


def wait_for(gate: threading.Event) -> None:
    assert gate.wait(10)


def test_the_range_made_last_is_claimed_first() -> None:
    stock = Stock(3)
    stock.add(1)
    stock.add(2)
    assert [stock.claim(), stock.claim(), stock.claim()] == [2, 1, None]


def test_a_stock_takes_no_more_than_its_limit_and_nothing_twice() -> None:
    stock = Stock(2)
    stock.add(1)
    with pytest.raises(ValueError, match="no place"):
        stock.add(1)
    stock.add(2)
    assert not stock.lacks()
    with pytest.raises(ValueError, match="no place"):
        stock.add(3)


@given(st.lists(st.one_of(st.integers(0, 20), st.none())))
def test_each_range_is_claimed_once_for_each_time_it_was_added(steps: list[int | None]) -> None:
    stock, inside, claimed = Stock(8), set[int](), list[int]()
    for step in steps:
        if step is None:
            uid = stock.claim()
            assert (uid is None) == (not inside)
            if uid is not None:
                inside.remove(uid)
                claimed.append(uid)
        elif step not in inside and stock.lacks():
            stock.add(step)
            inside.add(step)
        assert len(stock) == len(inside) <= 8
    assert set(stock.empty()) == inside
    assert len(stock) == 0


def test_nothing_is_made_ahead_while_creations_wait_or_none_would_be_taken() -> None:
    assert is_quiet(0, is_open=True)
    assert is_quiet(2, is_open=True)
    assert not is_quiet(3, is_open=True)
    assert not is_quiet(0, is_open=False)


def test_ranges_without_namespaces_are_named() -> None:
    stock = Stock(5)
    for uid in (1, 2, 3):
        stock.add(uid)
    assert stock.without([2, 9]) == [1, 3]


def test_what_an_earlier_service_made_is_kept_up_to_the_limit() -> None:
    keep, drop = sort_found([5, 3, 4, 3, 1], 2, lambda uid: uid != 1)
    assert (keep, drop) == ([3, 4], [1, 5])


def test_only_a_free_range_of_ones_own_is_free() -> None:
    ranges = IdRanges(BASE, 3)
    taken = ranges.take()
    assert not ranges.is_free(taken)
    assert ranges.is_free(taken + STRIDE)
    assert not ranges.is_free(BASE + 3 * STRIDE)
    assert not ranges.is_free(BASE - STRIDE)
    assert not ranges.is_free(BASE + 5)


async def test_work_that_waits_for_a_thread_goes_together(threads: ThreadPoolExecutor) -> None:
    batching, gate, ran = Batching(threads, 1), threading.Event(), list[tuple[int, int]]()

    def note(number: int) -> None:
        ran.append((number, threading.get_ident()))

    first = batching.run(lambda: wait_for(gate))
    rest = [batching.run(lambda number=number: note(number)) for number in range(4)]
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(first, *rest)
    assert [number for number, _ in ran] == [0, 1, 2, 3]
    assert len({thread for _, thread in ran}) == 1


async def test_a_piece_that_fails_fails_alone(threads: ThreadPoolExecutor) -> None:
    batching, gate = Batching(threads, 1), threading.Event()

    def fail() -> None:
        raise FileNotFoundError("not there")

    pieces = [batching.run(lambda: wait_for(gate)), batching.run(fail)]
    pieces.append(batching.run(lambda: None))
    gate.set()
    told = await asyncio.gather(*pieces, return_exceptions=True)
    assert [type(each) for each in told] == [type(None), FileNotFoundError, type(None)]


async def test_a_piece_is_done_also_when_nobody_waits_for_it(threads: ThreadPoolExecutor) -> None:
    batching, done = Batching(threads, 1), threading.Event()
    batching.run(done.set).cancel()
    await batching.run(lambda: None)
    assert done.is_set()


@pytest.mark.parametrize("sizes", [[10, 2000, 30], [10, 9000, 20], [5000, 10]])
def test_a_page_holds_what_was_written_last(tmp_path: Path, sizes: list[int]) -> None:
    path = tmp_path / "spec.json"
    for size in sizes:
        write_page(str(path), json.dumps({"text": "x" * size}).encode())
        assert json.loads(path.read_bytes()) == {"text": "x" * size}


def test_a_short_record_keeps_its_file(tmp_path: Path) -> None:
    path = tmp_path / "spec.json"
    write_page(str(path), b"{}")
    before = path.stat()
    write_page(str(path), b'{"more": 1}')
    after = path.stat()
    assert (before.st_ino, before.st_size) == (after.st_ino, after.st_size)
