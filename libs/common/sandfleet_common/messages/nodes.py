"""What scheduler and nodes say to each other."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from .base import Message, Request
from .sandboxes import Outcome, SandboxSpec


class NodeState(StrEnum):
    """Whether a node takes new sandboxes."""

    READY = "ready"
    DRAINING = "draining"


class NodeCapacity(Message):
    """Amounts of what a node has, or of what its sandboxes asked for."""

    sandboxes: int
    cpu: float
    memory_bytes: int
    disk_bytes: int


class Pressure(Message):
    """How much work stands still for want of something, in percent of the last ten seconds.

    Where the kernel does not measure it (PSI), the fields are None.
    """

    cpu_some: float | None = None
    memory_some: float | None = None
    memory_full: float | None = None
    io_some: float | None = None
    io_full: float | None = None


class NodeBeat(Message):
    """A node's heartbeat, every second."""

    node: str
    boot: str
    """Changes when the node service starts anew."""
    sequence: int
    at: float
    state: NodeState
    runtimes: list[str]
    environments: list[str]
    capacity: NodeCapacity
    """Physical amounts times the overcommit ratio."""
    requested: NodeCapacity
    """The sum over its live sandboxes."""
    starting: int
    starting_limit: int
    memory_available_bytes: int
    load_per_core: float
    disk_free_bytes: int
    refusing: str | None = None
    """Why it would refuse a sandbox now; None when it would not."""
    paused: int = 0
    """Sandboxes of `requested` that are paused."""
    pressure: Pressure = Pressure()
    swap_free_bytes: int = 0
    inodes_free: int | None = None
    starts_per_second: float = 0
    """Sandboxes that became ready, over the last ten seconds."""
    calls: int = 0
    """Function calls that run or wait."""
    environments_complete: bool = True
    """False: there are more environments than `environments` names; only the node knows."""
    store_failing_since: float | None = None
    """The store of layers does not answer since then; what is cached works."""
    cache_bytes: int = 0
    """Layer data kept on this machine."""


class NodeCreateItem(Message):
    """One sandbox for a node to create."""

    sandbox_id: str
    spec: SandboxSpec
    job_id: str | None = None
    slot: int | None = None
    requested_at: float
    deadline_at: float
    moved_from: str | None = None
    """The node that it comes from; its id names another one."""
    version: int = 0
    """Of its record there, which goes on from here."""
    pause: bool = False
    """Pause it as soon as it is ready."""


class NodeCreate(Request):
    """A batch for one node; the same ids again give the same outcomes."""

    items: list[NodeCreateItem] = Field(min_length=1, max_length=256)


class NodeCreated(Message):
    """An outcome for each item, sent when all are decided."""

    outcomes: list[Outcome]


class NodeDrain(Request):
    """Take no new sandboxes (or take them again)."""

    draining: bool = True
    node: str = ""
    """Which; the subject says it, too."""


class NodeList(Request):
    """Ask for the nodes that are alive."""


class NodePage(Message):
    """The latest heartbeat of each node that is alive."""

    nodes: list[NodeBeat]
