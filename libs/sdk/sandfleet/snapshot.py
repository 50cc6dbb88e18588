"""Snapshots: what a sandbox has written, kept, to create others from.

snapshot = await sandbox.snapshot(name="before-tests")
other = await client.create(SandboxSpec(environment=snapshot.id))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import SandfleetError, TimedOut

from .calls import CALL_SECONDS, call
from .connection import Connection

HOLD_SECONDS = 30.0
READY_SECONDS = 600.0
"""How long `wait` waits when it is not told."""
LOOKS_SECONDS = (0.05, 2.0)
"""Between two looks at one that is not over yet: at first, and at most."""
PAGE_SNAPSHOTS = 500
_OVER = (m.SnapshotState.READY, m.SnapshotState.FAILED)


class Kept(Protocol):
    """A snapshot, as either side of the SDK has it."""

    @property
    def id(self) -> str:
        """Its name."""
        ...


class AsyncSnapshot:
    """A snapshot: a job until it is ready, then files that sandboxes can begin with."""

    def __init__(self, connection: Connection, info: m.SnapshotInfo) -> None:
        self._connection = connection
        self._info = info

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._info.state}>"

    @property
    def id(self) -> str:
        """Its name, which `SandboxSpec.environment` takes."""
        return self._info.snapshot_id

    @property
    def info_now(self) -> m.SnapshotInfo:
        """What was known of it when it was last asked; `info()` asks."""
        return self._info

    async def info(self) -> m.SnapshotInfo:
        """Ask how far it is.

        Raises:
            NotFound: it was removed.
        """
        body = m.SnapshotGet(snapshot_id=self.id)
        self._info = await call(self._connection.transport, s.SNAPSHOT_GET, body)
        return self._info

    @property
    def state(self) -> m.SnapshotState:
        """How far it was when it was last asked."""
        return self._info.state

    @property
    def layer(self) -> m.Layer | None:
        """What its sandbox had written; None until that is packed."""
        return self._info.layer

    async def wait(self, *, deadline: float = READY_SECONDS) -> m.SnapshotInfo:
        """Wait until it is ready.

        Raises:
            SandfleetError: it failed; says in which phase and why.
            NotFound: it was removed.
            TimedOut: it is not over yet; it goes on, and may be waited for again.
        """
        pause, longest = LOOKS_SECONDS
        try:
            async with asyncio.timeout(deadline):
                while (await self.info()).state not in _OVER:
                    await asyncio.sleep(pause)
                    pause = min(pause * 2, longest)
        except TimeoutError:
            raise TimedOut(f"{self.id} is {self.state} after {deadline:g} s, not ready") from None
        if self._info.failure is not None:
            raise _failed(self._info.failure, self.id)
        return self._info

    async def update(
        self, *, name: str | None = None, labels: Mapping[str, str] | None = None
    ) -> m.SnapshotInfo:
        """Name it, or label it anew.

        Raises:
            NotFound: it was removed.
        """
        body = m.SnapshotUpdate.of(
            snapshot_id=self.id, name=name, labels=None if labels is None else dict(labels)
        )
        self._info = await call(self._connection.transport, s.SNAPSHOT_UPDATE, body)
        return self._info

    async def remove(self, *, descendants: bool = False) -> list[str]:
        """Forget it; snapshots made from it stay, unless `descendants`. Returns the ids forgotten.

        Sandboxes that stand on it go on.
        """
        body = m.SnapshotRemove(snapshot_id=self.id, descendants=descendants)
        return (await call(self._connection.transport, s.SNAPSHOT_REMOVE, body)).snapshot_ids


class AsyncSnapshots:
    """All snapshots there are: `client.snapshots`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def get(self, snapshot_id: str) -> AsyncSnapshot:
        """Return a snapshot.

        Raises:
            NotFound: there is none of this id.
        """
        body = m.SnapshotGet.of(snapshot_id=snapshot_id)
        info = await call(self._connection.transport, s.SNAPSHOT_GET, body)
        return AsyncSnapshot(self._connection, info)

    async def list(
        self,
        *,
        name: str | None = None,
        sandbox_id: str | None = None,
        parent: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncIterator[AsyncSnapshot]:
        """Yield snapshots, newest first.

        ids = [snapshot.id async for snapshot in client.snapshots.list(name="before-tests")]
        """
        after: str | None = None
        while True:
            body = m.SnapshotList.of(
                name=name,
                sandbox_id=sandbox_id,
                parent=parent,
                labels=dict(labels or {}),
                limit=PAGE_SNAPSHOTS,
                after=after,
            )
            page = await call(self._connection.transport, s.SNAPSHOT_LIST, body)
            for info in page.snapshots:
                yield AsyncSnapshot(self._connection, info)
            after = page.next
            if after is None:
                return


async def take(connection: Connection, body: m.SandboxSnapshot) -> m.SnapshotInfo:
    """Ask for a snapshot, again and again until it is over or `wait_seconds` is 0.

    Raises:
        SandfleetError: it failed; says in which phase and why.
    """
    held = body.wait_seconds
    while True:
        info = await call(
            connection.transport, s.SNAPSHOT, body, within=CALL_SECONDS + held, held=held
        )
        if info.state in _OVER or not held:
            break
    if info.failure is not None:
        raise _failed(info.failure, info.snapshot_id)
    return info


def _failed(failure: m.Failure, snapshot_id: str) -> SandfleetError:
    problem = failure.to_error()
    problem.fields.setdefault("snapshot", snapshot_id)
    return problem
