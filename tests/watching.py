"""What the security tests share: a cgroup that looks like a sandbox's, and what sensors say.

A process is in a sandbox, as far as a sensor can tell, when it is in such a cgroup.
So code runs there as root with nothing else around it, and each call it makes is
made so that it fails or changes nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from servers import Servers, free_port

from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.messages import Fact, FactBatch
from sandfleet_security.cgroups import find_cgroup2

REPOSITORY = Path(__file__).resolve().parents[1]
SENSOR = REPOSITORY / "native/build/sandfleet-sensor"
PATIENCE_SECONDS = 20.0
"""How long a test waits for what must come."""

PRELUDE = """
import ctypes, mmap, os, struct, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number, *arguments):
    return libc.syscall(*(ctypes.c_long(a) for a in (number, *arguments)))
def machine_code(code):
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_long)(ctypes.addressof(ctypes.c_char.from_buffer(page)))()
"""
"""`call(nr, ...)` makes a system call past the C library; `machine_code(b)` runs bytes."""


class Cage:
    """The directory of one node in cgroup v2, and sandboxes below it."""

    def __init__(self, mount: Path, node: str = "n1") -> None:
        self.node = node
        self.root = mount / f"sandfleet-test-{os.getpid()}"
        self.directory = self.root / node
        self._started: list[subprocess.Popen[str]] = []

    def sandbox(self, *below: str) -> tuple[str, Path]:
        """Make a sandbox's directory; returns its id and the directory its commands go to."""
        name = new_sandbox_id(self.node)
        path = self.directory.joinpath(name, *below)
        path.mkdir(parents=True)
        return name, path

    def start(self, where: Path, *command: str, before_exec: str = "") -> subprocess.Popen[str]:
        """Start a command in a cgroup: it is there before its first exec."""
        enter = f"open({str(where / 'cgroup.procs')!r}, 'w').write('0')"
        code = f"{PRELUDE}\n{enter}\n{before_exec}\nos.execvp(sys.argv[1], sys.argv[1:])"
        process = subprocess.Popen(
            [sys.executable, "-c", code, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._started.append(process)
        return process

    def run(self, where: Path, code: str, *, before_exec: str = "") -> str:
        """Run Python code in a cgroup and return what it prints."""
        return self.run_command(
            where,
            sys.executable,
            "-c",
            PRELUDE + textwrap.dedent(code),
            before_exec=textwrap.dedent(before_exec),
        )

    def run_command(self, where: Path, *command: str, before_exec: str = "") -> str:
        """Run a command in a cgroup and return what it prints; fails when it does."""
        process = self.start(where, *command, before_exec=before_exec)
        said, _ = process.communicate(timeout=PATIENCE_SECONDS)
        assert process.returncode == 0, f"{command} ended with {process.returncode}:\n{said}"
        return said

    def remove(self) -> None:
        """End whatever runs here and remove the directories."""
        for process in self._started:
            process.kill()
            process.communicate()
        if not self.root.exists():
            return
        paths = sorted((p for p in self.root.rglob("*") if p.is_dir()), reverse=True)
        for path in (*paths, self.root):
            with contextlib.suppress(OSError):
                (path / "cgroup.kill").write_text("1")
            _remove_when_empty(path)


def _remove_when_empty(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            path.rmdir()
            return
        except FileNotFoundError:
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def cgroup2_mount() -> Path:
    """Return where cgroup v2 is; skip, with the doctor's reason, where sensing cannot work."""
    if os.geteuid() != 0:
        pytest.skip("doctor line `ebpf`: loading eBPF programs needs root")
    mount = find_cgroup2(Path("/proc/self/mountinfo").read_text())
    if mount is None:
        pytest.skip("doctor line `cgroup`: cgroup v2 is not mounted")
    if not SENSOR.exists():
        pytest.skip("doctor line `ebpf`: sandfleet-sensor is not built (make -C native/bpf)")
    return Path(mount)


@dataclass
class Heard:
    """Facts that came over the bus."""

    facts: list[Fact] = field(default_factory=list[Fact])
    batches: list[FactBatch] = field(default_factory=list[FactBatch])
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    async def hear(self, batch: FactBatch) -> None:
        """Take a batch."""
        self.batches.append(batch)
        self.facts += batch.facts
        self._news.set()

    async def until(self, wanted: Callable[[Fact], bool]) -> Fact:
        """Return the first fact that is wanted, as soon as it has come."""
        await self.until_all(lambda facts: any(wanted(fact) for fact in facts))
        return next(fact for fact in self.facts if wanted(fact))

    async def until_all(self, enough: Callable[[list[Fact]], bool]) -> None:
        """Wait until the facts that have come are enough."""
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                while not enough(self.facts):
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            kinds = [(f.kind, f.program, f.path, f.count) for f in self.facts][-30:]
            pytest.fail(f"it did not come; what came last: {kinds}")

    def of(self, sandbox_id: str, kind: str | None = None) -> list[Fact]:
        """Return the facts about one sandbox."""
        return [
            f for f in self.facts if f.sandbox_id == sandbox_id and (kind is None or f.kind == kind)
        ]


class Running:
    """`python -m sandfleet_security <role>`, running."""

    def __init__(
        self, role: str, process: asyncio.subprocess.Process, port: int, log: Path
    ) -> None:
        self.role = role
        self.process = process
        self.port = port
        self.log = log

    def get(self, path: str) -> tuple[int, str]:
        """Return status and body of a page of its metrics endpoint."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as page:
                return page.status, page.read().decode()
        except urllib.error.HTTPError as problem:
            with problem:
                return problem.code, problem.read().decode()
        except OSError:
            return 0, ""

    async def health(self) -> tuple[int, dict[str, Any]]:
        """Return what /readyz says."""
        status, body = await asyncio.to_thread(self.get, "/readyz")
        return status, json.loads(body) if body else {}

    async def metric(self, line: str) -> float:
        """Return the value of a metric by its name and labels."""
        _, body = await asyncio.to_thread(self.get, "/metrics")
        found = [text for text in body.splitlines() if text.startswith(f"{line} ")]
        return float(found[0].rpartition(" ")[2]) if found else 0.0

    async def until(self, what: Callable[[int, dict[str, Any]], bool]) -> None:
        """Wait until its health is as wanted."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not what(*await self.health()):
            if time.monotonic() > deadline or self.process.returncode is not None:
                said = self.log.read_text()[-3000:]
                pytest.fail(f"{self.role}: {await self.health()}\n{said}")
            await asyncio.sleep(0.05)

    async def until_metric(self, line: str, least: float = 1) -> None:
        """Wait until a metric is at least so much."""
        async with asyncio.timeout(PATIENCE_SECONDS):
            while await self.metric(line) < least:
                await asyncio.sleep(0.05)

    def children(self) -> list[int]:
        """Return the pids of its child processes."""
        found = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in found.read_text().split()]


@asynccontextmanager
async def running(
    role: str, servers: Servers, log: Path, *prefix: str, **settings: str
) -> AsyncGenerator[Running]:
    """Run a role as a process of its own until the block ends; it is ready when this yields."""
    port = free_port()
    with log.open("ab") as out:
        process = await asyncio.create_subprocess_exec(
            *prefix,
            sys.executable,
            "-m",
            "sandfleet_security",
            role,
            env=servers.environment(role, metrics_port=str(port), **settings),
            stdout=out,
            stderr=out,
        )
    service = Running(role, process, port, log)
    try:
        await service.until(lambda status, _: status == 200)
        yield service
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
            pytest.fail(f"{role} did not stop; its log is {log}")
