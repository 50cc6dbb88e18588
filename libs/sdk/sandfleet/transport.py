"""What the SDK asks of a connection to the platform, whichever way it goes.

Two ways exist, with the same methods: `nats_transport` for trainers beside the
platform, `gateway_transport` for everybody else. A transport makes one attempt
and says how it ended; trying again is the business of `calls`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol, TypeVar

from sandfleet_common import messages as m
from sandfleet_common.streams import StreamFrame
from sandfleet_common.subjects import Subject

BodyT = TypeVar("BodyT", bound=m.Message)
ReplyT = TypeVar("ReplyT", bound=m.Message)
ItemT_co = TypeVar("ItemT_co", covariant=True)

WINDOW_BYTES = m.MIB
"""Output that may be under way to a reader who has not taken it yet."""


class LinkLost(Exception):
    """Frames may have been missed: attach again from the position reached."""


@dataclass(frozen=True, slots=True)
class FilePlace:
    """One file in one sandbox, and as whom it is touched."""

    sandbox_id: str
    path: str
    user: str | None = None


@dataclass(frozen=True, slots=True)
class FileTarget:
    """A file that is to be written."""

    place: FilePlace
    mode: int | None = None
    parents: bool = True


class Link(Protocol):
    """One attachment to a command's stream; frames come in order while it lasts."""

    @property
    def state(self) -> m.ExecState:
        """The command as it was when the link was made."""
        ...

    async def receive(self) -> StreamFrame:
        """Return the next frame from the node.

        Raises:
            LinkLost: the connection broke; the command goes on.
        """
        ...

    async def send(self, frame: StreamFrame) -> None:
        """Send a frame to the node.

        Raises:
            LinkLost: the connection broke.
        """
        ...

    async def close(self) -> None:
        """Forget the stream; the command goes on."""
        ...


class Feed(Protocol[ItemT_co]):
    """Things told as they happen. None: some may have been missed, look again."""

    async def next(self) -> ItemT_co | None:
        """Wait for what comes next."""
        ...


class Transport(Protocol):
    """A connection to the platform."""

    async def call(self, subject: Subject[BodyT, ReplyT], body: BodyT, *, within: float) -> ReplyT:
        """Ask once; a subject of a node goes to the node that the body's sandbox id names.

        Raises:
            TimedOut: no answer in time; it may have been done all the same.
            Unreachable: nobody was there to hear it.
            SandfleetError: what the one asked says.
        """
        ...

    def learn_home(self, sandbox_id: str, node: str) -> bool:
        """Note on which node a sandbox lives; return whether that is news to us."""
        ...

    async def submit(self, job: m.JobSubmit, *, within: float) -> None:
        """Put a job into the queue; the same job again changes nothing."""
        ...

    async def attach(
        self, sandbox_id: str, exec_id: str, *, position: int, window_bytes: int, within: float
    ) -> Link:
        """Open a stream to a command, with its output from `position` on."""
        ...

    def job_events(self, job_id: str) -> AbstractAsyncContextManager[Feed[m.JobEvent]]:
        """Listen to a job's progress."""
        ...

    def file_events(
        self, place: FilePlace, *, recursive: bool
    ) -> AbstractAsyncContextManager[Feed[m.FileEvent]]:
        """Listen to changes below a path."""
        ...

    def read_file(self, place: FilePlace, *, within: float) -> AsyncIterator[bytes]:
        """Read a file piece by piece; `within` is for each piece."""
        ...

    async def write_file(
        self, target: FileTarget, pieces: AsyncIterator[bytes], *, within: float
    ) -> None:
        """Write a file piece by piece; it appears when whole. `within` is for each piece."""
        ...
