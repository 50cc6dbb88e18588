"""A real gateway on a free loopback port, in this process, with a peer for its schedulers."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr
from servers import Servers, free_port
from websockets.asyncio.client import ClientConnection, connect

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus
from sandfleet_common.errors import NotFound, from_code
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.lifecycle import Health, Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.routes import WS_CHANNEL
from sandfleet_common.states import State
from sandfleet_common.streams import Flag, Kind, StreamFrame
from sandfleet_gateway.config import GatewaySettings
from sandfleet_gateway.service import Gateway

NODE = "n1"
KEY = "sfk-a-key-of-the-tests"
OTHER_KEY = "sfk-another-key-of-the-tests"


def failure(response: httpx.Response, status: int, code: str) -> str:
    """Check an error's status and code, and return its sentence."""
    assert response.status_code == status, response.text
    body = m.Failure.decode(response.content)
    assert body.code == code
    return body.message


async def until(fact: Callable[[], Any], seconds: float = 15) -> None:
    """Wait until `fact`, which may be a coroutine function, holds."""
    async with asyncio.timeout(seconds):
        while True:
            found = fact()
            if await found if inspect.isawaitable(found) else found:
                return
            await asyncio.sleep(0.02)


def key_line(name: str, key: str) -> str:
    """Return a line of a key file."""
    return f"{name}:{hashlib.sha256(key.encode()).hexdigest()}\n"


@dataclass(slots=True)
class Running:
    """A gateway that serves."""

    gateway: Gateway
    health: Health
    keys: Path
    metrics_port: int

    @property
    def url(self) -> str:
        """Where it is."""
        return f"http://127.0.0.1:{self.gateway.port}"

    async def metric(self, name: str) -> float:
        """Return a metric's value now, of all labels together."""
        async with httpx.AsyncClient() as http:
            page = (await http.get(f"http://127.0.0.1:{self.metrics_port}/metrics")).text
        lines = [line.rsplit(" ", 1) for line in page.splitlines()]
        return sum(float(v) for k, v in lines if k.partition("{")[0] == f"sandfleet_gateway_{name}")

    def client(self, key: str | None = KEY, **options: Any) -> httpx.AsyncClient:
        """Return a client with an API key."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        return httpx.AsyncClient(base_url=self.url, headers=headers, timeout=20, **options)

    def session(self, sandbox_id: str, key: str | None = KEY, **options: Any) -> connect:
        """Return a WebSocket session, to enter."""
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        options.setdefault("additional_headers", headers)
        options.setdefault("compression", None)
        return connect(f"ws{self.url[4:]}/v1/sandboxes/{sandbox_id}/session", **options)


@asynccontextmanager
async def running_gateway(
    servers: Servers, directory: Path, log: Logger, **settings: Any
) -> AsyncGenerator[Running]:
    """Run a gateway until the block ends, then drain it."""
    keys = directory / "keys"
    if not keys.exists():
        keys.write_text(key_line("tester", KEY) + key_line("other", OTHER_KEY))
    values: dict[str, Any] = {
        "port": 0,
        "nats_servers": servers.nats.url,
        "nats_password": SecretStr(servers.nats.passwords["gateway"]),
        "api_keys_file": keys,
        "drain_seconds": 2,
        "metrics_port": free_port(),
    }
    health = Health()
    chosen = GatewaySettings(**(values | settings))
    gateway = Gateway(chosen, log, health)
    is_ready = asyncio.Event()

    def ready() -> None:
        health.is_ready = True
        is_ready.set()

    async with Tasks(log) as tasks:
        running = tasks.start(gateway.run(ready), "gateway")
        waiting = tasks.start(is_ready.wait(), "ready")
        await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            running.result()
        yield Running(gateway, health, keys, chosen.metrics_port)
        await gateway.drain()
        await running


class Talk:
    """A client's side of a session, one message at a time."""

    def __init__(self, socket: ClientConnection) -> None:
        self.socket = socket

    async def command(self, kind: str, channel: int, **body: Any) -> None:
        await self.socket.send(json.dumps({"type": kind, "channel": channel, "body": body}))

    async def frame(
        self, channel: int, kind: Kind, position: int = 0, data: bytes = b"", flags: int = 0
    ) -> None:
        frame = StreamFrame(kind, position, data, Flag(flags))
        await self.socket.send(WS_CHANNEL.pack(channel) + frame.encode())

    async def next(self) -> tuple[int, StreamFrame | m.ExecState | m.Failure]:
        message = await self.socket.recv()
        if isinstance(message, bytes):
            return WS_CHANNEL.unpack_from(message)[0], StreamFrame.decode(message[4:])
        text = json.loads(message)
        body = json.dumps(text["body"]).encode()
        kind = m.ExecState if text["type"] == "state" else m.Failure
        return text["channel"], kind.decode(body)

    async def state(self, channel: int) -> m.ExecState:
        got, answer = await self.next()
        assert got == channel
        assert isinstance(answer, m.ExecState), answer
        return answer

    async def error(self, channel: int) -> m.Failure:
        while True:
            got, answer = await self.next()
            if isinstance(answer, m.Failure):
                assert got == channel
                return answer

    async def output(
        self, channel: int, start: int = 0, *, until: int | None = None, takes: bool = True
    ) -> bytes:
        """Read output, giving credit, until the end or until there is so much."""
        data = bytearray()
        while until is None or start + len(data) < until:
            got, frame = await self.next()
            if got != channel or not isinstance(frame, StreamFrame):
                assert got == channel, f"channel {got}: {frame}"
                continue
            if frame.kind is Kind.END:
                return bytes(data)
            if frame.kind is Kind.GONE:
                failure = m.Failure.decode(frame.payload)
                raise from_code(failure.code, failure.message)
            if frame.kind is Kind.DATA:
                assert frame.position == start + len(data), "a byte came twice or not at all"
                data += frame.payload
                if takes:
                    await self.frame(channel, Kind.TAKEN, start + len(data))
        return bytes(data)


@dataclass(slots=True)
class ScriptedScheduler:
    """Serves a scheduler's subjects from records that a test writes."""

    bus: Bus
    records: dict[str, m.SandboxInfo] = field(default_factory=dict[str, m.SandboxInfo])
    by_key: dict[str, str] = field(default_factory=dict[str, str])
    jobs: dict[str, m.JobInfo] = field(default_factory=dict[str, m.JobInfo])
    slots: dict[str, dict[int, m.SandboxInfo | m.SlotFailure]] = field(
        default_factory=dict[str, dict[int, m.SandboxInfo | m.SlotFailure]]
    )
    asked: list[m.Message] = field(default_factory=list[m.Message])
    before_page: Callable[[m.JobSlots], None] = lambda _: None
    """Called before each page of a job's slots is read."""

    @classmethod
    @asynccontextmanager
    async def serve(cls, bus: Bus) -> AsyncGenerator[ScriptedScheduler]:
        """Serve until the block ends."""
        it = cls(bus)
        subscriptions = [
            await bus.serve(s.SANDBOX_CREATE, it._create),
            await bus.serve(s.SANDBOX_GET, it._get),
            await bus.serve(s.SANDBOX_LIST, it._list),
            await bus.serve(s.JOB_GET, it._job),
            await bus.serve(s.JOB_SLOTS, it._slots),
        ]
        await bus.flush()
        try:
            yield it
        finally:
            for subscription in subscriptions:
                await subscription.close()

    def record(self, node: str, **values: Any) -> m.SandboxInfo:
        """Put a sandbox on record."""
        fields: dict[str, Any] = {
            "sandbox_id": new_sandbox_id(node),
            "node": node,
            "state": State.RUNNING,
            "spec": m.SandboxSpec(),
            "created_at": time.time(),
        }
        info = m.SandboxInfo(**(fields | values))
        self.records[info.sandbox_id] = info
        return info

    async def _create(self, body: m.SandboxCreate) -> m.SandboxInfo:
        self.asked.append(body)
        if body.key in self.by_key:
            return self.records[self.by_key[body.key]]
        info = self.record("n1", spec=body.spec)
        if body.key is not None:
            self.by_key[body.key] = info.sandbox_id
        return info

    async def _get(self, body: m.SandboxGet) -> m.SandboxInfo:
        self.asked.append(body)
        if body.sandbox_id not in self.records:
            raise NotFound(f"{body.sandbox_id} is not on record")
        return self.records[body.sandbox_id]

    async def _list(self, body: m.SandboxList) -> m.SandboxPage:
        self.asked.append(body)
        return m.SandboxPage(sandboxes=list(self.records.values())[: body.limit])

    async def _job(self, body: m.JobGet) -> m.JobInfo:
        if body.job_id not in self.jobs:
            raise NotFound(f"job {body.job_id} is not on record")
        return self.jobs[body.job_id]

    async def _slots(self, body: m.JobSlots) -> m.JobSlotsPage:
        self.asked.append(body)
        self.before_page(body)
        job, found = await self._job(m.JobGet(job_id=body.job_id)), self.slots[body.job_id]
        chosen = [found[k] for k in sorted(found) if k >= body.from_slot][:2]
        last = max((_slot(item) for item in chosen), default=-1)
        more = any(k > last for k in found) and bool(chosen)
        return m.JobSlotsPage(
            job=job,
            sandboxes=[item for item in chosen if isinstance(item, m.SandboxInfo)],
            failures=[item for item in chosen if isinstance(item, m.SlotFailure)],
            next_slot=last + 1 if more else None,
        )


def _slot(item: m.SandboxInfo | m.SlotFailure) -> int:
    assert item.slot is not None
    return item.slot


__all__ = [
    "KEY",
    "NODE",
    "OTHER_KEY",
    "Running",
    "ScriptedScheduler",
    "Talk",
    "failure",
    "key_line",
    "running_gateway",
    "until",
]
