"""A gateway in front of scripted nodes and schedulers, on the real bus."""

from __future__ import annotations

import io
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from running_gateway import NODE, Running, ScriptedScheduler, running_gateway
from scripted_commands import ScriptedNode
from servers import Connect, Servers

from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.logs import Logger


@pytest_asyncio.fixture
async def scheduler(connect: Connect) -> AsyncGenerator[ScriptedScheduler]:
    """Return the peer that serves a scheduler's subjects."""
    async with ScriptedScheduler.serve(await connect("scheduler")) as scheduler:
        yield scheduler


@pytest_asyncio.fixture
async def node(connect: Connect) -> AsyncGenerator[ScriptedNode]:
    """Return the peer that serves a node's subjects."""
    async with ScriptedNode.serve(await connect("node"), NODE) as node:
        yield node


@pytest.fixture
def lines() -> io.StringIO:
    """Return what the gateway logs."""
    return io.StringIO()


@pytest_asyncio.fixture
async def gateway(
    servers: Servers, tmp_path: Path, lines: io.StringIO, scheduler: ScriptedScheduler
) -> AsyncGenerator[Running]:
    """Return a gateway with small limits."""
    options: dict[str, Any] = {"quiet_seconds": 0.5, "channels_per_socket": 4, "sockets_per_key": 3}
    log = Logger("gateway", out=lines)
    async with running_gateway(servers, tmp_path, log, **options) as gateway:
        yield gateway


@pytest_asyncio.fixture
async def http(gateway: Running) -> AsyncGenerator[httpx.AsyncClient]:
    """Return a client of the gateway, with a key."""
    async with gateway.client() as client:
        yield client


@pytest.fixture
def sandbox() -> str:
    """Return the id of a sandbox on the scripted node."""
    return new_sandbox_id(NODE)
