"""Forks: sandboxes that begin with the files of another, on its node, all with the same moment.

What they stand on is a snapshot that only this node has. It goes when no sandbox stands on it
any more; until then more children can be made of it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from sandfleet_common.errors import BadRequest, SandboxFailed, SandfleetError
from sandfleet_common.ids import node_of
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    NodeCreate,
    NodeCreated,
    NodeCreateItem,
    SandboxFork,
    SandboxForked,
    SandboxSnapshot,
    SandboxSpec,
    SnapshotState,
)
from sandfleet_node.keeper import Keeper
from sandfleet_node.launcher import LauncherRefused
from sandfleet_node.sandboxes import Sandboxes

from .making import Making
from .records import Forked, SnapshotRecords
from .snapshots import Snapshots

KEPT_SECONDS = 120.0
"""A snapshot nobody stands on is kept so long: more children may be on their way."""
_SWEEP_SECONDS = 30.0


class Forks:
    """Serves FORK. `run` removes what no sandbox stands on any more."""

    def __init__(
        self,
        node: str,
        sandboxes: Sandboxes,
        snapshots: Snapshots,
        records: SnapshotRecords,
        making: Making,
        keeper: Keeper,
        create: Callable[[NodeCreate], Awaitable[NodeCreated]],
        log: Logger,
    ) -> None:
        self._node = node
        self._sandboxes = sandboxes
        self._snapshots = snapshots
        self._records = records
        self._making = making
        self._keeper = keeper
        self._create = create
        self._log = log
        self._using: dict[str, int] = {}
        """Requests under way, by snapshot."""

    async def fork(self, body: SandboxFork) -> SandboxForked:
        """Create children, and return what became of each.

        Raises:
            SandfleetError: the parent cannot be packed, and why; no child was created.
        """
        self._check(body)
        self._using[body.snapshot_id] = self._using.get(body.snapshot_id, 0) + 1
        try:
            began = time.time()
            forked = await self._parent(body)
            await self._mount(forked)
            items = [self._item(body, child, forked, began) for child in body.children]
            created = await self._create(NodeCreate(items=items))
        finally:
            self._using[body.snapshot_id] -= 1
            if not self._using[body.snapshot_id]:
                del self._using[body.snapshot_id]
        return SandboxForked(snapshot=forked.info, outcomes=created.outcomes)

    def _check(self, body: SandboxFork) -> None:
        if len(set(body.children)) != len(body.children):
            raise BadRequest("children: an id is named twice")
        for child in body.children:
            if node_of(child) != self._node:
                raise BadRequest(f"children: {child} names another node; this is {self._node}")

    async def _parent(self, body: SandboxFork) -> Forked:
        """Return the moment that the children share, made now unless it is there."""
        asked = SandboxSnapshot(
            sandbox_id=body.sandbox_id, snapshot_id=body.snapshot_id, scrub=False
        )
        info = await self._snapshots.take(asked, is_local=True)
        if info.state is SnapshotState.FAILED and info.failure is not None:
            raise info.failure.to_error()
        forked = self._records.fork(body.snapshot_id)
        if forked is not None:
            return forked
        # An ordinary snapshot of that id: its children are like the parent is now.
        parent = self._sandboxes.get(body.sandbox_id)
        return Forked(info=info, spec=parent.spec, job_id=parent.job_id)

    async def _mount(self, forked: Forked) -> None:
        """Show the launcher directories that the children stand on."""
        for digest in forked.info.layers:
            held = self._records.held(digest)
            if held is None or self._keeper.has_layer(digest):
                continue
            place = self._making.held(held)
            if place is None:
                raise SandboxFailed(f"what {held.info.sandbox_id} was forked from is lost")
            try:
                await self._keeper.mount_directory(digest, place)
            except LauncherRefused as problem:
                raise SandboxFailed(f"the children cannot be created: {problem}") from None

    def _item(self, body: SandboxFork, child: str, forked: Forked, began: float) -> NodeCreateItem:
        return NodeCreateItem(
            sandbox_id=child,
            spec=child_spec(forked.spec, body),
            job_id=forked.job_id,
            requested_at=began,
            deadline_at=began + body.deadline_seconds,
        )

    # --------------------------------------------------------------- removal

    async def run(self) -> None:
        """Remove snapshots that no sandbox stands on, until cancelled."""
        while True:
            try:
                await self.sweep(time.time() - KEPT_SECONDS)
            except (SandfleetError, LauncherRefused, OSError) as problem:
                self._log.warning("forks.unswept", error=str(problem))
            await asyncio.sleep(_SWEEP_SECONDS)

    async def sweep(self, made_before: float) -> None:
        """Remove snapshots made before a time that no sandbox stands on.

        Raises:
            LauncherRefused: a directory is in use all the same.
            Unreachable: the launcher has gone.
            OSError: the disk failed.
        """
        used = {digest for sandbox in self._sandboxes for digest in sandbox.ground.layers}
        used |= self._snapshots.needed()
        for forked in self._records.forks():
            is_new = (forked.info.ended_at or 0.0) > made_before
            if is_new or forked.info.snapshot_id in self._using or forked.digest in used:
                continue
            if self._keeper.has_layer(forked.digest):
                await self._keeper.unmount(forked.digest)
            self._records.remove_fork(forked.info.snapshot_id)
            await self._making.forget(forked)
            self._log.info("fork.forgotten", snapshot=forked.info.snapshot_id)


def child_spec(parent: SandboxSpec, body: SandboxFork) -> SandboxSpec:
    """Return what a child is: as its parent's spec says, but for what was asked to differ."""
    changes = body.changes.model_dump(exclude_none=True)
    values = {name: getattr(body.changes, name) for name in changes}
    return parent.model_copy(update={**values, "environment": body.snapshot_id})
