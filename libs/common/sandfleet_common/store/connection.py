"""The store as a whole, and how to open one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff

from sandfleet_common.logs import Logger

from .alerts import AlertRecords
from .nodes import NodeRecords
from .sandboxes import SandboxRecords

_TIMEOUT_SECONDS = 3.0
_CONNECTIONS = 64


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where Redis is."""

    url: str
    """redis://[:password@]host:port/db or unix://path"""


class Store(SandboxRecords, NodeRecords, AlertRecords):
    """Live state. Open one with `Store.connect`.

    Every method raises Unreachable when Redis is down. A call may have taken effect
    then; all but `add_alerts` can be made again.
    """

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: StoreSettings, log: Logger) -> AsyncGenerator[Store]:
        """Open a pool of connections.

        Raises:
            Unreachable: Redis does not answer.
        """
        pool = aioredis.BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            settings.url,
            max_connections=_CONNECTIONS,
            timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), 2),
            health_check_interval=15,
            decode_responses=True,
        )
        client = aioredis.Redis.from_pool(pool)
        store = cls(client)
        try:
            await store.ping()
            yield store
        finally:
            await client.aclose()
            log.debug("store.closed")
