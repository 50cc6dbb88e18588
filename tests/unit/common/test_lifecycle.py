"""Tasks with an owner, and services that end when told."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from sandfleet_common import lifecycle
from sandfleet_common.lifecycle import Health, Tasks, serve
from sandfleet_common.logs import Logger


async def test_leaving_the_block_cancels_and_awaits_what_runs(log: Logger) -> None:
    ended: list[str] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append("cleaned up")

    async with Tasks(log) as tasks:
        tasks.start(work(), "work")
        await asyncio.sleep(0)
    assert ended == ["cleaned up"]


async def test_a_task_that_swallows_a_cancellation_is_cancelled_again(
    log: Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lifecycle, "RECANCEL_SECONDS", 0.01)
    swallowed = 0

    async def stubborn() -> None:
        nonlocal swallowed
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if swallowed == 2:
                    raise
                swallowed += 1

    async with Tasks(log) as tasks:
        task = tasks.start(stubborn(), "stubborn")
        await asyncio.sleep(0)
    assert task.cancelled() and swallowed == 2


async def test_a_critical_failure_is_reported_and_others_are_not(log: Logger) -> None:
    async def fail() -> None:
        raise ValueError("odd")

    async with Tasks(log) as tasks:
        tasks.start(fail(), "harmless")
        tasks.start(fail(), "critical", critical=True)
        assert isinstance(await tasks.failed(), ValueError)


class Demo:
    """A service that notes what happens to it."""

    name = "demo"

    def __init__(self, *, fail: bool = False, drain: float = 0) -> None:
        self.seen: list[str] = []
        self._fail = fail
        self._drain = drain

    async def run(self, ready: Callable[[], None]) -> None:
        ready()
        if self._fail:
            raise RuntimeError("broken")
        try:
            await asyncio.Event().wait()
        finally:
            self.seen.append("cancelled")

    async def drain(self) -> None:
        self.seen.append("draining")
        await asyncio.sleep(self._drain)
        self.seen.append("drained")


def tell(*numbers: signal.Signals) -> Callable[[], None]:
    """Return what sends ourselves signals, once we are ready."""

    def send() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    def soon() -> None:
        asyncio.get_running_loop().call_soon(send)

    return soon


async def test_a_signal_drains_then_cancels(log: Logger) -> None:
    demo, health = Demo(), Health()
    status = await serve(demo, log, health, drain_seconds=5, on_ready=tell(signal.SIGTERM))
    assert (status, demo.seen) == (0, ["draining", "drained", "cancelled"])
    assert not health.is_ready


async def test_a_second_signal_cuts_draining_short(log: Logger) -> None:
    demo = Demo(drain=60)
    signals = tell(signal.SIGTERM, signal.SIGINT)
    assert await serve(demo, log, Health(), drain_seconds=60, on_ready=signals) == 0
    assert demo.seen == ["draining", "cancelled"]


async def test_draining_has_a_limit(log: Logger) -> None:
    demo = Demo(drain=60)
    ready = tell(signal.SIGTERM)
    assert await serve(demo, log, Health(), drain_seconds=0.05, on_ready=ready) == 0
    assert demo.seen == ["draining", "cancelled"]


async def test_a_service_that_fails_ends_with_a_status(log: Logger) -> None:
    assert await serve(Demo(fail=True), log, Health(), drain_seconds=1) == 1
