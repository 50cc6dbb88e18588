"""The mount for layers on demand: the launcher's own; its descriptor is for whoever serves it."""

from __future__ import annotations

import errno
import os
import select
import threading
from pathlib import Path

import pytest
from native.driver import Launcher

from sandfleet_node.chunks import protocol
from sandfleet_node.chunks.protocol import Operation

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(not Path("/dev/fuse").exists(), reason="this host has no /dev/fuse"),
]


def device_of(launcher: Launcher) -> int:
    answer, device = launcher.answer(launcher.send([("op", "chunks")]))
    assert answer["ok"] == "1"
    assert device >= 0
    return device


def request_of(device: int) -> protocol.Request:
    assert select.select([device], [], [], 10)[0], "the kernel asks nothing"
    return protocol.parse(os.read(device, protocol.REQUEST_BYTES))


def begin(device: int) -> None:
    """Answer the kernel's first request."""
    request = request_of(device)
    assert request.operation == Operation.INIT
    answer = protocol.init(request.body)
    assert answer is not None
    os.write(device, protocol.ok(request.unique, answer))


def fuse_mounts(pid: int | str) -> list[str]:
    lines = Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
    return [line for line in lines if " - fuse chunks " in line]


def test_the_mount_is_made_once_and_seen_by_the_launcher_only(launcher: Launcher) -> None:
    before = fuse_mounts("self")
    devices = [device_of(launcher), device_of(launcher)]
    try:
        assert len(fuse_mounts(launcher.process.pid)) == len(before) + 1
        assert fuse_mounts("self") == before
    finally:
        for device in devices:
            os.close(device)


def test_a_launcher_goes_on_while_nobody_serves_its_mount(launcher: Launcher) -> None:
    os.close(device_of(launcher))
    assert launcher.ask("hello")["ok"] == "1"
    assert launcher.create("sb-one", ["base"]).run("echo", "on").stdout == b"on\n"


def test_who_comes_later_answers_what_another_took_and_left(launcher: Launcher) -> None:
    first = device_of(launcher)
    begin(first)
    outcome: list[int] = []

    def look() -> None:
        try:
            os.stat(f"/proc/{launcher.process.pid}/cwd/chunks/layer")  # noqa: PTH116
        except OSError as problem:
            outcome.append(problem.errno or 0)

    thread = threading.Thread(target=look)
    thread.start()
    second = -1
    try:
        assert request_of(first).operation == Operation.LOOKUP
        second = device_of(launcher)
        os.close(first)
        os.write(second, protocol.resend())
        again = request_of(second)
        assert protocol.parse_name(again.body) == "layer"
        os.write(second, protocol.error(again.unique, protocol.NOT_HERE))
    finally:
        launcher.process.kill()  # lets go of a thread that nobody answered
        thread.join(10)
        os.close(second)
    assert outcome == [errno.ENOENT]


def test_a_server_learns_that_its_launcher_has_gone(launcher: Launcher) -> None:
    device = device_of(launcher)
    begin(device)
    launcher.process.kill()
    launcher.process.wait(10)
    try:
        with pytest.raises(OSError, match="No such device"):
            while True:
                request_of(device)
    finally:
        os.close(device)
