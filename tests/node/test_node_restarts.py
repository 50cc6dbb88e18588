"""What survives when a node's service, launcher, bus or Redis goes away."""

from __future__ import annotations

import asyncio
import json
import re
import signal

import pytest
from node.nodes import NodeHouse, RunningNode, output
from servers import Servers

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import NotFound, SandboxGone, SandfleetError
from sandfleet_common.ids import new_exec_id
from sandfleet_common.states import Origin, State
from sandfleet_common.store import Store

pytestmark = [pytest.mark.root, pytest.mark.integration]

COUNTING = "i=0; while [ $i -lt 60 ]; do i=$((i+1)); echo $i; sleep 0.05; done; exit 7"


async def test_a_command_runs_on_through_a_kill_and_its_output_is_whole(house: NodeHouse) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        exec_id = new_exec_id()
        await node.run(sandbox, "sh", "-c", COUNTING, exec_id=exec_id, wait_seconds=0)
        for _ in range(3):
            await asyncio.sleep(0.3)
            await process.kill()
            await process.start()
        state = await node.wait(sandbox, exec_id)
        assert (state.state, state.exit_code) == ("exited", 7)
        assert output(state) == b"".join(b"%d\n" % n for n in range(1, 61))
        again = await node.run(sandbox, "sh", "-c", COUNTING, exec_id=exec_id)
        assert (again.exit_code, again.started_at) == (7, state.started_at)


async def test_a_command_that_ended_while_the_service_was_down_is_known(house: NodeHouse) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        exec_id = new_exec_id()
        script = "sleep 0.3; echo done; exit 4"
        await node.run(sandbox, "sh", "-c", script, exec_id=exec_id, wait_seconds=0)
        await process.kill()
        await asyncio.sleep(0.6)
        await process.start()
        state = await node.wait(sandbox, exec_id)
        assert (state.exit_code, output(state)) == (4, b"done\n")


async def test_output_beyond_the_agents_window_waits_for_the_next_service(
    house: NodeHouse,
) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        exec_id = new_exec_id()
        script = "sleep 0.3; seq 1 200000"
        await node.run(sandbox, "sh", "-c", script, exec_id=exec_id, wait_seconds=0)
        await process.kill()
        await asyncio.sleep(0.8)
        await process.start()
        state = await node.wait(sandbox, exec_id)
        whole = output(state)
        while len(whole) < state.output_bytes:
            whole += output(await node.wait(sandbox, exec_id, len(whole)))
        assert whole == b"".join(b"%d\n" % n for n in range(1, 200_001))


async def test_an_open_stdin_goes_on_after_a_kill(house: NodeHouse) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        body = m.ExecStart(sandbox_id=sandbox, argv=["sh", "-c", "sleep 0.5; cat"], stdin=b"kept")
        await node.ask(s.EXEC_START, body)
        await process.kill()
        await process.start()
        state = await node.wait(sandbox, body.exec_id)
        assert (state.exit_code, output(state)) == (0, b"kept")


async def test_sandboxes_keep_their_record_through_a_restart(
    house: NodeHouse, store: Store
) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create(labels={"a": "b"}, ttl_seconds=500)
        before = await store.get(sandbox)
        await process.kill()
        await process.start()
        assert await store.get(sandbox) == before
        assert (await node.run(sandbox, "echo", "here")).exit_code == 0
        ended = await node.stop(sandbox)
        assert ended.start_ms == before.start_ms if before else False


async def test_a_time_to_live_that_ends_while_the_service_is_down_ends_the_sandbox(
    house: NodeHouse, store: Store
) -> None:
    async with house.process() as (process, node):
        running, paused = (
            await node.create(ttl_seconds=1, paused_ttl_seconds=1),
            await node.create(paused_ttl_seconds=1),
        )
        await node.ask(s.PAUSE, m.SandboxPause(sandbox_id=paused))
        await process.kill()
        await asyncio.sleep(1.2)
        await process.start()
        for sandbox, reason in (
            (running, "its time to live is over"),
            (paused, "it was paused for too long"),
        ):
            while (info := await store.get(sandbox)) is None or info.state is not State.STOPPED:
                await asyncio.sleep(0.05)
            assert info.reason == reason


async def test_an_ending_that_a_kill_cuts_short_goes_on_for_its_own_reason(
    house: NodeHouse, store: Store
) -> None:
    async with house.running() as node:
        sandbox_id = await node.create()
        sandbox = node.node.sandboxes.get(sandbox_id)
        node.node.sandboxes.move(sandbox, State.STOPPING, reason="enough", origin=Origin.USER)
        sandbox.save()
    async with house.running() as node:
        while (info := await store.get(sandbox_id)) is None or info.ended_at is None:
            await asyncio.sleep(0.05)
        assert (info.state, info.reason, info.origin) == (State.STOPPED, "enough", Origin.USER)


async def test_a_service_that_is_told_to_end_leaves_its_sandboxes_to_the_next(
    house: NodeHouse,
) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        await process.end(signal.SIGTERM)
        await process.start()
        assert (await node.run(sandbox, "true")).exit_code == 0


async def test_a_launcher_that_died_with_the_service_is_told_as_the_reason(
    house: NodeHouse, store: Store
) -> None:
    async with house.process() as (process, node):
        sandbox = await node.create()
        await process.kill()
        await _kill_launcher(house)
        await process.start()
        with pytest.raises(SandboxGone, match="the launcher of its node died"):
            await node.run(sandbox, "true")
        record = None
        for _ in range(100):
            record = await store.get(sandbox)
            if record is not None and record.state is State.FAILED:
                break
            await asyncio.sleep(0.02)
        assert record is not None
        assert record.reason == "the launcher of its node died"
        assert (await node.order(node.item()))[0].status == "ready"


async def _kill_launcher(house: NodeHouse) -> None:
    log = (house.state_dir / "node.log").read_text()
    pid = re.findall(r'"launcher.connected", "pid": (\d+)|"pid": (\d+), "sandboxes"', log)[-1]
    process = await asyncio.create_subprocess_exec("kill", "-9", next(p for p in pid if p))
    await process.wait()


async def test_a_sandbox_without_a_record_is_ended_when_the_service_starts(
    house: NodeHouse, store: Store
) -> None:
    async with house.process() as (process, node):
        lost, kept = await node.create(), await node.create()
        await process.kill()
        (house.state_dir / "node" / house.name / "sandboxes" / lost / "spec.json").unlink()
        await process.start()
        with pytest.raises(NotFound):
            await node.run(lost, "true")
        assert (await node.run(kept, "true")).exit_code == 0
        record = await store.get(lost)
        for _ in range(100):
            if record is not None and record.state is State.FAILED:
                break
            await asyncio.sleep(0.02)
            record = await store.get(lost)
        assert record is not None
        assert record.reason == "its node service restarted and has no record of it"
        assert await store.live_on(house.name) == {kept}


async def test_a_sandbox_that_was_just_starting_runs_on(house: NodeHouse) -> None:
    async with house.process() as (process, node):
        item = node.item(ttl_seconds=500)
        await node.order(item)
        await process.kill()
        path = house.state_dir / "node" / house.name / "sandboxes" / item.sandbox_id / "spec.json"
        spec = json.loads(path.read_text())
        info = json.loads(spec["info"])
        info |= {"state": "preparing", "version": info["version"] - 1, "expires_at": None}
        path.write_text(json.dumps(spec | {"info": json.dumps(info)}))
        await process.start()
        outcome = (await node.order(item))[0]
        assert outcome.status == "ready"
        assert outcome.info is not None
        assert outcome.info.expires_at is not None
        assert (await node.run(item.sandbox_id, "true")).exit_code == 0


async def test_remains_of_a_sandbox_are_removed_at_the_next_start(house: NodeHouse) -> None:
    async with house.running() as node:
        groups = node.node.cgroups
        groups.create("sb-remains", m.Resources(), m.Qos.LATENCY)
        (house.state_dir / "node" / house.name / "sandboxes" / "sb-remains").mkdir()
    async with house.running() as node:
        assert node.node.cgroups.known() == set()
        assert node.node.places.sandbox_ids() == []


async def test_a_second_service_for_the_same_node_does_not_start(house: NodeHouse) -> None:
    async with house.running():
        with pytest.raises(RuntimeError, match="another service runs the node"):
            async with house.running():
                pass


async def test_records_come_back_after_redis_lost_its_memory(
    house: NodeHouse, servers: Servers, store: Store
) -> None:
    async with house.running(heartbeat_seconds=0.1) as node:
        sandbox = await node.create()
        servers.redis.kill()
        stopped = await node.create()
        assert (await node.run(sandbox, "echo", "x")).exit_code == 0
        await node.stop(stopped)
        servers.redis.start()
        for _ in range(200):
            if await _is_on_record(store, sandbox) and await _is_on_record(store, stopped):
                break
            await asyncio.sleep(0.05)
        record, ended = await store.get(sandbox), await store.get(stopped)
        assert record is not None
        assert record.state is State.RUNNING
        assert ended is not None
        assert ended.state is State.STOPPED


async def _is_on_record(store: Store, sandbox: str) -> bool:
    return await store.get(sandbox) is not None


async def test_commands_go_on_while_the_bus_is_down(house: NodeHouse, servers: Servers) -> None:
    async with house.running() as node:
        sandbox = await node.create()
        exec_id = new_exec_id()
        script = "sleep 0.5; echo survived"
        await node.run(sandbox, "sh", "-c", script, exec_id=exec_id, wait_seconds=0)
        servers.nats.restart()
        await _reconnected(node)
        state = await node.wait(sandbox, exec_id)
        assert output(state) == b"survived\n"


async def _reconnected(node: RunningNode) -> None:
    for _ in range(400):
        if node.bus.is_connected and node.service is not None:
            try:
                await node.ask(s.NODE_DRAIN, m.NodeDrain(draining=False), within=1)
            except SandfleetError:
                continue
            return
        await asyncio.sleep(0.05)
    pytest.fail("the node did not come back to the bus")


async def test_a_sandbox_that_others_gave_up_is_ended(house: NodeHouse, store: Store) -> None:
    async with house.running() as node:
        sandbox = await node.create()
        info = node.node.sandboxes.get(sandbox).info()
        given_up = info.model_copy(
            update={
                "state": State.FAILED,
                "version": info.version + 1,
                "reason": "its node stopped answering",
                "origin": Origin.NODE_LOST,
                "ended_at": info.created_at,
            }
        )
        await store.save([given_up])
        node.node.sandboxes.note(node.node.sandboxes.get(sandbox))
        ended = await node.until_gone(sandbox)
        assert ended.reason == "it was given up: its node stopped answering"
