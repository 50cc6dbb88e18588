"""Jobs: many sandboxes from one request."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from sandfleet_common.ids import new_job_id

from .base import Message, Request
from .sandboxes import Labels, SandboxInfo, SandboxSpec, UserSpec


class JobState(StrEnum):
    """Where a job is."""

    PLACING = "placing"
    DONE = "done"
    """Every slot is ready or has failed."""
    CANCELLED = "cancelled"


class JobSubmit(Request):
    """A job. The same job id again changes nothing."""

    job_id: str = Field(default_factory=new_job_id, pattern=r"^[A-Za-z0-9_-]{1,64}$")
    count: int = Field(gt=0, le=100_000)
    spec: UserSpec = SandboxSpec()
    deadline_seconds: float = Field(default=120, gt=0, le=86_400)
    """Slots not ready by then fail with no_capacity."""
    labels: Labels = Field(default_factory=dict)


class JobGet(Request):
    """Ask where a job is."""

    job_id: str


class JobCancel(Request):
    """Stop placing a job and end its sandboxes."""

    job_id: str


class SlotFailure(Message):
    """A slot that ended without a sandbox."""

    slot: int
    code: str
    message: str


class JobInfo(Message):
    """Where a job is."""

    job_id: str
    state: JobState
    count: int
    ready: int
    failed: int
    submitted_at: float
    done_at: float | None = None
    failures: list[SlotFailure] = Field(default_factory=list[SlotFailure])
    """The first hundred."""
    ahead: int | None = None
    """While it waits for room: sandboxes that other jobs asked for earlier and still wait for."""
    expected_wait_seconds: float | None = None
    """Until its last sandbox is ready, if all goes on at the present rate; None: not known."""


class JobSlots(Request):
    """Ask for a job's ready sandboxes, by slot; for a client that missed events."""

    job_id: str
    from_slot: int = 0
    limit: int = Field(default=1000, gt=0, le=5000)


class JobSlotsPage(Message):
    """Ready sandboxes of a job and failed slots, by slot."""

    job: JobInfo
    sandboxes: list[SandboxInfo]
    failures: list[SlotFailure]
    next_slot: int | None = None


class JobEvent(Message):
    """Progress of a job: what is new, and the totals."""

    job: JobInfo
    ready: list[SandboxInfo] = Field(default_factory=list[SandboxInfo])
    failed: list[SlotFailure] = Field(default_factory=list[SlotFailure])
