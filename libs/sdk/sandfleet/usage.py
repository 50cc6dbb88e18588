"""What the sandboxes of a whole fleet use."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import NotFound, SandfleetError
from sandfleet_common.ranking import most

from .calls import call
from .transport import Transport

NODES_AT_ONCE = 32
ANSWER_SECONDS = 5.0
"""What one of many nodes has for its answer."""


@dataclass(frozen=True, slots=True)
class FleetUsage:
    """The sandboxes that use most, over all nodes that were asked."""

    sandboxes: list[m.SandboxUsage]
    """In the order that was asked for."""
    nodes: list[m.NodeUsage] = field(default_factory=list[m.NodeUsage])
    """The sums of each node; by name, without their sandboxes."""
    beats: list[m.NodeBeat] = field(default_factory=list[m.NodeBeat])
    """The latest heartbeat of each of them, and of the silent ones."""
    silent: list[str] = field(default_factory=list[str])
    """Nodes that are alive and did not answer."""


async def ask_fleet(
    transport: Transport, node: str | None, order: m.UsageOrder, limit: int
) -> FleetUsage:
    """Ask one node or all of them at once.

    Raises:
        NotFound: no node of that name is alive.
        BadRequest: the order or limit does not fit.
        Unavailable: the one node that was named does not answer.
    """
    beats = (await call(transport, s.NODE_LIST, m.NodeList())).nodes
    if node is None:
        wanted = [m.NodeUsageGet.of(node=beat.node, order=order, limit=limit) for beat in beats]
        told = await _ask_all(transport, wanted)
    else:
        beats = [beat for beat in beats if beat.node == node]
        if not beats:
            raise NotFound(f"no node {node!r} is alive")
        body = m.NodeUsageGet.of(node=node, order=order, limit=limit)
        told = [await call(transport, s.NODE_USAGE, body)]
    heard = {one.node for one in told}
    return FleetUsage(
        sandboxes=most((u for one in told for u in one.sandboxes), order, limit),
        nodes=[one.model_copy(update={"sandboxes": []}) for one in told],
        beats=sorted(beats, key=lambda beat: beat.node),
        silent=sorted(beat.node for beat in beats if beat.node not in heard),
    )


async def _ask_all(transport: Transport, wanted: Sequence[m.NodeUsageGet]) -> list[m.NodeUsage]:
    """Return what each node says, by name; one that is silent does not hold up the others."""
    gate = asyncio.Semaphore(NODES_AT_ONCE)
    told: list[m.NodeUsage] = []

    async def one(body: m.NodeUsageGet) -> None:
        async with gate:
            try:
                told.append(await transport.call(s.NODE_USAGE, body, within=ANSWER_SECONDS))
            except SandfleetError:
                return

    async with asyncio.TaskGroup() as group:
        for body in wanted:
            group.create_task(one(body))
    return sorted(told, key=lambda one: one.node)
