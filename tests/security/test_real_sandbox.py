"""The sensor on sandboxes that the real launcher makes: what seccomp refuses there is seen."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from pathlib import Path

import pytest
from native.conftest import launcher, tree
from native.driver import Agent, Launcher
from servers import Servers
from watching import Heard, cgroup2_mount, running

from sandfleet_common.ids import new_sandbox_id

__all__ = ["launcher", "tree"]

pytestmark = [pytest.mark.integration, pytest.mark.root, pytest.mark.timeout(120)]

NODE = f"sandfleet-test-{os.getpid()}"
"""The launcher's test driver keeps its sandboxes in a directory of this name."""

PROBES = {
    "mount": "mount",
    "unmount": "umount2",
    "fsopen": "fsopen",
    "open_tree": "open_tree",
    "unshare-user": "unshare",
    "clone-user": "clone",
    "setns": "setns",
    "ptrace-agent": "ptrace",
    "agent-vm-read": "process_vm_readv",
    "pidfd-getfd": "pidfd_getfd",
    "vsock": "socket",
    "io_uring": "io_uring_setup",
    "bpf": "bpf",
    "keyctl": "keyctl",
    "userfaultfd": "userfaultfd",
    "perf": "perf_event_open",
    "module": "init_module",
}
"""What the probe program tries, and the fact it must be seen as."""


@pytest.fixture
def directory() -> Generator[Path]:
    """Return the driver's directory, there before the sensor and the launcher."""
    directory = cgroup2_mount() / NODE
    directory.mkdir(exist_ok=True)
    yield directory
    if directory.exists():
        directory.rmdir()


@pytest.fixture
def sandbox(directory: Path, launcher: Launcher) -> Launcher:
    """Return the launcher, once the directory is there."""
    assert directory.is_dir()
    return launcher


async def test_every_refused_attempt_in_a_real_sandbox_is_seen_and_its_making_is_not(
    sandbox: Launcher, heard: Heard, servers: Servers, tmp_path: Path
) -> None:
    log = tmp_path / "sensor.log"
    async with running("sensor", servers, log, node=NODE, cgroup_directory=".") as sensor:
        await sensor.until(lambda _, health: not health["warnings"])
        name = new_sandbox_id(NODE)
        agent: Agent = await asyncio.to_thread(sandbox.create, name, ["base"])
        await asyncio.to_thread(agent.run, "/bin/true")
        await heard.until(lambda fact: fact.path == "/bin/true")
        making = [fact for fact in heard.of(name) if fact.kind != "exec"]
        assert making == [], "the launcher's own work was taken for the sandbox's"
        unseen: list[str] = []
        for probe, kind in PROBES.items():
            before = len(heard.of(name, kind))
            outcome = await asyncio.to_thread(agent.run, "/bin/probe", probe)
            try:
                await asyncio.wait_for(
                    heard.until_all(lambda _, k=kind, b=before: len(heard.of(name, k)) > b), 5
                )
            except TimeoutError:
                unseen.append(f"{probe}: {outcome}")
        assert unseen == []
        aimed = {fact.kind for fact in heard.of(name) if "at-init" in fact.notes}
        assert {"ptrace", "process_vm_readv"} <= aimed
        agent.close()
        await asyncio.to_thread(sandbox.end, name)
