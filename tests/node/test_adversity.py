"""What happens to a node when the disk is full, messages come twice, or a part of it breaks."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from pathlib import Path

from node.nodes import NodeHouse, RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import Unreachable
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.states import State
from sandfleet_node.places import Places


def _full(path: Path) -> None:
    """Put in a file's place one that takes no byte, as on a full disk."""
    path.unlink(missing_ok=True)
    path.symlink_to("/dev/full")


def _copy_spec(places: Places, sandbox_id: str, other: str) -> None:
    record = json.loads(Path(places.sandbox(sandbox_id), "spec.json").read_bytes())
    record["info"] = json.dumps(json.loads(record["info"]) | {"sandbox_id": other})
    folder = Path(places.sandbox(other))
    folder.mkdir()
    (folder / "spec.json").write_text(json.dumps(record))


async def test_a_create_that_comes_again_finds_the_sandbox_paused(node: RunningNode) -> None:
    item = node.item()
    assert (await node.order(item))[0].status == "ready"
    await node.ask(s.PAUSE, m.SandboxPause(sandbox_id=item.sandbox_id))
    again = (await node.order(item))[0]
    assert again.status == "ready", again
    assert again.info is not None and again.info.state is State.PAUSED


async def test_a_sandbox_pauses_and_resumes_though_its_spec_cannot_be_written(
    node: RunningNode,
) -> None:
    sandbox_id = await node.create()
    _full(Path(node.node.places.sandbox(sandbox_id), "spec.json"))
    await node.ask(s.PAUSE, m.SandboxPause(sandbox_id=sandbox_id))
    info = await node.ask(s.RESUME, m.SandboxResume(sandbox_id=sandbox_id))
    assert info.state is State.RUNNING
    assert output(await node.run(sandbox_id, "echo", "on")) == b"on\n"


async def test_an_end_is_told_though_the_disk_is_full(node: RunningNode) -> None:
    sandbox_id = await node.create()
    _full(node.node.places.ended)
    info = await node.stop(sandbox_id)
    assert info.state is State.STOPPED
    await node.node.records.flush(5)
    assert (await node.node._store.get_many([sandbox_id]))[0].state is State.STOPPED
    assert (await node.stop(sandbox_id)).state is State.STOPPED


async def test_a_sandbox_ends_though_its_directory_cannot_be_moved(
    node: RunningNode, tmp_path: Path
) -> None:
    sandbox_id = await node.create()
    trash = node.node.places.trash
    shutil.rmtree(trash)
    trash.symlink_to("/dev/shm")  # another file system: nothing can be renamed into it
    try:
        assert (await node.stop(sandbox_id)).state is State.STOPPED
        assert node.node.load.sandboxes == 0
    finally:
        trash.unlink()
        trash.mkdir()


async def test_a_spec_that_names_ids_of_another_sandbox_does_not_keep_the_node_down(
    house: NodeHouse,
) -> None:
    async with house.running(parts_ahead=0) as node:
        sandbox_id = await node.create()
    _copy_spec(Places(house.state_dir, house.name), sandbox_id, new_sandbox_id(house.name))
    async with house.running(parts_ahead=0) as node:
        assert [one.id for one in node.node.sandboxes] == [sandbox_id]
        assert output(await node.run(sandbox_id, "echo", "on")) == b"on\n"


async def test_a_node_finds_back_to_a_launcher_that_cannot_be_given_its_pool_at_first(
    node: RunningNode,
) -> None:
    tries: list[int] = []

    async def refuse_twice(pid: int) -> None:
        tries.append(pid)
        if len(tries) <= 2:
            raise Unreachable("sandboxes have no disk")

    await node.create()
    node.node.keeper.on_open.append(refuse_twice)
    os.kill(node.node.keeper.launcher.pid, signal.SIGKILL)
    sandbox_id = await _create_when_it_can(node)
    assert output(await node.run(sandbox_id, "echo", "on")) == b"on\n"
    assert len(tries) == 3


async def _create_when_it_can(node: RunningNode) -> str:
    item = node.item(deadline_seconds=60)
    for _ in range(300):
        outcome = (await node.order(item))[0]
        if outcome.status == "ready":
            return item.sandbox_id
        if outcome.status == "failed":
            item = node.item(deadline_seconds=60)
        await asyncio.sleep(0.1)
    raise AssertionError("the node took no sandbox any more")
