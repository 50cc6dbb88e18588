"""What waits for a socket: fair, bounded, forgotten when nobody wants it."""

from __future__ import annotations

import asyncio

from sandfleet_gateway.outlet import ANSWERS_MAX, Item, Outlet


async def drained(outlet: Outlet, count: int) -> list[str | bytes]:
    written: list[str | bytes] = []
    full = asyncio.Event()

    async def send(data: str | bytes) -> None:
        written.append(data)
        if len(written) == count:
            full.set()

    async with asyncio.TaskGroup() as group:
        running = group.create_task(outlet.run(send))
        await full.wait()
        running.cancel()
    return written


async def test_channels_take_turns_and_keep_their_order() -> None:
    outlet = Outlet()
    for text in ("a1", "a2", "a3"):
        outlet.put(1, Item(text))
    for text in ("b1", "b2"):
        outlet.put(2, Item(text))
    assert await drained(outlet, 5) == ["a1", "b1", "a2", "b2", "a3"]


async def test_a_message_is_known_to_be_sent_only_then() -> None:
    outlet, sent = Outlet(), list[int]()
    outlet.put(1, Item(b"x", lambda: sent.append(1)))
    assert sent == []
    await drained(outlet, 1)
    await asyncio.sleep(0)
    assert sent == [1]


async def test_output_is_forgotten_and_answers_are_not() -> None:
    outlet, dropped = Outlet(), list[int]()
    outlet.put(1, Item(b"output", lambda: None, lambda: dropped.append(1)))
    outlet.put(1, Item("answer"))
    outlet.put(2, Item(b"other", lambda: None))
    outlet.forget(1)
    assert dropped == [1]
    assert await drained(outlet, 2) == ["answer", b"other"]


async def test_answers_that_nobody_reads_are_bounded() -> None:
    outlet = Outlet()
    for _ in range(ANSWERS_MAX):
        outlet.put(1, Item("answer"))
    waiting = asyncio.ensure_future(outlet.has_room())
    await asyncio.sleep(0)
    assert not waiting.done()
    await drained(outlet, 2)
    await waiting
