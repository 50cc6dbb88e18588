"""Many sandboxes of a real platform are paused, resumed and ended by one request each."""

from __future__ import annotations

import asyncio

import pytest

from sandfleet import AsyncClient, Resources, SandboxSpec
from sandfleet_common.states import State

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(180)]


async def test_a_job_pauses_goes_on_and_ends_as_one(client: AsyncClient) -> None:
    spec = SandboxSpec(resources=Resources(memory_bytes=64 * 1024**2, pids=32))
    async with client.job(spec, count=12) as job:
        sandboxes = [sandbox async for sandbox in job.ready()]
        await asyncio.gather(*(one.run("echo kept > /tmp/note") for one in sandboxes))
        paused = await job.pause()
        assert (paused.matched, paused.done, paused.failures) == (12, 12, [])
        states = {(await one.info()).state for one in sandboxes}
        assert states == {State.PAUSED}
        resumed = await job.resume()
        assert (resumed.done, resumed.failures) == (12, [])
        notes = await asyncio.gather(*(one.run("cat /tmp/note") for one in sandboxes))
        assert {note.text for note in notes} == {"kept\n"}
    states = {(await one.info()).state for one in sandboxes}
    assert states == {State.STOPPED}
