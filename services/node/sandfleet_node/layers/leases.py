"""Who needs layers just now: nodes whose sandboxes stand on them, publishers about to name them.

A lease is a record of digests with a time; one that was not renewed for LEASE_SECONDS is over.
Publishers and the collector agree like this, whatever dies in between: the publisher writes its
lease, then looks at what is condemned; the collector writes what it condemns, then looks at the
leases. So one of them sees the other before a layer is gone.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import asynccontextmanager

from pydantic import ValidationError

from sandfleet_common.errors import Busy, Unreachable
from sandfleet_common.ids import new_ulid
from sandfleet_common.messages import Message

from .store import Store

KIND = "leases"
LEASE_SECONDS = 3600.0
"""A node that cannot reach the store for longer must fear for layers that nobody names."""
RENEW_SECONDS = 30.0
CONDEMNED_SECONDS = 120.0
"""A collector renews what it condemns; one that did not for so long has died."""
_COLLECTING = "collecting"
_WAIT_SECONDS = 10.0
_LOOK_SECONDS = 0.2


class Lease(Message):
    """Layers that somebody needs, or that a collector is about to remove."""

    at: float
    """Seconds since 1970."""
    digests: list[str]


class Leases:
    """Reads and writes leases."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def keep(self, node: str, digests: Iterable[str]) -> None:
        """Say what the sandboxes of a node stand on.

        Raises:
            Unreachable: the store does not answer.
        """
        await self._write(f"node.{node}", digests)

    @asynccontextmanager
    async def held(self, digests: Collection[str]) -> AsyncGenerator[None]:
        """Keep layers from being removed while the block runs.

        Raises:
            Busy: a collector is removing one of them.
            Unreachable: the store does not answer.
        """
        name = f"pin.{new_ulid()}"
        await self._write(name, digests)
        try:
            await self._until_spared(frozenset(digests))
            yield
        finally:
            with contextlib.suppress(Unreachable, OSError):  # then it ends by itself
                await self._store.remove_record(KIND, name)

    async def _until_spared(self, digests: frozenset[str]) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        while True:
            condemned = await self._read(_COLLECTING)
            if condemned is None or time.time() - condemned.at > CONDEMNED_SECONDS:
                return
            if digests.isdisjoint(condemned.digests):
                return
            if time.monotonic() > deadline:
                raise Busy("layers of it are being removed", retry_after_seconds=10)
            await asyncio.sleep(_LOOK_SECONDS)

    async def live(self, now: float) -> set[str]:
        """Return what anybody needs; leases that are over are removed.

        Raises:
            Unreachable: the store does not answer.
        """
        found: set[str] = set()
        for name in await self._store.names(KIND):
            lease = None if name == _COLLECTING else await self._read(name)
            if lease is None:
                continue
            if now - lease.at > LEASE_SECONDS:
                await self._store.remove_record(KIND, name)
            else:
                found.update(lease.digests)
        return found

    @asynccontextmanager
    async def condemned(self, digests: Iterable[str]) -> AsyncGenerator[None]:
        """Be the one collector, and let publishers know what it is about to remove.

        Raises:
            Busy: another collector is at work.
            Unreachable: the store does not answer.
        """
        lease = Lease(at=time.time(), digests=sorted(digests))
        data = lease.encode()
        if not await self._store.put_record(KIND, _COLLECTING, data, new=True):
            other = await self._read(_COLLECTING)
            if other is not None and time.time() - other.at <= CONDEMNED_SECONDS:
                raise Busy("another collection is under way", retry_after_seconds=10)
            await self._store.put_record(KIND, _COLLECTING, data)
        try:
            yield
        finally:
            with contextlib.suppress(Unreachable, OSError):
                await self._store.remove_record(KIND, _COLLECTING)

    async def renew(self, digests: Iterable[str]) -> None:
        """Say that the collector is still alive, and what it has not removed yet.

        Raises:
            Unreachable: the store does not answer.
        """
        await self._write(_COLLECTING, digests)

    async def _write(self, name: str, digests: Iterable[str]) -> None:
        lease = Lease(at=time.time(), digests=sorted(digests))
        await self._store.put_record(KIND, name, lease.encode())

    async def _read(self, name: str) -> Lease | None:
        content = await self._store.record(KIND, name)
        if content is None:
            return None
        try:
            return Lease.model_validate_json(content)
        except ValidationError:
            return None
