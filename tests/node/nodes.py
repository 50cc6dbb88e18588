"""Nodes for tests: the real service with the real launcher, on a state directory of its own."""

from __future__ import annotations

import asyncio
import os
import secrets
import shutil
import signal
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from layering import add_tree, publish
from servers import Servers

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.lifecycle import Health, Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.store import Store
from sandfleet_node.clean import clean
from sandfleet_node.config import NodeSettings
from sandfleet_node.layers import DirectoryStore
from sandfleet_node.metrics import NodeMetrics
from sandfleet_node.places import Places
from sandfleet_node.service import NodeService

ENVIRONMENT = "tiny"
_TOOLS = (
    "sh cat echo sleep ls true false head tail wc dd seq env id pwd yes kill mkdir rm touch "
    "printf od tr sort ps stat grep"
)


def build_tiny_layer(root: Path) -> None:
    """Publish an environment of one static busybox; skip the test when there is none."""
    busybox = shutil.which("busybox")
    if busybox is None or shutil.which("mkfs.erofs") is None:
        pytest.skip("needs busybox and mkfs.erofs: apt-get install busybox-static erofs-utils")
    store = DirectoryStore(root)
    store.make()
    tree = store.temporary("tiny")
    for name in ("bin", "etc", "root", "tmp", "proc", "sys", "dev", "home/user"):
        (tree / name).mkdir(parents=True)
    shutil.copy(busybox, tree / "bin" / "busybox")
    for tool in _TOOLS.split():
        (tree / "bin" / tool).symlink_to("busybox")
    (tree / "tmp").chmod(0o1777)
    (tree / "etc" / "passwd").write_text(
        "root:x:0:0:root:/root:/bin/sh\nuser:x:1000:1000:user:/home/user:/bin/sh\n"
    )
    (tree / "etc" / "group").write_text("root:x:0:\nuser:x:1000:\n")
    os.chown(tree / "home" / "user", 1000, 1000)
    publish(store, ENVIRONMENT, "1", [add_tree(store, tree)], env={"FROM_ENV": "yes"})


class RunningNode:
    """One node service in this process, and a trainer that talks to it."""

    def __init__(self, name: str, service: NodeService | None, bus: Bus) -> None:
        self.name = name
        self.service = service
        self.bus = bus

    @property
    def node(self) -> Any:
        """The node behind the service."""
        assert self.service is not None and self.service.node is not None
        return self.service.node

    async def ask(self, subject: s.Subject[Any, Any], body: Any, within: float = 25) -> Any:
        """Ask this node."""
        return await self.bus.ask(subject, body, within=within, node=self.name)

    def item(self, deadline_seconds: float = 20, **spec: Any) -> m.NodeCreateItem:
        """Return an order for one sandbox."""
        spec.setdefault("environment", ENVIRONMENT)
        now = time.time()
        return m.NodeCreateItem(
            sandbox_id=new_sandbox_id(self.name),
            spec=m.SandboxSpec(**spec),
            requested_at=now,
            deadline_at=now + deadline_seconds,
        )

    async def order(self, *items: m.NodeCreateItem) -> list[m.Outcome]:
        """Have a batch created."""
        made = await self.ask(s.NODE_CREATE, m.NodeCreate(items=list(items)))
        return made.outcomes

    async def create(self, **spec: Any) -> str:
        """Create a sandbox and return its id."""
        outcome = (await self.order(self.item(**spec)))[0]
        assert outcome.status == "ready", outcome
        return outcome.sandbox_id

    async def run(self, sandbox_id: str, *argv: str, **fields: Any) -> m.ExecState:
        """Run a command and wait for its end."""
        fields.setdefault("wait_seconds", 20)
        body = m.ExecStart(sandbox_id=sandbox_id, argv=list(argv), **fields)
        return await self.ask(s.EXEC_START, body)

    async def wait(self, sandbox_id: str, exec_id: str, position: int = 0) -> m.ExecState:
        """Wait for a command's end."""
        body = m.ExecWait(
            sandbox_id=sandbox_id, exec_id=exec_id, position=position, wait_seconds=20
        )
        return await self.ask(s.EXEC_WAIT, body)

    async def stop(self, sandbox_id: str) -> m.SandboxInfo:
        """Stop a sandbox."""
        return await self.ask(s.STOP, m.SandboxStop(sandbox_id=sandbox_id))

    async def until_gone(self, sandbox_id: str) -> m.SandboxInfo:
        """Wait until a sandbox has ended, and return how."""
        for _ in range(2000):
            if self.node.sandboxes.find(sandbox_id) is None:
                break
            await asyncio.sleep(0.01)
        return self.node.sandboxes.ended(sandbox_id)


def output(state: m.ExecState, stream: str | None = None) -> bytes:
    """Return a command's output."""
    return b"".join(c.data for c in state.output if stream in (None, c.stream))


class NodeProcess:
    """One node service in a process of its own, which can be killed."""

    def __init__(self, house: NodeHouse, **settings: str) -> None:
        self._house = house
        self._settings = settings
        self._process: asyncio.subprocess.Process | None = None

    async def start(self) -> None:
        """Start it and wait until it is ready."""
        house = self._house
        environment = house.servers.environment(
            "node",
            name=house.name,
            state_dir=str(house.state_dir),
            disk_floor_bytes="0",
            **self._settings,
        )
        environment.pop("PYTHONTRACEMALLOC", None)  # it makes a start take half a minute
        path = house.state_dir / "node.log"
        with path.open("ab") as log:
            began_at = log.tell()
            self._process = await asyncio.create_subprocess_exec(
                sys.executable, "-m", "sandfleet_node", env=environment, stderr=log
            )
        for _ in range(1000):
            said = path.read_bytes()[began_at:]
            if b'"service.ready"' in said:
                return
            if self._process.returncode is not None:
                break
            await asyncio.sleep(0.02)
        pytest.fail(f"the node did not start: {path.read_text()}")

    async def end(self, number: signal.Signals) -> None:
        """Send a signal and wait until it has gone."""
        if self._process is not None:
            self._process.send_signal(number)
            await self._process.wait()
            self._process = None

    async def kill(self) -> None:
        """Kill it without a word."""
        await self.end(signal.SIGKILL)


class NodeHouse:
    """Where a node lives: start it, stop it, start it again."""

    def __init__(self, servers: Servers, state_dir: Path, log: Logger) -> None:
        self.servers = servers
        self.state_dir = state_dir
        self.name = f"t{secrets.token_hex(4)}"
        self.log = log

    def settings(self, **values: Any) -> NodeSettings:
        """Return the node's settings."""
        values.setdefault("disk_floor_bytes", 0)
        return NodeSettings(name=self.name, state_dir=self.state_dir, **values)

    @asynccontextmanager
    async def running(self, **values: Any) -> AsyncGenerator[RunningNode]:
        """Run the service in this process. Leaving is like a tidy stop: sandboxes stay."""
        settings = self.settings(**values)
        nats, redis = self.servers.nats, self.servers.redis
        async with (
            Bus.connect(nats.settings("node"), self.log) as bus,
            Bus.connect(nats.settings("admin"), self.log) as admin,
            Store.connect(redis.settings("node"), self.log) as store,
            Tasks(self.log) as tasks,
        ):
            service = NodeService(settings, bus, store, NodeMetrics(), Health(), self.log)
            ready = asyncio.Event()
            running = tasks.start(service.run(ready.set), "node")
            waiting = tasks.start(ready.wait(), "ready")
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
            yield RunningNode(self.name, service, admin)
            await service.drain()

    @asynccontextmanager
    async def process(self, **settings: str) -> AsyncGenerator[tuple[NodeProcess, RunningNode]]:
        """Run the service in a process; the second value talks to whichever runs."""
        process = NodeProcess(self, **settings)
        async with Bus.connect(self.servers.nats.settings("admin"), self.log) as admin:
            try:
                await process.start()
                yield process, RunningNode(self.name, None, admin)
            finally:
                await process.kill()

    def clean(self) -> None:
        """Remove everything of the node."""
        clean(Places(self.state_dir, self.name), self.name, self.log)
