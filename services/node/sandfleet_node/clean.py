"""Removes everything of a node that no service runs: for after a crash."""

from __future__ import annotations

import os
import shutil
import signal
import time
from pathlib import Path

from sandfleet_common import wire
from sandfleet_common.logs import Logger

from .cgroups import Cgroups
from .disk.loop import until_free
from .egress.proxylink import end
from .hierarchies import CgroupError, detect
from .launcherprocess import connect_socket, is_gone, peer_pid
from .places import Places
from .service import take_lock
from .swap import remove_swap

_QUIT_SECONDS = 30.0


def clean(places: Places, node: str, log: Logger) -> None:
    """End the node's launcher with its sandboxes, and remove groups and files.

    Raises:
        AlreadyRunning: a service runs the node.
    """
    lock = take_lock(places)
    try:
        _end_launcher(places.run, log)
        end(places.run)
        _remove_groups(node, log)
        images = [*places.pools.resolve().glob("*.img")]
        for image in until_free(images, _QUIT_SECONDS):
            log.warning("disk.device_left", image=str(image))
        shutil.rmtree(places.trash, ignore_errors=True)
        remove_swap(places.swap, log)
        places.remove_all()
    finally:
        os.close(lock)
    log.info("node.clean", node=node)


def _end_launcher(run_dir: Path, log: Logger) -> None:
    try:
        sock = connect_socket(run_dir)
    except OSError:
        return
    with sock:
        pid = peer_pid(sock)
        sock.settimeout(_QUIT_SECONDS)
        try:
            sock.send(wire.pack_message({"op": "hello", "seq": "1"}))
            sock.send(wire.pack_message({"op": "quit", "seq": "2"}))
            while sock.recv(wire.LAUNCHER_MAX_BYTES):
                continue
        except OSError as problem:
            log.warning("launcher.unresponsive", pid=pid, error=str(problem))
    if not _waited(pid) and _is_launcher(pid):
        os.kill(pid, signal.SIGKILL)
        _waited(pid)


def _waited(pid: int) -> bool:
    for _ in range(250):
        if is_gone(pid):
            return True
        time.sleep(0.02)
    return False


def _is_launcher(pid: int) -> bool:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return len(command) > 1 and command[1] == b"launcher"


def _remove_groups(node: str, log: Logger) -> None:
    try:
        cgroups = Cgroups(detect(), node)
    except CgroupError as problem:
        log.warning("cgroups.unknown", error=str(problem))
        return
    for sandbox_id in cgroups.known():
        cgroups.kill(sandbox_id)
    for sandbox_id in cgroups.known():
        if not cgroups.remove(sandbox_id):
            log.warning("cgroup.left", sandbox=sandbox_id)
    for uid in cgroups.ready():
        cgroups.remove_ready(uid)
    cgroups.close()
