"""One sandbox as its node knows it."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

from sandfleet_common import wire
from sandfleet_common.errors import SandboxFailed, SandboxGone, SandfleetError
from sandfleet_common.messages import (
    ExecStart,
    IdleAction,
    NodeCreateItem,
    SandboxInfo,
    SandboxSpec,
)
from sandfleet_common.states import Origin, State
from sandfleet_common.wire import Frame, FrameType, Tag

from .agentlink import AgentLink
from .commands import Command
from .commandtable import CommandTable
from .core import Life, next_state
from .places import write_page, write_whole
from .turns import Turn

FIRST_VERSION = 10
"""Of a sandbox's record when its node takes it on; schedulers write lower ones before."""
_ID_BLOCK = 65_536
HELLO_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Ground:
    """What a sandbox's environment says about every command, and what it stands on."""

    layers: tuple[str, ...]
    env: dict[str, str]
    user: str | None
    workdir: str | None
    reference: str = ""
    """`name:version`, or the id of a snapshot."""


@dataclass(frozen=True, slots=True)
class Hearers:
    """Whom a sandbox tells what happens to it."""

    on_closed: Callable[[Sandbox, str | None], None]
    """Its agent's channel is closed."""
    on_watch: Callable[[Sandbox, Frame], None]
    """A watched file changed."""


class Tap(Protocol):
    """Takes the frames of one command, which it has started by itself."""

    number: int

    def on_frame(self, frame: Frame) -> None:
        """Take one frame of that command."""
        ...


class Sandbox:
    """State, record, channel and commands of one sandbox."""

    __slots__ = (
        "_hello",
        "_id_ceiling",
        "_last_id",
        "_told",
        "active_at",
        "commands",
        "created_at",
        "directory",
        "ended_at",
        "ending",
        "expires_at",
        "failure",
        "gone",
        "ground",
        "hearers",
        "id",
        "is_greeted",
        "is_silent",
        "job_id",
        "link",
        "network_env",
        "node",
        "origin",
        "paused_at",
        "pid",
        "queued_ms",
        "ready_at",
        "reason",
        "slot",
        "spec",
        "start_ms",
        "starting",
        "state",
        "status",
        "tap",
        "ttl_left_seconds",
        "turn",
        "uid",
        "uses",
        "version",
    )

    def __init__(
        self,
        sandbox_id: str,
        node: str,
        spec: SandboxSpec,
        ground: Ground,
        uid: int,
        directory: str,
        commands: CommandTable,
        hearers: Hearers,
    ) -> None:
        self.id = sandbox_id
        self.node = node
        self.spec = spec
        self.ground = ground
        self.uid = uid
        self.directory = directory
        self.commands = commands
        self.hearers = hearers
        self.state = State.PREPARING
        self.version = FIRST_VERSION
        self.job_id: str | None = None
        self.slot: int | None = None
        self.created_at = self.active_at = time.time()
        self.ready_at: float | None = None
        self.expires_at: float | None = None
        self.ended_at: float | None = None
        self.queued_ms: float | None = None
        self.start_ms: float | None = None
        self.reason: str | None = None
        self.origin: Origin | None = None
        self.is_silent = False
        """Nobody is told of it and no record written: it comes from another node and does not run
        yet, or has gone to one."""
        self.paused_at: float | None = None
        self.ttl_left_seconds: float | None = None
        self.pid = 0
        """On the host; 0 while there is none."""
        self.status: int | None = None
        """Raw wait status of the first process, once it has gone."""
        self.link: AgentLink | None = None
        self.tap: Tap | None = None
        """Who takes the frames of one command instead of the table of commands."""
        self.network_env: dict[str, str] = {}
        """What its network asks of every command."""
        self.failure: SandfleetError | None = None
        """Why it did not start."""
        self.starting: asyncio.Task[None] | None = None
        self.ending: asyncio.Task[None] | None = None
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the launcher has said that it is gone entirely."""
        self.uses = 0
        """Operations under way that wait for its agent: it cannot be paused meanwhile."""
        self.turn: Turn | None = None
        """Once it has been paused: who may do that, or resume it, now."""
        self.is_greeted = False
        """Its agent has answered this service."""
        self._hello: asyncio.Future[list[Frame]] | None = None
        self._told: list[Frame] = []
        self._last_id = 0
        self._id_ceiling = _ID_BLOCK

    # ------------------------------------------------------------ record

    def note_request(self, item: NodeCreateItem, arrived_at: float) -> None:
        """Take over what the scheduler knows of it."""
        self.job_id = item.job_id
        self.slot = item.slot
        self.created_at = item.requested_at
        self.queued_ms = max(0.0, round((arrived_at - item.requested_at) * 1000, 3))
        if item.moved_from is not None:
            self.is_silent = True
            self.version = item.version + FIRST_VERSION

    def move(
        self, state: State, *, reason: str | None = None, origin: Origin | None = None
    ) -> None:
        """Go on to another state."""
        self.state = next_state(self.state, state)
        self.version += 1
        if state is not State.PAUSED:
            self.paused_at = self.ttl_left_seconds = None
        if reason is not None:
            self.reason, self.origin = reason, origin

    def info(self) -> SandboxInfo:
        """Return all that is known of it."""
        return SandboxInfo(
            sandbox_id=self.id,
            node=self.node,
            state=self.state,
            version=self.version,
            spec=self.spec,
            job_id=self.job_id,
            slot=self.slot,
            created_at=self.created_at,
            ready_at=self.ready_at,
            expires_at=self.expires_at,
            ended_at=self.ended_at,
            queued_ms=self.queued_ms,
            start_ms=self.start_ms,
            reason=self.reason,
            origin=self.origin,
            paused_at=self.paused_at,
            ttl_left_seconds=self.ttl_left_seconds,
            environment=self.ground.reference or None,
        )

    def save(self) -> None:
        """Write its spec.json, from which the next service takes it on."""
        record = {
            "uid": self.uid,
            "layers": self.ground.layers,
            "env": self.ground.env,
            "user": self.ground.user,
            "workdir": self.ground.workdir,
            "reference": self.ground.reference,
            "info": self.info().model_dump_json(),
        }
        write_page(f"{self.directory}/spec.json", json.dumps(record).encode())

    def restore(self, info: SandboxInfo) -> Self:
        """Take over what an earlier service wrote."""
        self.state, self.version = info.state, info.version
        self.job_id, self.slot = info.job_id, info.slot
        self.created_at, self.ready_at = info.created_at, info.ready_at
        self.expires_at = info.expires_at
        self.paused_at, self.ttl_left_seconds = info.paused_at, info.ttl_left_seconds
        self.queued_ms, self.start_ms = info.queued_ms, info.start_ms
        return self

    # -------------------------------------------------------------- life

    def life(self) -> Life:
        """Return what decides how long it lives."""
        return Life(
            expires_at=self.expires_at,
            idle_seconds=self.spec.idle_seconds,
            active_at=self.active_at,
            is_busy=self.commands.foreground > 0,
            idle_pauses=self.spec.idle_action is IdleAction.PAUSE,
            is_paused=self.state is State.PAUSED,
        )

    def begin_pause(self, now: float) -> None:
        """Stop the clock of its time to live; that of the pause runs instead."""
        left = None if self.expires_at is None else max(0.0, self.expires_at - now)
        self.paused_at, self.ttl_left_seconds = now, left
        limit = self.spec.paused_ttl_seconds
        self.expires_at = None if limit is None else now + limit

    def end_pause(self, now: float) -> None:
        """Let its time to live count again."""
        left = self.ttl_left_seconds
        self.expires_at = None if left is None else now + left
        self.active_at = now

    def touch(self) -> None:
        """Its user did something."""
        self.active_at = time.time()

    def agent(self) -> AgentLink:
        """Return the channel to its agent.

        Raises:
            SandboxGone: it has ended or is ending.
        """
        if self.ending is not None or self.link is None or not self.link.is_open:
            state = State.STOPPING if self.reason is None else self.state
            raise SandboxGone(
                f"the sandbox is ending: {self.reason or 'it is being stopped'}",
                state=str(state),
                reason=self.reason,
                origin=str(self.origin) if self.origin else None,
            )
        return self.link

    def next_id(self) -> int:
        """Return an id that was never used on its agent's channel.

        Ids are reserved in blocks, so that a service that comes later and knows only the
        block in use goes on behind it.
        """
        self._last_id += 1
        if self._last_id >= self._id_ceiling:
            self._id_ceiling += _ID_BLOCK
            write_whole(f"{self.directory}/ids", str(self._id_ceiling).encode())
        return self._last_id

    def _skip_ids(self) -> None:
        try:
            self._id_ceiling = int(Path(self.directory, "ids").read_bytes())
        except FileNotFoundError:
            self._id_ceiling = _ID_BLOCK
        self._last_id = self._id_ceiling
        self._id_ceiling += _ID_BLOCK
        write_whole(f"{self.directory}/ids", str(self._id_ceiling).encode())

    # ------------------------------------------------------------- agent

    async def greet(self, link: AgentLink) -> None:
        """Say hello to its agent; commands go on from there.

        Raises:
            SandboxFailed: the agent does not answer, or speaks another version.
        """
        self.link = link
        self._hello = asyncio.get_running_loop().create_future()
        payload = wire.pack_fields([(Tag.VERSION, wire.PROTOCOL)])
        try:
            link.send(FrameType.HELLO, self.next_id(), payload=payload)
            async with asyncio.timeout(HELLO_SECONDS):
                told = await self._hello
        except TimeoutError:
            raise SandboxFailed("its agent did not answer") from None
        finally:
            self._hello = None
        self.is_greeted = True
        self.commands.resume(link, told)

    async def adopt(self, link: AgentLink) -> None:
        """Take the sandbox over from an earlier service.

        Raises:
            SandboxFailed: the agent does not answer.
        """
        self.adopt_frozen(link)
        await self.greet(link)

    def adopt_frozen(self, link: AgentLink) -> None:
        """Take over a sandbox whose agent cannot answer now; `greet` has to follow."""
        self.link = link
        self._skip_ids()
        self.commands.recover()

    async def start_command(self, request: ExecStart) -> Command:
        """Start a command with the sandbox's own environment, user and directory beneath."""
        return await self.commands.start(
            self.agent(),
            self.next_id,
            request,
            {**self.ground.env, **self.network_env, **self.spec.env, **request.env},
            request.user or self.spec.user or self.ground.user,
            request.cwd or self.spec.workdir or self.ground.workdir,
        )

    def on_frame(self, frame: Frame) -> None:
        """Take one frame from its agent."""
        if self.tap is not None and frame.id == self.tap.number:
            self.tap.on_frame(frame)
            return
        handler = self._handlers.get(frame.type)
        if handler is not None:
            handler(self, frame)

    def on_pause(self) -> None:
        """All that the agent has said so far was told."""
        if self.link is not None:
            self.commands.settle(self.link)

    def on_closed(self, problem: str | None) -> None:
        """Its channel is closed."""
        if self._hello is not None and not self._hello.done():
            self._hello.set_exception(SandboxFailed("its agent ended while it was starting"))
        self.hearers.on_closed(self, problem)

    def _on_output(self, frame: Frame) -> None:
        self.commands.on_output(frame)

    def _on_exit(self, frame: Frame) -> None:
        if self.link is not None:
            self.active_at = time.time()
            self.commands.on_exit(self.link, frame)

    def _on_started(self, frame: Frame) -> None:
        self.commands.on_started(frame)

    def _on_stdin_ack(self, frame: Frame) -> None:
        self.commands.on_stdin_ack(frame)

    def _on_error(self, frame: Frame) -> None:
        self.commands.on_error(frame)

    def _on_event(self, frame: Frame) -> None:
        self.hearers.on_watch(self, frame)

    def _on_process(self, frame: Frame) -> None:
        if self._hello is not None:
            self._told.append(frame)

    def _on_ready(self, frame: Frame) -> None:
        if self._hello is not None and not self._hello.done():
            told, self._told = self._told, []
            self._hello.set_result(told)

    _handlers: ClassVar[dict[FrameType, Callable[[Sandbox, Frame], None]]] = {
        FrameType.OUTPUT: _on_output,
        FrameType.EXIT: _on_exit,
        FrameType.STARTED: _on_started,
        FrameType.STDIN_ACK: _on_stdin_ack,
        FrameType.ERROR: _on_error,
        FrameType.EVENT: _on_event,
        FrameType.PROCESS: _on_process,
        FrameType.READY: _on_ready,
    }


@dataclass(frozen=True, slots=True)
class Saved:
    """What a spec.json says."""

    uid: int
    ground: Ground
    info: SandboxInfo


def read_saved(directory: str) -> Saved | None:
    """Return what a sandbox's spec.json says; None if there is none that can be read."""
    try:
        record: dict[str, Any] = json.loads(Path(directory, "spec.json").read_bytes())
        return Saved(
            uid=int(record["uid"]),
            ground=Ground(
                tuple(record["layers"]),
                record["env"],
                record["user"],
                record["workdir"],
                record.get("reference", ""),
            ),
            info=SandboxInfo.model_validate_json(record["info"]),
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


__all__ = ["Ground", "Hearers", "Sandbox", "Saved", "read_saved"]
