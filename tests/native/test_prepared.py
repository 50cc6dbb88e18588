"""Namespaces made ahead of need: as good as those a sandbox makes itself, and used once."""

from __future__ import annotations

import fcntl
import os
from contextlib import ExitStack
from pathlib import Path

import pytest
from native.driver import FIRST_UID, IDS, Launcher, Refused

pytestmark = pytest.mark.root

NS_GET_USERNS = 0xB701
KINDS = ("net", "ipc", "uts")
UID = FIRST_UID + 500 * IDS


def prepare(launcher: Launcher, uid: int = UID) -> None:
    launcher.ask("prepare", ("uid", uid), ("ids", IDS))


def prepared(launcher: Launcher) -> str:
    return launcher.ask("hello")["prepared"]


def spaces(pid: int) -> dict[str, str]:
    return {kind: os.readlink(f"/proc/{pid}/ns/{kind}") for kind in ("user", *KINDS)}  # noqa: PTH115


def held(launcher: Launcher, kind: str) -> set[str]:
    """Return the namespaces of a kind that the launcher holds open."""
    links: set[str] = set()
    for path in Path(f"/proc/{launcher.process.pid}/fd").iterdir():
        links.add(os.readlink(path))  # noqa: PTH115
    return {link for link in links if link.startswith(f"{kind}:")}


def owner(path: str) -> tuple[int, int]:
    """Return which user namespace owns another namespace."""
    space = os.open(path, os.O_RDONLY)
    try:
        above = fcntl.ioctl(space, NS_GET_USERNS)
    finally:
        os.close(space)
    try:
        found = os.fstat(above)
        return found.st_dev, found.st_ino
    finally:
        os.close(above)


def test_a_sandbox_enters_what_was_prepared_for_its_range(launcher: Launcher) -> None:
    prepare(launcher)
    ready = {kind: held(launcher, kind) for kind in KINDS}
    agent = launcher.create("sb-one", ["base"], uid=UID)
    found = spaces(agent.pid)
    assert {kind: {found[kind]} for kind in KINDS} == ready
    assert agent.run("hostname").stdout == b"sb-one\n"
    [link] = agent.run("ip", "-o", "link").stdout.splitlines()
    assert b"LOOPBACK,UP" in link


@pytest.mark.parametrize("is_prepared", [True, False])
def test_a_sandboxs_user_namespace_owns_its_others(launcher: Launcher, is_prepared: bool) -> None:
    if is_prepared:
        prepare(launcher)
    agent = launcher.create("sb-one", ["base"], uid=UID)
    own = Path(f"/proc/{agent.pid}/ns/user").stat()
    for kind in (*KINDS, "cgroup"):
        assert owner(f"/proc/{agent.pid}/ns/{kind}") == (own.st_dev, own.st_ino)


def test_what_is_prepared_serves_one_sandbox(launcher: Launcher) -> None:
    prepare(launcher)
    first = launcher.create("sb-one", ["base"], uid=UID)
    assert prepared(launcher) == ""
    assert all(held(launcher, kind) == set() for kind in KINDS)
    before = spaces(first.pid)
    with ExitStack() as stack:
        for kind in KINDS:  # held, so that the kernel cannot give their numbers away again
            stack.enter_context(Path(f"/proc/{first.pid}/ns/{kind}").open("rb"))
        launcher.end("sb-one")
        after = spaces(launcher.create("sb-two", ["base"], uid=UID).pid)
    assert before["user"] == after["user"]
    assert not any(before[kind] == after[kind] for kind in KINDS)


def test_what_is_prepared_is_not_used_again_after_a_failure(launcher: Launcher) -> None:
    prepare(launcher)
    request = launcher.create_request("sb-bad", ["base"], uid=UID)
    bad = [(key, "/nowhere/upper" if key == "upper" else value) for key, value in request]
    with pytest.raises(Refused):
        launcher.answer(launcher.send(bad))
    assert prepared(launcher) == ""
    assert all(held(launcher, kind) == set() for kind in KINDS)


def test_preparing_again_changes_nothing(launcher: Launcher) -> None:
    prepare(launcher)
    before = {kind: held(launcher, kind) for kind in KINDS}
    prepare(launcher)
    assert {kind: held(launcher, kind) for kind in KINDS} == before


def test_a_new_node_service_hears_what_is_prepared(launcher: Launcher) -> None:
    uids = [UID + number * IDS for number in range(3)]
    for uid in uids:
        prepare(launcher, uid)
    launcher.link.close()
    launcher.connect()
    assert prepared(launcher) == ",".join(f"{uid}+{IDS}" for uid in uids)


def test_what_is_not_wanted_is_dropped(launcher: Launcher) -> None:
    prepare(launcher)
    for _ in range(2):
        launcher.ask("unprepare", ("uid", UID), ("ids", IDS))
    assert prepared(launcher) == ""
    assert all(held(launcher, kind) == set() for kind in KINDS)


def test_so_many_may_be_prepared_and_no_more(launcher: Launcher) -> None:
    for number in range(1024):
        prepare(launcher, UID + number)
    with pytest.raises(Refused) as caught:
        prepare(launcher, UID + 1024)
    assert (caught.value.errno, caught.value.step) == (28, "prepare")
    assert len(prepared(launcher).split(",")) == 1024


@pytest.mark.parametrize("uid", [0, 2**32 - 1])
def test_a_range_that_is_none_is_not_prepared(launcher: Launcher, uid: int) -> None:
    with pytest.raises(Refused) as caught:
        prepare(launcher, uid)
    assert caught.value.errno == 22
