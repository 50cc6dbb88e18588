"""One command in a sandbox: what was asked, where it is, how it ended."""

from __future__ import annotations

import asyncio
import json
import time
from typing import Any, Literal, Protocol

from sandfleet_common import wire
from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import INLINE_BYTES, Chunk, ExecStart, ExecState
from sandfleet_common.wire import FrameFlag, FrameType, Tag

from .agentlink import AgentLink
from .outputlog import OutputLog, Recovered

_ARGV_SHOWN = 1024
"""Characters of a command line in a list of commands."""

CommandState = Literal["running", "exited", "lost"]


class Watcher(Protocol):
    """Who wants to know that a command has moved on."""

    def wake(self) -> None:
        """There is output, input was taken, or the command has ended."""
        ...


class Command:
    """The record of one command. `number` is its id on the agent's channel."""

    __slots__ = (
        "acked",
        "argv",
        "background",
        "cpu_seconds",
        "dropped_bytes",
        "ended_at",
        "exec_id",
        "exit_code",
        "finished",
        "is_killed",
        "is_mute",
        "log",
        "number",
        "pid",
        "pty",
        "reason",
        "rss_peak_bytes",
        "signal",
        "started",
        "started_at",
        "state",
        "stdin_closed",
        "stdin_ended",
        "stdin_sent",
        "stdin_taken",
        "timed_out",
        "watchers",
    )

    def __init__(
        self,
        number: int,
        exec_id: str,
        argv: list[str],
        log: OutputLog,
        *,
        pty: bool,
        background: bool,
        started_at: float,
    ) -> None:
        self.number = number
        self.exec_id = exec_id
        self.argv = argv
        self.log = log
        self.pty = pty
        self.background = background
        self.started_at = started_at
        self.state: CommandState = "running"
        self.pid: int | None = None
        self.ended_at: float | None = None
        self.exit_code: int | None = None
        self.signal: int | None = None
        self.timed_out = False
        self.dropped_bytes = 0
        self.cpu_seconds: float | None = None
        self.rss_peak_bytes: int | None = None
        self.reason: str | None = None
        self.stdin_sent = 0
        """Input handed to the agent."""
        self.stdin_taken = 0
        """Input that the agent handed to the command."""
        self.stdin_ended = False
        """The end of the input was handed to the agent."""
        self.stdin_closed = False
        """No more input will be taken."""
        self.acked = 0
        self.is_mute = False
        """Its output cannot be kept any more: the disk is full."""
        self.is_killed = False
        """Somebody asked for a signal."""
        self.started: asyncio.Future[None] | None = None
        self.finished: asyncio.Future[None] | None = None
        self.watchers: list[Watcher] | None = None

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.state == "running"

    def wake(self) -> None:
        """Tell the watchers that something is new."""
        for watcher in self.watchers or ():
            watcher.wake()

    def feed(self, link: AgentLink, position: int, data: bytes, *, closes: bool) -> bool:
        """Pass input on to the agent, and return False if it does not follow what came before.

        What the agent has already is skipped; what exceeds the window is left to be sent again.
        """
        if position > self.stdin_sent:
            return False
        if self.stdin_ended or self.stdin_closed or not self.is_running:
            return True
        fresh = data[self.stdin_sent - position :]
        room = self.stdin_taken + wire.WINDOW_BYTES - self.stdin_sent
        closes = closes and len(fresh) <= room
        fresh = fresh[: max(0, room)]
        while fresh or closes:
            part, fresh = fresh[: wire.FRAME_DATA_MAX_BYTES], fresh[wire.FRAME_DATA_MAX_BYTES :]
            is_last = closes and not fresh
            flags = FrameFlag.EOF if is_last else FrameFlag.NONE
            link.send(
                FrameType.STDIN, self.number, flags=flags, position=self.stdin_sent, payload=part
            )
            self.stdin_sent += len(part)
            if is_last:
                self.stdin_ended = True
                break
        return True

    def as_message(
        self, sandbox_id: str, *, position: int | None = None, is_listed: bool = False
    ) -> ExecState:
        """Return its state, with output from `position` if that is given."""
        output: list[Chunk] = []
        if position is not None:
            output = [
                Chunk(stream="stderr" if is_stderr else "stdout", data=data)
                for is_stderr, data in self.log.read(position, INLINE_BYTES)
            ]
        return ExecState(
            sandbox_id=sandbox_id,
            exec_id=self.exec_id,
            state=self.state,
            pid=self.pid,
            argv=_shortened(self.argv) if is_listed else self.argv,
            pty=self.pty,
            background=self.background,
            started_at=self.started_at,
            ended_at=self.ended_at,
            exit_code=self.exit_code,
            signal=self.signal,
            timed_out=self.timed_out,
            output_bytes=self.log.end,
            dropped_bytes=self.dropped_bytes,
            stdin_bytes=self.stdin_taken,
            stdin_closed=self.stdin_closed or self.stdin_ended,
            cpu_seconds=self.cpu_seconds,
            rss_peak_bytes=self.rss_peak_bytes,
            reason=self.reason,
            position=position or 0,
            output=output,
        )

    # ------------------------------------------------------------ on disk

    def about(self) -> bytes:
        """Return what its log begins with."""
        return json.dumps(
            {
                "number": self.number,
                "exec_id": self.exec_id,
                "argv": self.argv,
                "pty": self.pty,
                "background": self.background,
                "started_at": self.started_at,
            }
        ).encode()

    def end_record(self) -> bytes:
        """Return what its log ends with."""
        return json.dumps({name: getattr(self, name) for name in _END}).encode()

    @classmethod
    def recover(cls, log: OutputLog, found: Recovered) -> Command:
        """Rebuild a command from its log.

        Raises:
            ValueError: the log was not written by a node.
        """
        about: dict[str, Any] = json.loads(found.about)
        try:
            command = cls(
                about["number"],
                about["exec_id"],
                about["argv"],
                log,
                pty=about["pty"],
                background=about["background"],
                started_at=about["started_at"],
            )
        except KeyError as problem:
            raise ValueError(f"{log.path} does not say {problem}") from None
        if found.end is not None:
            for name, value in json.loads(found.end).items():
                if name in _END:
                    setattr(command, name, value)
            log.close()
        return command


_END = (
    "state",
    "pid",
    "ended_at",
    "exit_code",
    "signal",
    "timed_out",
    "dropped_bytes",
    "cpu_seconds",
    "rss_peak_bytes",
    "reason",
    "stdin_taken",
    "stdin_closed",
)


def exec_payload(
    request: ExecStart, env: dict[str, str], user: str | None, cwd: str | None
) -> bytes:
    """Return the payload of an EXEC frame.

    Raises:
        BadRequest: arguments and environment together are longer than a frame.
    """
    fields: list[tuple[Tag, bytes | int | str]] = [(Tag.ARG, text) for text in request.argv]
    fields += [(Tag.ENV, f"{name}={value}") for name, value in env.items()]
    if cwd:
        fields.append((Tag.CWD, cwd))
    if user:
        fields.append((Tag.USER, user))
    if request.timeout_seconds is not None:
        fields.append((Tag.TIMEOUT_MS, max(1, round(request.timeout_seconds * 1000))))
    fields.append((Tag.LIMIT, request.output_limit_bytes))
    if request.pty is not None:
        fields += [(Tag.ROWS, request.pty.rows), (Tag.COLS, request.pty.cols)]
    payload = wire.pack_fields(fields)
    if len(payload) > wire.FRAME_DATA_MAX_BYTES:
        raise BadRequest(
            f"arguments and environment take {len(payload)} bytes, "
            f"more than {wire.FRAME_DATA_MAX_BYTES}: pass a file or stdin instead"
        )
    return payload


def new_command(number: int, request: ExecStart, directory: str) -> Command:
    """Begin the record of a command, on disk too."""
    command = Command(
        number,
        request.exec_id,
        request.argv,
        OutputLog(f"{directory}/{number}"),
        pty=request.pty is not None,
        background=request.background,
        started_at=time.time(),
    )
    command.log.begin(command.about(), request.stdin or b"")
    return command


def _shortened(argv: list[str]) -> list[str]:
    if len(argv) <= 64 and sum(len(text) for text in argv) <= _ARGV_SHOWN:
        return argv
    shown: list[str] = []
    room = _ARGV_SHOWN
    for text in argv[:64]:
        if room <= 0:
            break
        shown.append(text[:room])
        room -= len(text)
    return [*shown, "..."]
