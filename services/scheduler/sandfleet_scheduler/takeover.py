"""Going on with a job that was begun: its slots, from what is on record.

A slot's holder was recorded before its node heard of it. If the holder's record
says that it was ready, the slot is ready; otherwise the same node is asked for the
same id again, which creates nothing twice.

When Redis has lost its memory as well, nodes write their live sandboxes anew, and
those of this job say which slot they fill. Then what had ended already, or was on
its way to a node, is not known: such slots are filled once more, and a sandbox
that was on its way may live beside its successor until its TTL.
"""

from __future__ import annotations

import asyncio

from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxInfo, SlotFailure
from sandfleet_common.states import State
from sandfleet_common.store import FAILED_SLOT, Store

from .fleet import Fleet
from .slots import Slots

REWRITE_SECONDS = 3.0
"""Nodes notice within a heartbeat or two that Redis lost its memory."""


async def restore(job_id: str, slots: Slots, store: Store, log: Logger) -> dict[int, str]:
    """Fill in what is on record; returns slot -> sandbox whose node is to be asked again."""
    failures = {failure.slot: failure for failure in await store.job_failures(job_id)}
    holders = await store.job_slots(job_id)
    return await _sort(holders, failures, slots, store, log)


async def search(
    job_id: str, slots: Slots, store: Store, fleet: Fleet, log: Logger
) -> dict[int, str]:
    """Find the sandboxes of a job that Redis has forgotten, in the nodes' inventories."""
    await asyncio.sleep(REWRITE_SECONDS)
    holders: dict[int, str] = {}
    for node in list(fleet.core.nodes):
        for info in await store.get_many(sorted(await store.live_on(node))):
            if info is not None and info.job_id == job_id and info.slot is not None:
                holders[info.slot] = info.sandbox_id
    await store.claim_slots(job_id, {slot: (None, holder) for slot, holder in holders.items()})
    log.warning("job.searched", job=job_id, found=len(holders))
    return await _sort(holders, {}, slots, store, log)


async def _sort(
    holders: dict[int, str],
    failures: dict[int, SlotFailure],
    slots: Slots,
    store: Store,
    log: Logger,
) -> dict[int, str]:
    again: dict[int, str] = {}
    known = [(slot, holder) for slot, holder in holders.items() if slot < slots.count]
    sandboxes = [(slot, holder) for slot, holder in known if holder != FAILED_SLOT]
    for slot, holder in known:
        if holder == FAILED_SLOT:
            slots.fail(failures.get(slot) or _forgotten(slot))
    records = await store.get_many([holder for _, holder in sandboxes])
    for (slot, holder), info in zip(sandboxes, records, strict=True):
        slots.holders[slot] = holder
        if slot in failures:
            slots.fail(failures[slot])
        elif info is not None and info.ready_at is not None:
            slots.became_ready(slot, info)
        elif info is None or not _came_to_nothing(info):
            again[slot] = holder
    log.info("job.restored", ready=slots.ready, failed=slots.failed, again=len(again))
    return again


def _came_to_nothing(info: SandboxInfo) -> bool:
    """Whether it ended without having been ready, so that the slot waits again."""
    return info.state in (State.REJECTED, State.STOPPED, State.FAILED)


def _forgotten(slot: int) -> SlotFailure:
    return SlotFailure(slot=slot, code="internal", message="it failed; why is not on record")
