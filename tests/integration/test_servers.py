"""The fixtures themselves: servers that can be broken and mended."""

from __future__ import annotations

import pytest
from servers import Connect, Servers

from sandfleet_common.store import Store

pytestmark = pytest.mark.integration


async def test_servers_run_and_take_every_user(servers: Servers, connect: Connect) -> None:
    for user in servers.nats.passwords:
        assert (await connect(user)).is_connected


async def test_a_restarted_server_keeps_its_port(servers: Servers, store: Store) -> None:
    before = (servers.nats.port, servers.redis.port)
    servers.nats.restart()
    servers.redis.restart()
    assert (servers.nats.port, servers.redis.port) == before
    await store.ping()
