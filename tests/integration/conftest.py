"""Fixtures of the integration tests."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest_asyncio
from processes import Fleet, running_fleet
from servers import Servers

from sandfleet_common.logs import Logger


@pytest_asyncio.fixture
async def make_fleet(servers: Servers, log: Logger) -> AsyncGenerator[Fleet]:
    """Return a fleet without schedulers and nodes; ask it for them."""
    async with running_fleet(servers, log) as fleet:
        yield fleet
