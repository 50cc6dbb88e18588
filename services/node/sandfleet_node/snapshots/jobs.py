"""One snapshot under way: what was asked for, of what, and how far it is."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from sandfleet_common.errors import SandboxFailed, SandfleetError
from sandfleet_common.ids import is_snapshot_id
from sandfleet_common.messages import Digest, Failure, SandboxSnapshot, SnapshotInfo, SnapshotState
from sandfleet_node.sandbox import Sandbox


@dataclass(slots=True)
class Job:
    """A snapshot that is being made. It needs its sandbox until it is staged, not longer."""

    info: SnapshotInfo
    asked: SandboxSnapshot
    first_id: int
    """Of the sandbox's id range."""
    disk_bytes: int
    """The sandbox's cap."""
    below: tuple[Digest, ...]
    """The layers that the sandbox stands on, top first."""
    is_local: bool
    """For children on this node only: neither uploaded nor named in the store."""
    staged: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the sandbox may change or end."""
    task: asyncio.Task[None] | None = None

    def update(self, **values: object) -> None:
        """Change what is known of it."""
        self.info = self.info.model_copy(update=values)

    def fail(self, problem: Exception, now: float) -> None:
        """Note why it failed, and in which phase."""
        phase = str(self.info.state) if self.staged.is_set() else "staging"
        error = problem if isinstance(problem, SandfleetError) else SandboxFailed(str(problem))
        told = Failure.from_error(error)
        failure = told.model_copy(
            update={
                "message": f"{phase} failed: {told.message}",
                "fields": {**told.fields, "phase": phase},
            }
        )
        self.update(state=SnapshotState.FAILED, failure=failure, ended_at=now)

    @property
    def is_whole(self) -> bool:
        """Whether the writable layer as a whole is packed, to lie on those below."""
        return not self.asked.root.strip("/")


def job_of(sandbox: Sandbox, asked: SandboxSnapshot, *, is_local: bool) -> Job:
    """Return a job that has not begun.

    Variables that the sandbox's own spec set are left out: they are where secrets are handed in.
    """
    ground, spec = sandbox.ground, sandbox.spec
    is_whole = not asked.root.strip("/")
    info = SnapshotInfo(
        snapshot_id=asked.snapshot_id,
        sandbox_id=sandbox.id,
        node=sandbox.node,
        state=SnapshotState.PACKING,
        name=asked.name,
        labels=asked.labels,
        parent=ground.reference if is_snapshot_id(ground.reference) else None,
        environment="" if is_snapshot_id(ground.reference) else ground.reference,
        env=ground.env if is_whole else {},
        user=(spec.user or ground.user) if is_whole else None,
        workdir=(spec.workdir or ground.workdir) if is_whole else None,
        created_at=time.time(),
    )
    return Job(
        info=info,
        asked=asked,
        first_id=sandbox.uid,
        disk_bytes=spec.resources.disk_bytes,
        below=tuple(ground.layers),
        is_local=is_local,
    )
