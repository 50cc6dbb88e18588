"""Alerts that wait: the oldest go when they are too many, and all are delivered in order."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import Alert, Severity
from sandfleet_security.outbox import BATCH, Outbox


def alert(number: int) -> Alert:
    return Alert(
        alert_id=f"al-{number}",
        sandbox_id="sb-n1-01h00000000000000000000000",
        rule="mount",
        severity=Severity.LOW,
        message="",
        score=0,
        at=0,
    )


async def test_alerts_are_delivered_in_order_and_none_twice() -> None:
    log, got = Logger("test"), list[str]()

    async def deliver(alerts: Sequence[Alert]) -> None:
        assert len(alerts) <= BATCH
        got.extend(a.alert_id for a in alerts)

    box = Outbox("here", deliver, limit=1000, log=log)
    async with Tasks(log) as tasks:
        tasks.start(box.run(), "outbox")
        box.add([alert(n) for n in range(150)])
        await box.drained()
        box.add([alert(150)])
        await box.drained()
    assert got == [f"al-{n}" for n in range(151)]


async def test_too_many_alerts_push_out_the_oldest() -> None:
    async def never(_: Sequence[Alert]) -> None:
        await asyncio.Event().wait()

    box = Outbox("nowhere", never, limit=10, log=Logger("test"))
    box.add([alert(n) for n in range(13)])
    assert (len(box), box.dropped) == (10, 3)


async def test_an_empty_outbox_has_nothing_to_wait_for() -> None:
    async def never(_: Sequence[Alert]) -> None:
        await asyncio.Event().wait()

    await asyncio.wait_for(Outbox("nowhere", never, limit=10, log=Logger("test")).drained(), 5)
