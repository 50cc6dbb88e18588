"""Files in a sandbox on a real node."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import pytest
from node.nodes import RunningNode, output

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest, Conflict, FileProblem
from sandfleet_common.ids import new_ulid

pytestmark = [pytest.mark.root, pytest.mark.integration]


async def _write(node: RunningNode, sandbox: str, path: str, data: bytes, **fields: Any) -> str:
    upload = new_ulid()
    for start in range(0, max(1, len(data)), m.CHUNK_BYTES):
        part = data[start : start + m.CHUNK_BYTES]
        body = m.FileWrite(
            sandbox_id=sandbox,
            path=path,
            upload=upload,
            position=start,
            data=part,
            end=start + len(part) == len(data),
            **fields,
        )
        await node.ask(s.FILE_WRITE, body)
    return upload


async def _read(node: RunningNode, sandbox: str, path: str) -> bytes:
    whole, end = b"", False
    while not end:
        body = m.FileRead(sandbox_id=sandbox, path=path, position=len(whole))
        data: m.FileData = await node.ask(s.FILE_READ, body)
        whole, end = whole + data.data, data.end
    return whole


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 3 * m.CHUNK_BYTES + 11])
async def test_bytes_are_bytes_whatever_their_number(node: RunningNode, size: int) -> None:
    sandbox = await node.create()
    data = os.urandom(size)
    await _write(node, sandbox, "deep/in/it", data)
    assert await _read(node, sandbox, "/root/deep/in/it") == data


async def test_a_file_appears_only_when_it_is_whole(node: RunningNode) -> None:
    sandbox = await node.create()
    body = m.FileWrite(sandbox_id=sandbox, path="/tmp/part", upload="u1", data=b"half", end=False)
    await node.ask(s.FILE_WRITE, body)
    with pytest.raises(FileProblem) as caught:
        await node.ask(s.FILE_STAT, m.FileStat(sandbox_id=sandbox, path="/tmp/part"))
    assert caught.value.fields == {"path": "/tmp/part", "errno": "ENOENT"}
    rest = body.model_copy(update={"position": 2, "data": b"lf and half", "end": True})
    await node.ask(s.FILE_WRITE, rest)
    await node.ask(s.FILE_WRITE, rest)
    assert await _read(node, sandbox, "/tmp/part") == b"half and half"


async def test_an_upload_with_a_part_missing_is_refused(node: RunningNode) -> None:
    sandbox = await node.create()
    body = m.FileWrite(
        sandbox_id=sandbox, path="/tmp/x", upload="u2", position=7, data=b"later", end=True
    )
    with pytest.raises(Conflict, match="start it over"):
        await node.ask(s.FILE_WRITE, body)


async def test_a_file_that_cannot_be_written_says_why_and_can_be_tried_again(
    node: RunningNode,
) -> None:
    sandbox = await node.create()
    for _ in range(70):
        with pytest.raises(FileProblem) as caught:
            await _write(node, sandbox, "/tmp", b"x")
        assert caught.value.fields["errno"] == "EISDIR"
    await _write(node, sandbox, "/tmp/fine", b"x")


async def test_directories_are_made_listed_renamed_and_removed(node: RunningNode) -> None:
    sandbox = await node.create()
    await node.ask(s.FILE_MKDIR, m.FileMakeDir(sandbox_id=sandbox, path="/tmp/d/e", mode=0o750))
    await _write(node, sandbox, "/tmp/d/b\nnewline", b"xyz", mode=0o600)
    await node.run(sandbox, "sh", "-c", "cd /tmp/d && touch a && busybox ln -s a link")
    page = await node.ask(s.FILE_LIST, m.FileList(sandbox_id=sandbox, path="/tmp/d"))
    assert [(e.name, str(e.type), e.size) for e in page.entries if e.name != "e"] == [
        ("a", "file", 0),
        ("b\nnewline", "file", 3),
        ("link", "symlink", 1),
    ]
    assert page.entries[-1].target == "a"
    moved = m.FileRename(sandbox_id=sandbox, path="/tmp/d", target="/tmp/moved")
    entry = await node.ask(s.FILE_RENAME, moved)
    assert (entry.path, entry.type) == ("/tmp/moved", "directory")
    with pytest.raises(FileProblem):
        await node.ask(s.FILE_REMOVE, m.FileRemove(sandbox_id=sandbox, path="/tmp/moved"))
    gone = m.FileRemove(sandbox_id=sandbox, path="/tmp/moved", recursive=True)
    await node.ask(s.FILE_REMOVE, gone)
    page = await node.ask(s.FILE_LIST, m.FileList(sandbox_id=sandbox, path="/tmp"))
    assert page.entries == []


async def test_a_user_gets_no_further_than_its_rights(node: RunningNode) -> None:
    sandbox = await node.create()
    await _write(node, sandbox, "own", b"mine", user="user")
    stat = m.FileStat(sandbox_id=sandbox, path="/home/user/own")
    entry = await node.ask(s.FILE_STAT, stat)
    assert (entry.uid, entry.gid) == (1000, 1000)
    with pytest.raises(FileProblem) as caught:
        await _write(node, sandbox, "/etc/passwd", b"", user="user")
    assert caught.value.fields["errno"] == "EACCES"


async def test_a_name_that_is_not_utf8_does_not_spoil_a_listing(node: RunningNode) -> None:
    sandbox = await node.create()
    await node.run(sandbox, "sh", "-c", r"touch /tmp/$(printf '\377x')")
    page = await node.ask(s.FILE_LIST, m.FileList(sandbox_id=sandbox, path="/tmp"))
    assert [e.name for e in page.entries] == ["\ufffdx"]


async def test_changes_are_told_until_the_watch_ends(node: RunningNode) -> None:
    sandbox = await node.create()
    events: list[m.FileEvent] = []

    async def hear(subject: str, payload: bytes) -> None:
        events.append(m.FileEvent.decode(payload))

    inbox = node.bus.new_inbox()
    await node.bus.subscribe_raw(inbox, hear)
    watch = m.FileWatch(sandbox_id=sandbox, path="/tmp", watch="w1", deliver=inbox)
    await node.ask(s.FILE_WATCH, watch)
    await node.ask(s.FILE_WATCH, watch)
    await node.run(sandbox, "touch", "/tmp/new")
    for _ in range(200):
        if events:
            break
        await asyncio.sleep(0.02)
    assert (events[0].kind, events[0].path, events[0].sequence) == ("create", "new", 1)
    await node.ask(s.FILE_UNWATCH, m.FileUnwatch(sandbox_id=sandbox, watch="w1"))
    seen = len(events)
    await node.run(sandbox, "touch", "/tmp/newer")
    await asyncio.sleep(0.2)
    assert len(events) == seen
    with pytest.raises(BadRequest):
        await node.ask(s.FILE_WATCH, watch.model_copy(update={"deliver": "sf.v1.x"}))


async def test_what_is_written_is_what_commands_see(node: RunningNode) -> None:
    sandbox = await node.create()
    await _write(node, sandbox, "/tmp/script", b"echo from the file\n", mode=0o755)
    assert output(await node.run(sandbox, "sh", "/tmp/script")) == b"from the file\n"
