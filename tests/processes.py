"""Scheduler processes and scripted nodes for one test."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TypeVar

from redis import Redis
from scripted import ScriptedNode, scripted_node
from servers import Servers

from sandfleet_common.bus import Bus
from sandfleet_common.logs import Logger
from sandfleet_common.store import Store

READY_SECONDS = 20.0
ResultT = TypeVar("ResultT")


class SchedulerProcess:
    """One `python -m sandfleet_scheduler`."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._ready = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    @classmethod
    async def start(cls, servers: Servers, **settings: str) -> SchedulerProcess:
        """Start one and wait until it takes requests."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "sandfleet_scheduler",
            env=servers.environment("scheduler", **settings),
            stdin=DEVNULL,
            stdout=DEVNULL,
            stderr=PIPE,
        )
        scheduler = cls(process)
        async with asyncio.timeout(READY_SECONDS):
            await scheduler._ready.wait()
        assert process.returncode is None, "\n".join(scheduler.lines)
        return scheduler

    async def kill(self) -> None:
        """End it without a word."""
        await self._end(signal.SIGKILL)

    async def stop(self) -> int:
        """End it in good order and return its exit status."""
        await self._end(signal.SIGTERM)
        return self.process.returncode or 0

    async def _end(self, number: signal.Signals) -> None:
        if self.process.returncode is None:
            self.process.send_signal(number)
        try:
            async with asyncio.timeout(20):
                await self.process.wait()
        except TimeoutError:
            self.process.kill()
            await self.process.wait()
        await self._reading

    async def _read(self) -> None:
        assert self.process.stderr is not None
        async for raw in self.process.stderr:
            line = raw.decode()
            self.lines.append(line)
            sys.stderr.write(line)
            if json.loads(line)["event"] == "service.ready" if line[0] == "{" else False:
                self._ready.set()
        self._ready.set()


class Fleet:
    """Schedulers, nodes, a trainer, and the servers they use."""

    def __init__(self, servers: Servers, store: Store, stack: AsyncExitStack, log: Logger) -> None:
        self.servers = servers
        self.store = store
        self.schedulers: list[SchedulerProcess] = []
        self.nodes: list[ScriptedNode] = []
        self.trainer: Bus
        self._stack = stack
        self._log = log

    async def bus(self, user: str) -> Bus:
        """Connect as a user."""
        settings = self.servers.nats.settings(user)
        return await self._stack.enter_async_context(Bus.connect(settings, self._log))

    async def scheduler(self, **settings: str) -> SchedulerProcess:
        """Start a scheduler process."""
        scheduler = await SchedulerProcess.start(self.servers, **settings)
        self._stack.push_async_callback(scheduler.kill)
        self.schedulers.append(scheduler)
        return scheduler

    async def node(self, name: str) -> ScriptedNode:
        """Start a node; the schedulers that run have heard it."""
        bus = await self.bus("node")
        store = await self._stack.enter_async_context(
            Store.connect(self.servers.redis.settings("node"), self._log)
        )
        node = await self._stack.enter_async_context(scripted_node(name, bus, store, self._log))
        self.nodes.append(node)
        return node

    def expire_beat(self, name: str) -> None:
        """Let a node's heartbeat in Redis run out at once."""
        with Redis.from_url(self.servers.redis.url("admin")) as client:
            client.delete(f"sf:node:{name}")

    def forget_job(self, job_id: str) -> None:
        """Let the record of a job run out at once."""
        with Redis.from_url(self.servers.redis.url("admin")) as client:
            client.delete(f"sf:job:{job_id}", f"sf:job:{job_id}:slots")

    async def keep_in_redis(self, node: ScriptedNode) -> None:
        """Let a node be heard by Redis only."""
        for beat in await node.store.nodes():
            await node.store.beat(beat)


async def until(check: Callable[[], Awaitable[ResultT | None]], within: float = 20) -> ResultT:
    """Look again and again until `check` returns something, and return that."""
    async with asyncio.timeout(within):
        found = await check()
        while not found:
            await asyncio.sleep(0.02)
            found = await check()
        return found


@asynccontextmanager
async def running_fleet(servers: Servers, log: Logger) -> AsyncGenerator[Fleet]:
    """Hold schedulers and nodes of one test; all end with the block."""
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(
            Store.connect(servers.redis.settings("scheduler"), log)
        )
        fleet = Fleet(servers, store, stack, log)
        fleet.trainer = await fleet.bus("trainer")
        yield fleet
