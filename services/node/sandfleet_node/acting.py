"""One thing done to many sandboxes: what a scheduler asks of a node for a job or a label."""

from __future__ import annotations

import asyncio

from sandfleet_common.errors import SandfleetError
from sandfleet_common.messages import ActOutcome, Failure, NodeAct, NodeActed, SandboxInfo
from sandfleet_common.states import Origin, State

from .ending import Ending
from .pausing import Pausing
from .records import Records
from .sandboxes import Sandboxes

_AT_ONCE = 16


class Acting:
    """Pauses, resumes or stops many sandboxes, a few at a time, each with an outcome of its own."""

    def __init__(
        self, sandboxes: Sandboxes, pausing: Pausing, ending: Ending, records: Records
    ) -> None:
        self._sandboxes = sandboxes
        self._pausing = pausing
        self._ending = ending
        self._records = records

    async def act(self, body: NodeAct) -> NodeActed:
        """Do what is asked; one that fails does not keep the others from it."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(sandbox_id: str) -> ActOutcome:
            async with gate:
                try:
                    info = await self._one(sandbox_id, body)
                except SandfleetError as problem:
                    failure = Failure.from_error(problem)
                    return ActOutcome(sandbox_id=sandbox_id, failure=failure)
                return ActOutcome(sandbox_id=sandbox_id, info=info)

        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one(each)) for each in body.sandbox_ids]
        await self._records.settled()
        return NodeActed(outcomes=[task.result() for task in tasks])

    async def _one(self, sandbox_id: str, body: NodeAct) -> SandboxInfo:
        if body.action == "stop":
            sandbox = self._sandboxes.find(sandbox_id)
            if sandbox is None:
                return self._sandboxes.ended(sandbox_id)
            await self._ending.end(sandbox, State.STOPPED, body.reason, Origin.USER)
            return sandbox.info()
        sandbox = self._sandboxes.get(sandbox_id)
        if sandbox.starting is not None:
            await asyncio.wait({sandbox.starting})
        if body.action == "pause":
            await self._pausing.pause(sandbox)
        else:
            await self._pausing.resume(sandbox)
        return sandbox.info()
