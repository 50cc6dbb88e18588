"""Small parts that hold when things come at the wrong moment."""

from __future__ import annotations

import asyncio
import socket
import threading
from pathlib import Path

import pytest

from sandfleet_common.errors import Busy
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.messages import SandboxInfo, SandboxSpec
from sandfleet_common.states import State
from sandfleet_common.wire import FrameType
from sandfleet_node.agentlink import BACKLOG_BYTES, AgentLink
from sandfleet_node.creation import until_done
from sandfleet_node.tombstones import Tombstones


async def test_work_in_a_thread_is_waited_for_however_often_its_waiter_is_cancelled() -> None:
    began, gate = threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        gate.wait(10)

    loop = asyncio.get_running_loop()
    done = loop.run_in_executor(None, work)
    waiter = asyncio.create_task(until_done(done))
    await asyncio.to_thread(began.wait, 10)
    for _ in range(3):
        waiter.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert not waiter.done()
    gate.set()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert done.done()


async def test_what_work_in_a_thread_raises_is_raised_by_its_waiter() -> None:
    def work() -> None:
        raise FileNotFoundError("gone")

    with pytest.raises(FileNotFoundError, match="gone"):
        await until_done(asyncio.get_running_loop().run_in_executor(None, work))


class _Owner:
    def on_frame(self, frame: object) -> None:
        """Take a frame."""

    def on_pause(self) -> None:
        """All was told."""

    def on_closed(self, problem: str | None) -> None:
        """It is closed."""


async def test_a_word_that_may_be_lost_fails_nobody_when_an_agent_does_not_read() -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    link = AgentLink(near, _Owner())
    payload = bytes(60_000)
    with far:
        with pytest.raises(Busy):
            for number in range(2 * BACKLOG_BYTES // len(payload)):
                link.send(FrameType.STDIN, number, payload=payload)
        for number in range(60_000 // 16):
            link.tell(FrameType.UNWATCH, number)
        with pytest.raises(Busy):
            link.send(FrameType.STDIN, 1, payload=payload)
        link.close()


def _ended() -> SandboxInfo:
    return SandboxInfo(
        sandbox_id=new_sandbox_id("n1"),
        node="n1",
        state=State.STOPPED,
        spec=SandboxSpec(),
        created_at=0,
        ended_at=100,
    )


def test_an_end_that_was_cut_short_by_a_full_disk_costs_no_other(tmp_path: Path) -> None:
    path = tmp_path / "ended.jsonl"
    stones, cut, after = Tombstones(path, 3600, 10), _ended(), _ended()
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        stones.add(cut, 100)
    assert stones.get(cut.sandbox_id) == cut
    path.unlink()
    path.write_bytes(cut.encode()[:50])  # what a disk with a little room would have taken
    stones.add(after, 101)
    later = Tombstones(path, 3600, 10)
    later.load(102)
    assert later.get(after.sandbox_id) == after
