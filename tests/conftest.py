"""Fixtures for every tier: real servers, connections to them, and a guard against leaks."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack
from pathlib import Path

import psutil
import pytest
import pytest_asyncio
from servers import Connect, Servers

from sandfleet_common.bus import Bus
from sandfleet_common.logs import Level, Logger
from sandfleet_common.store import Store


@pytest.fixture
def log() -> Logger:
    """Return a logger whose lines pytest shows when the test fails."""
    return Logger("test", level=Level.DEBUG)


@pytest.fixture(scope="session")
def running_servers(tmp_path_factory: pytest.TempPathFactory) -> Generator[Servers]:
    """Start nats-server and redis-server once; skips, with the reason, when one is missing."""
    servers = Servers(tmp_path_factory.mktemp("servers"))
    try:
        servers.start()
        yield servers
    finally:
        servers.kill()


@pytest_asyncio.fixture
async def servers(running_servers: Servers) -> AsyncGenerator[Servers]:
    """Return both servers, running and empty. A test may restart, kill or freeze them."""
    running_servers.start()
    await running_servers.nats.clear()
    running_servers.redis.clear()
    yield running_servers
    # A test may have left one frozen or down; the next one finds both running.
    for server in (running_servers.nats, running_servers.redis):
        if server.is_running:
            server.thaw()
    running_servers.start()


@pytest_asyncio.fixture
async def connect(servers: Servers, log: Logger) -> AsyncGenerator[Connect]:
    """Return a function that connects to NATS as a user; all are closed after the test."""
    async with AsyncExitStack() as stack:

        async def open_bus(user: str, name: str | None = None) -> Bus:
            settings = servers.nats.settings(user, name)
            return await stack.enter_async_context(Bus.connect(settings, log))

        yield open_bus


@pytest_asyncio.fixture
async def store(servers: Servers, log: Logger) -> AsyncGenerator[Store]:
    """Return an empty store, as the scheduler sees it."""
    async with Store.connect(servers.redis.settings("scheduler"), log) as store:
        yield store


@pytest.fixture
def no_leaks() -> Generator[None]:
    """Fail a test that leaves child processes or open descriptors behind.

    Ask for it before other fixtures: what they open they close before it looks.
    """
    me = psutil.Process()
    children = {child.pid for child in me.children(recursive=True)}
    descriptors = _descriptors()
    yield
    left = [c for c in me.children(recursive=True) if c.pid not in children]
    assert not left, f"processes left behind: {left}"
    opened = {fd: where for fd, where in _descriptors().items() if descriptors.get(fd) != where}
    assert not opened, f"descriptors left open: {opened}"


def _descriptors() -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in Path("/proc/self/fd").iterdir():
        try:
            found[int(entry.name)] = os.readlink(entry)  # noqa: PTH115 - a pipe is no path
        except OSError:
            continue
    return found
