"""Files of a sandbox, through its agent."""

from __future__ import annotations

import stat
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from native.driver import Agent, AgentError

from sandfleet_common import wire
from sandfleet_common.wire import EventKind, FrameFlag, FrameType, Tag

pytestmark = pytest.mark.root


def errno_of(call: object, *args: object, **options: object) -> int:
    assert callable(call)
    with pytest.raises(AgentError) as caught:
        call(*args, **options)
    return caught.value.errno


def remove(agent: Agent, path: str, user: str = "root", recursive: bool = False) -> None:
    flags = FrameFlag.RECURSIVE if recursive else FrameFlag.NONE
    agent.ask(FrameType.REMOVE, [(Tag.PATH, path), (Tag.USER, user)], flags)


def rename(agent: Agent, path: str, target: str) -> None:
    agent.ask(FrameType.RENAME, [(Tag.PATH, path), (Tag.TARGET, target)])


def test_what_is_written_is_read(agent: Agent) -> None:
    data = bytes(range(256)) * 1000
    entry = agent.write("/tmp/file", data)
    assert (entry.name, entry.size_bytes, entry.uid) == (b"file", len(data), 0)
    assert stat.S_IMODE(entry.mode) == 0o644
    assert agent.read("/tmp/file") == data


def test_a_file_larger_than_every_buffer_is_read_by_a_slow_reader(agent: Agent) -> None:
    data = bytes(range(256)) * 16384
    agent.write("/tmp/file", data)
    id = agent.new_id()
    agent.send(FrameType.READ, id, payload=wire.pack_fields([(Tag.PATH, "/tmp/file")]))
    time.sleep(0.3)
    assert b"".join(frame.payload for frame in agent.answer(id)) == data


def test_a_part_of_a_file_is_read(agent: Agent) -> None:
    agent.write("/tmp/file", b"0123456789")
    frames = agent.ask(FrameType.READ, [(Tag.PATH, "/tmp/file"), (Tag.LENGTH, 3)], position=4)
    assert [(f.payload, f.position, f.flags) for f in frames] == [(b"456", 4, FrameFlag.NONE)]


def test_the_end_of_a_file_is_told(agent: Agent) -> None:
    agent.write("/tmp/file", b"0123456789")
    [frame] = agent.ask(FrameType.READ, [(Tag.PATH, "/tmp/file"), (Tag.LENGTH, 100)], position=8)
    assert (frame.payload, frame.flags) == (b"89", FrameFlag.EOF)


def test_a_file_of_proc_is_read_to_its_end(agent: Agent) -> None:
    assert agent.read("/proc/meminfo").startswith(b"MemTotal")


def test_an_empty_file_is_read(agent: Agent) -> None:
    agent.write("/tmp/empty", b"")
    assert agent.read("/tmp/empty") == b""


def test_a_relative_path_starts_at_the_users_home(agent: Agent) -> None:
    agent.write("notes", b"mine", user="user")
    assert agent.read("/home/user/notes") == b"mine"
    assert agent.stat("/home/user/notes").uid == 1000


def test_parents_are_made_when_asked_for(agent: Agent) -> None:
    assert errno_of(agent.write, "/tmp/a/b/c", b"x") == 2
    agent.write("/tmp/a/b/c", b"x", parents=True, user="user")
    assert agent.stat("/tmp/a/b").uid == 1000


def test_a_replaced_file_keeps_mode_and_owner(agent: Agent) -> None:
    agent.write("/home/user/tool", b"old", user="user", mode=0o750)
    entry = agent.write("/home/user/tool", b"new")
    assert (stat.S_IMODE(entry.mode), entry.uid) == (0o750, 1000)


def test_a_link_is_written_through(agent: Agent) -> None:
    agent.sh("mkdir /tmp/d; echo old > /tmp/d/real; ln -s d/real /tmp/link; ln -s link /tmp/two")
    assert agent.write("/tmp/two", b"new").name == b"real"
    assert agent.read("/tmp/d/real") == b"new"
    assert stat.S_ISLNK(agent.stat("/tmp/link", FrameFlag.NOFOLLOW).mode)


def test_a_link_to_nothing_makes_its_target(agent: Agent) -> None:
    agent.sh("ln -s /tmp/later /tmp/link")
    agent.write("/tmp/link", b"x")
    assert agent.read("/tmp/later") == b"x"


def test_a_loop_of_links_is_refused(agent: Agent) -> None:
    agent.sh("ln -s b /tmp/a; ln -s a /tmp/b")
    assert errno_of(agent.write, "/tmp/a", b"x") == 40
    assert errno_of(agent.read, "/tmp/a") == 40


def test_a_file_does_not_appear_before_it_is_whole(agent: Agent) -> None:
    id = agent.begin_write("/tmp/file")
    agent.send(FrameType.WRITE_DATA, id, payload=b"half")
    assert errno_of(agent.stat, "/tmp/file") == 2
    agent.send(FrameType.WRITE_END, id)
    agent.answer(id)
    assert agent.read("/tmp/file") == b"half"


def test_an_aborted_write_leaves_nothing(agent: Agent) -> None:
    id = agent.begin_write("/tmp/file")
    agent.send(FrameType.WRITE_DATA, id, payload=b"half")
    agent.send(FrameType.WRITE_END, id, FrameFlag.ABORT)
    agent.answer(id)
    assert agent.list("/tmp") == []


def test_writes_are_limited_in_number_and_failed_ones_do_not_count(agent: Agent) -> None:
    for _ in range(3):
        assert errno_of(agent.write, "/nowhere/file", b"x") == 2
    ids = [agent.begin_write(f"/tmp/{i}") for i in range(wire.WRITES_MAX)]
    assert errno_of(agent.write, "/tmp/more", b"x") == 11
    for id in ids:
        agent.send(FrameType.WRITE_END, id, FrameFlag.ABORT)
        agent.answer(id)
    agent.write("/tmp/more", b"x")


def test_a_failed_write_is_told_again_at_its_end(agent: Agent) -> None:
    id = agent.begin_write("/nowhere/file")
    assert errno_of(agent.answer, id) == 2
    agent.send(FrameType.WRITE_DATA, id, payload=b"x")
    agent.send(FrameType.WRITE_END, id)
    assert errno_of(agent.answer, id) == 2


@pytest.mark.parametrize(
    ("path", "number"),
    [("/etc", 21), ("/dev/null", 22), ("/tmp/fifo", 22), ("/tmp/link", 22), ("/nope", 2)],
)
def test_only_regular_files_are_read_and_nothing_blocks(
    agent: Agent, path: str, number: int
) -> None:
    agent.sh("mkfifo /tmp/fifo; ln -s fifo /tmp/link")
    assert errno_of(agent.read, path) == number


@pytest.mark.parametrize("path", ["/dev/null", "/tmp/fifo", "/tmp", "/", "/tmp/.."])
def test_only_regular_files_are_replaced(agent: Agent, path: str) -> None:
    agent.sh("mkfifo /tmp/fifo")
    assert errno_of(agent.write, path, b"x") in (21, 22)


@pytest.mark.parametrize(
    "path",
    [
        "/proc/self/mem",
        "/proc/1/maps",
        "/proc/thread-self/environ",
        "/proc/self/task/1/auxv",
        "/proc/self/fd/3",
        "/proc/self/exe",
        "/dev/stdin",
        "/tmp/link",
    ],
)
def test_the_agent_does_not_show_itself(agent: Agent, path: str) -> None:
    agent.sh("ln -s /proc/self/mem /tmp/link")
    assert errno_of(agent.read, path) in (13, 40)


@pytest.mark.parametrize("path", ["/proc/self/fd/4/x", "/proc/self/root/tmp/x", "/tmp/link/x"])
def test_no_path_leads_through_the_agents_own_descriptors(agent: Agent, path: str) -> None:
    agent.sh("ln -s /proc/self/fd/4 /tmp/link; : > /tmp/file")
    assert errno_of(agent.ask, FrameType.MKDIR, [(Tag.PATH, path)], FrameFlag.PARENTS) == 40
    assert errno_of(agent.ask, FrameType.MKDIR, [(Tag.PATH, path)]) == 40
    assert errno_of(agent.write, path, b"", parents=True) == 40
    assert errno_of(rename, agent, "/tmp/file", path) == 40
    assert errno_of(remove, agent, path, recursive=True) == 40


def test_files_are_accessed_with_the_users_rights(agent: Agent) -> None:
    assert errno_of(agent.read, "/etc/secret", user="user") == 13
    assert errno_of(agent.write, "/etc/new", b"x", user="user") == 13
    assert errno_of(remove, agent, "/etc/secret", "user") == 13
    agent.sh("echo root > /home/user/file; chmod 644 /home/user/file")
    assert errno_of(agent.write, "/home/user/file", b"x", user="user") == 13
    assert agent.read("/etc/secret") == b"for root only"


def test_a_users_supplementary_groups_count(agent: Agent) -> None:
    agent.sh("echo team > /tmp/shared; chgrp 1001 /tmp/shared; chmod 640 /tmp/shared")
    assert agent.read("/tmp/shared", user="user") == b"team\n"


def test_a_link_is_described_with_its_target(agent: Agent) -> None:
    entry = agent.stat("/bin/sh", FrameFlag.NOFOLLOW)
    assert (entry.name, entry.target) == (b"sh", b"busybox")
    assert stat.S_ISREG(agent.stat("/bin/sh").mode)


def test_a_directory_is_listed_whole_in_several_frames(agent: Agent) -> None:
    agent.sh("mkdir /tmp/many; cd /tmp/many; for i in $(seq 3000); do : > file-$i; done")
    frames = agent.ask(FrameType.LIST, [(Tag.PATH, "/tmp/many")])
    assert len(frames) > 1
    assert {e.name for e in agent.list("/tmp/many")} == {b"file-%d" % i for i in range(1, 3001)}


def test_names_may_hold_any_bytes(agent: Agent) -> None:
    agent.sh(r"mkdir /tmp/n; : > /tmp/n/$(printf '\377\nx')")
    assert [e.name for e in agent.list("/tmp/n")] == [b"\xff\nx"]


def test_a_directory_is_made_once(agent: Agent) -> None:
    agent.ask(FrameType.MKDIR, [(Tag.PATH, "/tmp/d"), (Tag.MODE, 0o700)])
    assert stat.S_IMODE(agent.stat("/tmp/d").mode) == 0o700
    assert errno_of(agent.ask, FrameType.MKDIR, [(Tag.PATH, "/tmp/d")]) == 17
    agent.ask(FrameType.MKDIR, [(Tag.PATH, "/tmp/d/e/f")], FrameFlag.PARENTS)
    agent.ask(FrameType.MKDIR, [(Tag.PATH, "/tmp/d/e/f")], FrameFlag.PARENTS)
    agent.write("/tmp/file", b"")
    assert errno_of(agent.ask, FrameType.MKDIR, [(Tag.PATH, "/tmp/file")], FrameFlag.PARENTS) in (
        17,
        20,
    )


def test_a_change_that_is_asked_for_again_by_its_id_is_not_made_again(agent: Agent) -> None:
    id = agent.new_id()
    for _ in range(2):
        agent.ask(FrameType.MKDIR, [(Tag.PATH, "/tmp/d")], id=id)
    id = agent.new_id()
    for _ in range(2):
        agent.ask(FrameType.RENAME, [(Tag.PATH, "/tmp/d"), (Tag.TARGET, "/tmp/e")], id=id)
    id = agent.new_id()
    for _ in range(2):
        agent.ask(FrameType.REMOVE, [(Tag.PATH, "/tmp/e")], id=id)


def test_a_file_is_renamed_over_another(agent: Agent) -> None:
    agent.write("/tmp/a", b"a")
    agent.write("/tmp/b", b"b")
    rename(agent, "/tmp/a", "/tmp/b")
    assert agent.read("/tmp/b") == b"a"
    assert errno_of(rename, agent, "/tmp/a", "/tmp/b") == 2


def test_a_tree_is_removed_without_following_links(agent: Agent) -> None:
    agent.sh("mkdir -p /tmp/t/a/b /tmp/keep; : > /tmp/keep/file; ln -s /tmp/keep /tmp/t/a/link")
    assert errno_of(remove, agent, "/tmp/t") == 39
    remove(agent, "/tmp/t", recursive=True)
    assert [e.name for e in agent.list("/tmp")] == [b"keep"]
    assert [e.name for e in agent.list("/tmp/keep")] == [b"file"]


def test_a_link_to_a_tree_is_removed_alone(agent: Agent) -> None:
    agent.sh("mkdir -p /tmp/keep/in; ln -s keep /tmp/link")
    remove(agent, "/tmp/link", recursive=True)
    assert [e.name for e in agent.list("/tmp")] == [b"keep"]


def test_a_tree_deeper_than_any_path_is_removed(agent: Agent) -> None:
    agent.sh(
        "mkdir /tmp/t; cd /tmp/t; i=0; while [ $i -lt 1500 ]; do"
        " mkdir deeeeeeeeep; cd deeeeeeeeep; i=$((i+1)); done"
    )
    remove(agent, "/tmp/t", recursive=True)
    assert agent.list("/tmp") == []


def test_a_wide_tree_is_removed_while_commands_run(agent: Agent) -> None:
    agent.sh(
        "mkdir /tmp/t; cd /tmp/t; for i in $(seq 200); do mkdir $i;"
        " for j in 1 2 3 4 5 6 7 8 9; do : > $i/$j; done; done"
    )
    id = agent.new_id()
    agent.send(
        FrameType.REMOVE, id, FrameFlag.RECURSIVE, payload=wire.pack_fields([(Tag.PATH, "/tmp/t")])
    )
    assert agent.sh("echo meanwhile").stdout == b"meanwhile\n"
    agent.answer(id)
    assert agent.list("/tmp") == []


def test_a_layers_files_are_removed_and_replaced_in_the_sandbox_only(
    agent: Agent, new_agent: Callable[..., Agent]
) -> None:
    remove(agent, "/home", recursive=True)
    agent.write("/etc/passwd", b"root:x:0:0::/:/bin/sh\n")
    other = new_agent()
    assert [e.name for e in other.list("/home")] == [b"user"]
    assert b"user" in other.read("/etc/passwd")


def test_removing_what_is_not_there_is_refused(agent: Agent) -> None:
    assert errno_of(remove, agent, "/tmp/nope") == 2
    assert errno_of(remove, agent, "/tmp/nope", recursive=True) == 2
    assert errno_of(remove, agent, "/", recursive=True) == 22


def test_mounted_places_cannot_be_removed(agent: Agent) -> None:
    assert errno_of(remove, agent, "/proc", recursive=True) in (1, 16, 30)


def events(agent: Agent, id: int, until: tuple[int, bytes]) -> list[tuple[int, bytes]]:
    seen: list[tuple[int, bytes]] = []
    while not seen or seen[-1] != until:
        fields = dict(wire.unpack_fields(agent.receive_for(id).payload))
        kind, path = fields[Tag.EVENT], fields[Tag.PATH]
        assert isinstance(kind, int) and isinstance(path, bytes)
        seen.append((kind, path))
    return seen


def test_a_watch_tells_of_changes_with_relative_paths(agent: Agent) -> None:
    id = agent.new_id()
    agent.ask(FrameType.WATCH, [(Tag.PATH, "/tmp")], id=id)
    agent.sh(
        "echo 1 > /tmp/a; chmod 600 /tmp/a; mv /tmp/a /tmp/b; rm /tmp/b;"
        " mkdir /tmp/d; : > /tmp/d/x; rm -r /tmp/d"
    )
    assert events(agent, id, (EventKind.REMOVE, b"d")) == [
        (EventKind.CREATE, b"a"),
        (EventKind.WRITE, b"a"),
        (EventKind.CHMOD, b"a"),
        (EventKind.RENAME, b"a"),
        (EventKind.CREATE, b"b"),
        (EventKind.REMOVE, b"b"),
        (EventKind.CREATE, b"d"),
        (EventKind.REMOVE, b"d"),
    ]


def test_a_recursive_watch_follows_new_and_moved_directories(agent: Agent) -> None:
    agent.sh("mkdir -p /tmp/old/deep")
    id = agent.new_id()
    agent.ask(FrameType.WATCH, [(Tag.PATH, "/tmp")], FrameFlag.RECURSIVE, id=id)
    agent.sh("echo 1 > /tmp/old/deep/f")
    events(agent, id, (EventKind.WRITE, b"old/deep/f"))
    agent.sh("mkdir -p /tmp/new/sub; echo 1 > /tmp/new/sub/g")
    events(agent, id, (EventKind.CREATE, b"new/sub/g"))
    agent.sh("mv /tmp/new /tmp/moved")
    events(agent, id, (EventKind.CREATE, b"moved/sub/g"))
    agent.sh("rm /tmp/moved/sub/g")
    events(agent, id, (EventKind.REMOVE, b"moved/sub/g"))


def test_a_watch_ends_when_asked_to(agent: Agent) -> None:
    id = agent.new_id()
    agent.ask(FrameType.WATCH, [(Tag.PATH, "/tmp")], id=id)
    agent.ask(FrameType.UNWATCH, [], id=id)
    agent.sh("echo 1 > /tmp/a")
    time.sleep(0.1)
    with pytest.raises(TimeoutError):
        agent.receive_for(id, 0.1)


def test_watches_are_limited_in_number(agent: Agent) -> None:
    for _ in range(wire.WATCHES_MAX):
        agent.ask(FrameType.WATCH, [(Tag.PATH, "/tmp")])
    assert errno_of(agent.ask, FrameType.WATCH, [(Tag.PATH, "/tmp")]) == 11


def test_a_flood_of_changes_is_cut_short_and_told(agent: Agent) -> None:
    id = agent.new_id()
    agent.ask(FrameType.WATCH, [(Tag.PATH, "/dev/shm")], id=id)
    script = "cd /dev/shm; i=0; while [ $i -lt 20000 ]; do echo > a; echo > b; i=$((i+1)); done"
    flood = agent.start("/bin/sh", "-c", script)
    children = Path(f"/proc/{agent.pid}/task/{agent.pid}/children")
    time.sleep(0.2)
    while children.read_text():  # nobody listens while it happens
        time.sleep(0.1)
    while not agent.receive_for(id).flags & FrameFlag.OVERFLOW:
        pass
    assert agent.finish(flood).code == 0


def test_a_path_with_a_nul_or_without_end_is_refused(agent: Agent) -> None:
    assert errno_of(agent.read, "a\0b") == 22
    assert errno_of(agent.read, "/" + "x" * 5000) == 36
    assert errno_of(agent.ask, FrameType.READ, []) == 22
