"""Environments, layers and snapshots: what sandboxes are made of and what becomes of them."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from sandfleet_common.states import State

from .base import Failure, Message, Request
from .sandboxes import (
    EnvVars,
    Labels,
    Outcome,
    Resources,
    SandboxInfo,
    SandboxSpec,
    Text,
    users_labels,
)

Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
EnvironmentName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,62}$")]
EnvironmentVersion = Annotated[str, StringConstraints(pattern=r"^[0-9]{1,9}(\.[0-9]{1,9}){0,3}$")]
SnapshotId = Annotated[str, StringConstraints(pattern=r"^sn-[a-z0-9-]{1,40}-[0-9a-z]{26}$")]
Reference = Annotated[Text, Field(min_length=1, max_length=128)]
"""`name` (the newest version), `name:version`, or the id of a snapshot."""
Notes = Annotated[dict[str, str], Field(max_length=64)]
"""What to know before stacking something on a layer: `distribution`, `libc`, `python`, ..."""


class LayerKind(StrEnum):
    """What a layer is for."""

    BASE = "base"
    WORKSPACE = "workspace"
    TOOLKIT = "toolkit"
    SNAPSHOT = "snapshot"


class Layer(Message):
    """An immutable tree of files; its digest is the sha256 of the index of its content."""

    digest: Digest
    kind: LayerKind
    size_bytes: int = Field(ge=0)
    """Names and attributes, and what is in the files."""
    meta_bytes: int = Field(default=0, ge=0)
    """Names and attributes alone: fetched before the layer is used, the rest when it is read."""
    created_at: float
    description: str = Field(default="", max_length=500)
    notes: Notes = Field(default_factory=dict[str, str])


class EnvironmentInfo(Message):
    """A named, versioned stack of layers; never changed, so its digests are its lock."""

    name: EnvironmentName
    version: EnvironmentVersion
    layers: Annotated[list[Layer], Field(min_length=1, max_length=64)]
    """Top first."""
    env: EnvVars = Field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    created_at: float = 0.0
    notes: Notes = Field(default_factory=dict[str, str])
    source: str = Field(default="", max_length=500)
    """What it was made from: an image, a Dockerfile, a directory."""
    warnings: list[str] = Field(default_factory=list[str])
    """Layers that were built on something else than what lies below them here."""


class EnvironmentGet(Request):
    """Ask for an environment, with its layers."""

    environment: Reference


class EnvironmentList(Request):
    """Ask for environments by name; only the newest version of each unless `versions`."""

    prefix: Annotated[str, Field(max_length=63)] = ""
    versions: bool = False
    limit: int = Field(default=500, gt=0, le=5000)
    after: str | None = None
    """Continue behind this `name:version`, as `next` of the page before says."""


class EnvironmentSummary(Message):
    """One line of a list."""

    name: str
    version: str
    layers: int
    size_bytes: int
    created_at: float = 0.0
    source: str = ""


class EnvironmentPage(Message):
    """Some environments, by name."""

    environments: list[EnvironmentSummary]
    next: str | None = None


class EnvironmentPublish(Request):
    """Name a stack of layers that are in the store. The same stack again is no new version."""

    name: EnvironmentName
    version: EnvironmentVersion | None = None
    """None: the one after the newest."""
    layers: Annotated[list[Digest], Field(min_length=1, max_length=64)]
    """Top first."""
    env: EnvVars = Field(default_factory=dict)
    user: Annotated[Text, Field(max_length=64)] | None = None
    workdir: Annotated[Text, Field(max_length=4096)] | None = None
    notes: Notes = Field(default_factory=dict[str, str])
    source: str = Field(default="", max_length=500)


class EnvironmentRemove(Request):
    """Forget one version, or with `name` alone all of them. Layers go with the next collection."""

    environment: Reference


class LayerFind(Request):
    """Ask for the layer that was packed under a key, as builders do before they build."""

    key: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")]


class LayerFound(Message):
    """The layer, unless none is in the store under that key."""

    layer: Layer | None = None


class StoreCollect(Request):
    """Remove layers that no environment, snapshot, key or live sandbox needs."""

    dry_run: bool = False
    keep_seconds: float = Field(default=86_400, ge=0)
    """Younger ones stay: somebody may be about to name them."""


class StoreCollected(Message):
    """What was (or would be) removed, and what stays."""

    removed: int
    freed_bytes: int
    kept: int
    kept_bytes: int


class SnapshotState(StrEnum):
    """How far a snapshot is."""

    PACKING = "packing"
    STORING = "storing"
    READY = "ready"
    FAILED = "failed"


class SnapshotInfo(Message):
    """A snapshot: a job until it is ready, then a stack of layers to create sandboxes from."""

    snapshot_id: SnapshotId
    sandbox_id: str
    node: str
    state: SnapshotState
    name: str | None = None
    labels: Labels = Field(default_factory=dict)
    parent: str | None = None
    """The snapshot that the sandbox was created from."""
    environment: str = ""
    """`name:version` that the first of its line was created from."""
    layer: Layer | None = None
    """What the sandbox had written; None until it is packed."""
    layers: list[Digest] = Field(default_factory=list[str])
    """The whole stack, top first."""
    env: EnvVars = Field(default_factory=dict)
    user: str | None = None
    workdir: str | None = None
    created_at: float
    ended_at: float | None = None
    """When it became ready or failed."""
    frozen_ms: float | None = None
    """How long the sandbox stood still for it."""
    packed_ms: float | None = None
    stored_ms: float | None = None
    scrubbed: list[str] = Field(default_factory=list[str])
    """What was left out by rule: the first hundred paths."""
    preserved: str = "files; not processes, memory, open connections, /proc, /dev, /tmp mounts"
    failure: Failure | None = None


class SandboxSnapshot(Request):
    """Pack what a sandbox has written. The same `snapshot_id` again is the same snapshot.

    The reply comes when it is ready or failed, or after `wait_seconds`, with how far it is;
    asking again waits again.
    """

    sandbox_id: str
    snapshot_id: SnapshotId
    name: EnvironmentName | None = None
    labels: Labels = Field(default_factory=dict)
    kind: LayerKind = LayerKind.SNAPSHOT
    description: str = Field(default="", max_length=500)
    notes: Notes = Field(default_factory=dict[str, str])
    root: Annotated[Text, Field(max_length=4096)] = "/"
    """Pack only this directory of the sandbox, as the root of a layer; `layers` is then that
    layer alone."""
    whiteouts: Literal["overlay", "oci"] = "overlay"
    """oci: files named `.wh.*` below `root` stand for what is missing."""
    scrub: bool = True
    """Leave out secrets and build residue, by the node's rules."""
    key: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,128}$")] | None = None
    """Find the layer again under this key (see LayerFind)."""
    wait_seconds: float = Field(default=30, ge=0, le=60)


class SnapshotGet(Request):
    """Ask how far a snapshot is."""

    snapshot_id: SnapshotId


class SnapshotList(Request):
    """Ask for snapshots, newest first."""

    sandbox_id: str | None = None
    name: str | None = None
    parent: str | None = None
    labels: Labels = Field(default_factory=dict)
    limit: int = Field(default=500, gt=0, le=5000)
    after: str | None = None


class SnapshotPage(Message):
    """Some snapshots; `parent` of each makes them a tree."""

    snapshots: list[SnapshotInfo]
    next: str | None = None


class SnapshotUpdate(Request):
    """Name a snapshot, or label it anew."""

    snapshot_id: SnapshotId
    name: EnvironmentName | None = None
    labels: Labels | None = None


class SnapshotRemove(Request):
    """Forget a snapshot; those made from it stay, unless `descendants`."""

    snapshot_id: SnapshotId
    descendants: bool = False


class SnapshotsRemoved(Message):
    """Which were forgotten."""

    snapshot_ids: list[str]


UserLabels = Annotated[Labels, AfterValidator(users_labels)]


class ForkChanges(Message):
    """In what children differ from their parent; what is not given is as the parent's spec."""

    env: EnvVars | None = None
    labels: UserLabels | None = None
    resources: Resources | None = None
    ttl_seconds: float | None = Field(default=None, gt=0, le=30 * 86400)
    idle_seconds: float | None = Field(default=None, gt=0, le=30 * 86400)


class SandboxFork(Request):
    """Create sandboxes that begin with the files of this one, on its node.

    All of them see the same moment. `children` are ids that name the same node; the same ids
    again give the same sandboxes. More than 256: ask again with the same `snapshot_id`.
    """

    sandbox_id: str
    snapshot_id: SnapshotId
    """Of the moment they share; kept while one of them needs it."""
    children: Annotated[list[str], Field(min_length=1, max_length=256)]
    changes: ForkChanges = ForkChanges()
    deadline_seconds: float = Field(default=60, gt=0, le=3600)


class SandboxForked(Message):
    """What became of each child, in the order asked."""

    snapshot: SnapshotInfo
    outcomes: list[Outcome]


class SandboxMigrate(Request):
    """Move a sandbox to another node; it keeps its id and its files, and loses its processes."""

    sandbox_id: str
    node: str | None = None
    """Where to; None: where there is most room."""
    deadline_seconds: float = Field(default=120, gt=0, le=3600)


class SandboxDepart(Request):
    """Freeze a sandbox that is about to move and pack it. Asked again it says the same."""

    sandbox_id: str


class Departure(Message):
    """What another node needs to go on with it."""

    info: SandboxInfo
    spec: SandboxSpec
    """`environment` is the snapshot's id."""
    snapshot: SnapshotInfo
    was: State
    """Running or paused, before."""
    ttl_left_seconds: float | None = None


class SandboxDeparted(Request):
    """Say how a move ended: it lives on `node` now, or, with None, it stays."""

    sandbox_id: str
    node: str | None = None
