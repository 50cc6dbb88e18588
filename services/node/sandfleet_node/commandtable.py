"""All commands of one sandbox: started once each, fed, ended, remembered for a while."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sandfleet_common import wire
from sandfleet_common.errors import Busy, Conflict, FileProblem, NotFound
from sandfleet_common.logs import Logger
from sandfleet_common.messages import ExecStart
from sandfleet_common.wire import Frame, FrameFlag, FrameType, Tag

from .agentlink import AgentLink, error_of
from .commands import Command, exec_payload, new_command
from .outputlog import LogDamaged, OutputLog

_FORGOTTEN_KEPT = 1024
_SIGKILL = 9
_SHELL_SIGKILL = 137
RUNNING_MAX = 1000
"""Commands of one sandbox that run at once; the agent has room for 1024 records."""


@dataclass(frozen=True, slots=True)
class Keeping:
    """How much of what has ended is kept in one sandbox."""

    commands: int
    output_bytes: int


class CommandTable:
    """The commands of one sandbox, by exec id and by their number on the agent's channel."""

    __slots__ = (
        "_by_number",
        "_ended",
        "_ended_bytes",
        "_forgotten",
        "_is_made",
        "_keeping",
        "_log",
        "_moved",
        "_oom_kills",
        "_oom_seen",
        "by_exec_id",
        "directory",
        "foreground",
        "running",
    )

    def __init__(
        self, directory: str, keeping: Keeping, oom_kills: Callable[[], int], log: Logger
    ) -> None:
        self.directory = directory
        self.by_exec_id: dict[str, Command] = {}
        self.running = 0
        self.foreground = 0
        """Running commands that keep the sandbox from being idle."""
        self._by_number: dict[int, Command] = {}
        self._ended: deque[Command] = deque()
        self._ended_bytes = 0
        self._forgotten: deque[str] = deque(maxlen=_FORGOTTEN_KEPT)
        self._moved: list[Command] = []
        self._keeping = keeping
        self._oom_kills = oom_kills
        self._oom_seen = 0
        self._is_made = False
        self._log = log

    def get(self, exec_id: str) -> Command:
        """Return a command.

        Raises:
            NotFound: there is none, or its record was dropped to make room.
        """
        command = self.by_exec_id.get(exec_id)
        if command is not None:
            return command
        if exec_id in self._forgotten:
            raise NotFound(f"command {exec_id} ended long ago and is no longer on record")
        raise NotFound(f"this sandbox has no command {exec_id}")

    async def start(
        self,
        link: AgentLink,
        number: Callable[[], int],
        request: ExecStart,
        env: dict[str, str],
        user: str | None,
        cwd: str | None,
    ) -> Command:
        """Start a command unless its exec id is known, and return it once it runs or has failed.

        Raises:
            NotFound: there is no such program, user or directory.
            FileProblem: it could not be started; says why.
            Busy: too many commands run.
        """
        known = self.by_exec_id.get(request.exec_id)
        if known is None:
            if request.exec_id in self._forgotten:
                raise Conflict(f"command {request.exec_id} ended long ago; use a fresh exec id")
            payload = exec_payload(request, env, user, cwd)
            known = self._begin(link, number(), request, payload)
        if known.started is not None:
            await asyncio.shield(known.started)
        return known

    def _begin(self, link: AgentLink, number: int, request: ExecStart, payload: bytes) -> Command:
        if self.running >= RUNNING_MAX:
            raise Busy(f"{self.running} commands run in this sandbox", retry_after_seconds=1)
        if not self._is_made:
            Path(self.directory).mkdir(0o700, parents=True, exist_ok=True)
            self._is_made = True
        command = new_command(number, request, self.directory)
        command.started = asyncio.get_running_loop().create_future()
        self._add(command)
        flags = FrameFlag.NONE
        if request.stdin is not None or request.stdin_open:
            flags |= FrameFlag.STDIN
        else:
            command.stdin_closed = request.pty is None
        if request.pty is not None:
            flags |= FrameFlag.PTY
        try:
            link.send(FrameType.EXEC, number, flags=flags, payload=payload)
            if request.stdin is not None:
                command.feed(link, 0, request.stdin, closes=True)
        except Busy:
            self._drop_unstarted(command)
            raise
        return command

    def _add(self, command: Command) -> None:
        self.by_exec_id[command.exec_id] = command
        self._by_number[command.number] = command
        self.running += 1
        self.foreground += not command.background

    def _drop_unstarted(self, command: Command) -> None:
        self._count_out(command)
        self._by_number.pop(command.number, None)
        self.by_exec_id.pop(command.exec_id, None)
        command.log.remove()

    def _count_out(self, command: Command) -> None:
        self.running -= 1
        self.foreground -= not command.background

    # ------------------------------------------------------- from the agent

    def on_started(self, frame: Frame) -> None:
        """Take note that a command runs."""
        command = self._by_number.get(frame.id)
        if command is None:
            return
        command.pid = _number(frame, Tag.PID)
        _settle(command.started)
        command.started = None

    def on_error(self, frame: Frame) -> None:
        """Drop a command that could not be started."""
        command = self._by_number.get(frame.id)
        if command is None or command.started is None:
            return
        self._drop_unstarted(command)
        problem = error_of(frame)
        error = (
            NotFound(problem.message, argv0=command.argv[0])
            if problem.fields.get("errno") == "ENOENT"
            else FileProblem(problem.message, path=command.argv[0], **problem.fields)
        )
        command.started.set_exception(error)
        command.started.exception()  # whoever asked may have gone

    def on_output(self, frame: Frame) -> None:
        """Keep what a command printed.

        Raises:
            ValueError: the output does not follow what came before.
        """
        command = self._by_number.get(frame.id)
        if command is None:
            return
        end = frame.position + len(frame.payload)
        if command.is_running and not command.is_mute:
            try:
                command.log.append(
                    frame.position, bool(frame.flags & FrameFlag.STDERR), frame.payload
                )
            except OSError as problem:
                command.is_mute = True
                command.reason = f"its output could not be kept any more: {problem.strerror}"
                self._log.warning("command.output_lost", exec=command.exec_id, error=str(problem))
        if command.is_mute:
            command.dropped_bytes += len(frame.payload)
        self._ack_later(command, end)

    def _ack_later(self, command: Command, end: int) -> None:
        if end > command.acked:
            command.acked = end
        self._moved.append(command)

    def on_stdin_ack(self, frame: Frame) -> None:
        """Take note that a command took input."""
        command = self._by_number.get(frame.id)
        if command is None:
            return
        command.stdin_taken = max(command.stdin_taken, min(frame.position, command.stdin_sent))
        if frame.flags & FrameFlag.EOF:
            command.stdin_closed = True
        command.wake()

    def on_exit(self, link: AgentLink, frame: Frame) -> None:
        """Close the record of a command that has ended; all its output is here."""
        command = self._by_number.pop(frame.id, None)
        if command is None or not command.is_running:
            link.send(FrameType.FORGET, frame.id)
            return
        for tag, value in wire.unpack_fields(frame.payload):
            if not isinstance(value, int):
                continue
            if tag is Tag.CODE:
                command.exit_code = value
            elif tag is Tag.SIGNAL:
                command.signal = value
            elif tag is Tag.DROPPED:
                command.dropped_bytes += value
            elif tag is Tag.CPU_US:
                command.cpu_seconds = value / 1e6
            elif tag is Tag.RSS_BYTES:
                command.rss_peak_bytes = value
        command.timed_out = bool(frame.flags & FrameFlag.TIMED_OUT)
        self._explain(command)
        self._finish(command, "exited")
        link.send(FrameType.FORGET, command.number)

    def _explain(self, command: Command) -> None:
        if command.timed_out:
            command.reason = "it ran out of time and was killed with all that it had started"
        elif command.signal == _SIGKILL or command.exit_code == _SHELL_SIGKILL:
            kills = self._oom_kills()
            if kills > self._oom_seen and not command.is_killed:
                command.reason = "the kernel killed it: the sandbox was out of memory"
            self._oom_seen = max(kills, self._oom_seen)

    def _finish(self, command: Command, state: str) -> None:
        command.state = "exited" if state == "exited" else "lost"
        command.ended_at = time.time()
        command.stdin_closed = True
        self._count_out(command)
        _settle(command.started)
        command.started = None
        try:
            command.log.finish(command.end_record())
        except OSError as problem:
            command.log.close()
            self._log.warning("command.end_lost", exec=command.exec_id, error=str(problem))
        _settle(command.finished)
        command.finished = None
        command.wake()
        self._remember(command)

    def _remember(self, command: Command) -> None:
        self._ended.append(command)
        self._ended_bytes += command.log.size_bytes()
        while len(self._ended) > self._keeping.commands or (
            self._ended_bytes > self._keeping.output_bytes and len(self._ended) > 1
        ):
            oldest = self._ended.popleft()
            self._ended_bytes -= oldest.log.size_bytes()
            oldest.log.remove()
            self.by_exec_id.pop(oldest.exec_id, None)
            self._forgotten.append(oldest.exec_id)

    def settle(self, link: AgentLink) -> None:
        """Acknowledge what has been written, and tell the watchers: once for many frames."""
        moved, self._moved = self._moved, []
        for command in dict.fromkeys(moved):
            if command.is_running:
                link.send(FrameType.ACK, command.number, position=command.acked)
            command.wake()

    def end_all(self, reason: str) -> None:
        """Give up what runs: the sandbox has ended, nothing of it will be heard again."""
        for command in [c for c in self.by_exec_id.values() if c.is_running]:
            command.reason = reason
            self._by_number.pop(command.number, None)
            self._finish(command, "lost")

    def names(self) -> dict[int, str]:
        """Return exec ids by number."""
        return {command.number: exec_id for exec_id, command in self.by_exec_id.items()}

    def close(self) -> None:
        """Close the files of commands that go on without this service."""
        for command in self.by_exec_id.values():
            command.log.close()

    # ------------------------------------------------------ after a restart

    def recover(self) -> None:
        """Read the logs an earlier service left."""
        try:
            paths = sorted(Path(self.directory).iterdir(), key=lambda path: int(path.name))
        except FileNotFoundError:
            return
        self._is_made = True
        for path in paths:
            try:
                log, found = OutputLog.recover(str(path))
                command = Command.recover(log, found)
            except (LogDamaged, ValueError) as problem:
                self._log.warning("command.log_damaged", path=str(path), error=str(problem))
                path.unlink()
                continue
            if command.is_running:
                self._add(command)
                command.stdin_sent = -1  # until the agent has said what it has
            else:
                self.by_exec_id[command.exec_id] = command
                self._remember(command)

    def resume(self, link: AgentLink, told: list[Frame]) -> None:
        """Match what the agent knows with what is on record, and go on from there."""
        known = {frame.id: frame for frame in told}
        for command in [c for c in self.by_exec_id.values() if c.is_running]:
            frame = known.pop(command.number, None)
            if frame is None:
                # The request never reached the agent: whoever sent it will send it again.
                self._drop_unstarted(command)
                continue
            command.pid = _number(frame, Tag.PID)
            command.is_mute = frame.position > command.log.end
            command.stdin_sent = command.stdin_taken = _number(frame, Tag.STDIN_AT)
            stdin = command.log.stdin()
            if stdin:
                command.feed(link, 0, stdin, closes=True)
            self._ack_later(command, command.log.end)
        for number in known:
            if number not in self._by_number:
                link.send(
                    FrameType.SIGNAL,
                    number,
                    flags=FrameFlag.TREE,
                    payload=wire.pack_fields([(Tag.SIGNAL, _SIGKILL)]),
                )
        self.settle(link)


def _number(frame: Frame, wanted: Tag) -> int:
    for tag, value in wire.unpack_fields(frame.payload):
        if tag is wanted and isinstance(value, int):
            return value
    return 0


def _settle(future: asyncio.Future[None] | None) -> None:
    if future is not None and not future.done():
        future.set_result(None)
