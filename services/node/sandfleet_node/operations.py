"""What a client may ask of one sandbox, beside its files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common import wire
from sandfleet_common.errors import Conflict, SandboxFailed
from sandfleet_common.states import Origin, State
from sandfleet_common.subjects import Subject
from sandfleet_common.wire import FrameFlag, FrameType, ProcessEntry, Tag

from .commands import Command
from .files import text
from .node import Node
from .sandbox import Sandbox
from .sandboxes import gone

_PROCESSES_SHOWN = 4096
_CMDLINE_SHOWN = 2048

Handler = Callable[[Any], Awaitable[Any]]


class Operations:
    """Serves the table of operations on a node's sandboxes."""

    def __init__(self, node: Node) -> None:
        self._node = node

    def table(self) -> list[tuple[Subject[Any, Any], Handler]]:
        """Return each subject with what serves it."""
        files, on = self._node.files, self._on
        return [
            (s.STOP, self.stop),
            (s.EXTEND, self.extend),
            (s.PAUSE, self.pause),
            (s.RESUME, self.resume),
            (s.SET_PHASE, self.set_phase),
            (s.USAGE, self._node.usage.one),
            (s.SNAPSHOT, self._node.snapshots.snapshot),
            (s.FORK, self._node.forks.fork),
            (s.EXEC_START, self.exec_start),
            (s.EXEC_WAIT, self.exec_wait),
            (s.EXEC_SIGNAL, self.exec_signal),
            (s.EXEC_RESIZE, self.exec_resize),
            (s.EXEC_LIST, self.exec_list),
            (s.EXEC_ATTACH, self.exec_attach),
            (s.PROCESS_LIST, self.process_list),
            (s.FILE_STAT, on(files.stat)),
            (s.FILE_LIST, on(files.list)),
            (s.FILE_READ, on(files.read)),
            (s.FILE_WRITE, on(files.write)),
            (s.FILE_MKDIR, on(files.make_dir)),
            (s.FILE_REMOVE, on(files.remove)),
            (s.FILE_RENAME, on(files.rename)),
            (s.FILE_WATCH, on(self._node.watches.watch)),
            (s.FILE_UNWATCH, self.unwatch),
        ]

    def _on(self, operation: Callable[[Sandbox, Any], Awaitable[Any]]) -> Handler:
        async def serve(body: Any) -> Any:
            sandbox = await self._live(body.sandbox_id)
            try:
                async with self._node.pausing.using(sandbox):
                    return await operation(sandbox, body)
            except SandboxFailed:
                if sandbox.ending is None:
                    raise
                raise gone(sandbox.info()) from None  # it ended meanwhile: this says why

        return serve

    async def _awake(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox that runs; one that is paused is resumed."""
        sandbox = await self._live(sandbox_id)
        await self._node.pausing.awake(sandbox)
        return sandbox

    async def _live(self, sandbox_id: str) -> Sandbox:
        """Return a sandbox that runs or is paused; one that is starting is waited for."""
        sandbox = self._node.sandboxes.get(sandbox_id)
        self._node.moving.demand_stays(sandbox_id)
        if sandbox.starting is not None:
            await asyncio.wait({sandbox.starting})
        if sandbox.state is State.PREPARING or sandbox.failure is not None:
            raise sandbox.failure or SandboxFailed("the sandbox did not start")
        return sandbox

    # ------------------------------------------------------------- lifecycle

    async def stop(self, body: m.SandboxStop) -> m.SandboxInfo:
        """End a sandbox."""
        sandbox = self._node.sandboxes.find(body.sandbox_id)
        if sandbox is None:
            return self._node.sandboxes.ended(body.sandbox_id)
        await self._node.ending.end(sandbox, State.STOPPED, body.reason, Origin.USER)
        await self._node.records.settled()
        return sandbox.info()

    async def extend(self, body: m.SandboxExtend) -> m.SandboxInfo:
        """Move a sandbox's end."""
        sandbox = await self._awake(body.sandbox_id)
        sandbox.agent()
        now = time.time()
        sandbox.touch()
        sandbox.expires_at = now + body.ttl_seconds
        sandbox.version += 1
        self._node.sandboxes.keep(sandbox)
        self._node.sandboxes.note(sandbox)
        self._node.sandboxes.watch(sandbox, now)
        await self._node.records.settled()
        return sandbox.info()

    async def set_phase(self, body: m.SandboxSetPhase) -> m.Ok:
        """Say which phase a sandbox is in; a paused one stays paused."""
        sandbox = await self._live(body.sandbox_id)
        sandbox.agent()
        self._node.phases.set(sandbox, body.phase)
        return m.Ok()

    async def pause(self, body: m.SandboxPause) -> m.SandboxInfo:
        """Freeze a sandbox; wait for its memory to be given back as long as the caller likes."""
        sandbox = await self._live(body.sandbox_id)
        await self._node.pausing.pause(sandbox)
        await self._node.pausing.given_back(sandbox, body.wait_seconds)
        await self._node.records.settled()
        return sandbox.info()

    async def resume(self, body: m.SandboxResume) -> m.SandboxInfo:
        """Let a paused sandbox go on."""
        sandbox = await self._live(body.sandbox_id)
        await self._node.pausing.resume(sandbox)
        await self._node.records.settled()
        return sandbox.info()

    # -------------------------------------------------------------- commands

    async def exec_start(self, body: m.ExecStart) -> m.ExecState:
        """Start a command, and wait for its end as long as the caller likes."""
        began = time.monotonic()
        sandbox = await self._live(body.sandbox_id)
        async with self._node.pausing.using(sandbox):
            sandbox.touch()
            self._node.phases.on_command(sandbox, background=body.background)
            command = await sandbox.start_command(body)
        self._node.metrics.commands.inc()
        state = await self._answer(sandbox, command, 0, body.wait_seconds)
        self._node.metrics.command.observe(time.monotonic() - began)
        return state

    async def exec_wait(self, body: m.ExecWait) -> m.ExecState:
        """Wait for a command to end, and read its output.

        Waiting for one that runs resumes a paused sandbox; reading what is there does not.
        """
        sandbox = await self._live(body.sandbox_id)
        command = sandbox.commands.get(body.exec_id)
        if command.is_running and body.wait_seconds > 0:
            await self._node.pausing.awake(sandbox)
        sandbox.touch()
        return await self._answer(sandbox, command, body.position, body.wait_seconds)

    async def _answer(
        self, sandbox: Sandbox, command: Command, position: int, wait_seconds: float
    ) -> m.ExecState:
        if wait_seconds > 0 and command.is_running:
            if command.finished is None:
                command.finished = asyncio.get_running_loop().create_future()
            await asyncio.wait({command.finished}, timeout=wait_seconds)
        if command.state == "lost" and sandbox.ending is not None:
            raise gone(sandbox.info())
        try:
            return command.as_message(sandbox.id, position=position)
        except FileNotFoundError:
            if sandbox.ending is not None:
                raise gone(sandbox.info()) from None
            raise Conflict("the command's output is no longer on record") from None

    async def exec_signal(self, body: m.ExecSignal) -> m.ExecState:
        """Signal a command. One that has ended already is no error."""
        sandbox = await self._awake(body.sandbox_id)
        command = sandbox.commands.get(body.exec_id)
        sandbox.touch()
        if command.is_running:
            command.is_killed = True
            sandbox.agent().send(
                FrameType.SIGNAL,
                command.number,
                flags=FrameFlag.TREE if body.tree else FrameFlag.NONE,
                payload=wire.pack_fields([(Tag.SIGNAL, body.signal)]),
            )
        return command.as_message(sandbox.id)

    async def exec_resize(self, body: m.ExecResize) -> m.Ok:
        """Resize a command's terminal."""
        sandbox = await self._awake(body.sandbox_id)
        command = sandbox.commands.get(body.exec_id)
        if not command.pty:
            raise Conflict(f"command {body.exec_id} has no terminal")
        sandbox.touch()
        sandbox.agent().send(
            FrameType.RESIZE,
            command.number,
            payload=wire.pack_fields([(Tag.ROWS, body.size.rows), (Tag.COLS, body.size.cols)]),
        )
        return m.Ok()

    async def exec_list(self, body: m.ExecList) -> m.ExecPage:
        """Return a sandbox's commands, oldest first."""
        sandbox = await self._live(body.sandbox_id)
        commands = sorted(sandbox.commands.by_exec_id.values(), key=lambda c: c.number)
        return m.ExecPage(commands=[c.as_message(sandbox.id, is_listed=True) for c in commands])

    async def exec_attach(self, body: m.ExecAttach) -> m.ExecState:
        """Open a stream of a command's output and input."""
        sandbox = await self._awake(body.sandbox_id)
        sandbox.agent()
        command = sandbox.commands.get(body.exec_id)
        sandbox.touch()
        self._node.streams.attach(sandbox, command, body)
        return command.as_message(sandbox.id)

    async def process_list(self, body: m.ProcessList) -> m.ProcessPage:
        """Return all processes inside."""
        sandbox = await self._live(body.sandbox_id)
        async with self._node.pausing.using(sandbox):
            frames = await sandbox.agent().request(FrameType.PS, sandbox.next_id())
        names = sandbox.commands.names()
        found = [
            value
            for frame in frames
            for tag, value in wire.unpack_fields(frame.payload)
            if tag is Tag.PROCESS and isinstance(value, ProcessEntry)
        ]
        return m.ProcessPage(processes=[_process(p, names) for p in found[:_PROCESSES_SHOWN]])

    async def unwatch(self, body: m.FileUnwatch) -> m.Ok:
        """End a watch."""
        return self._node.watches.unwatch(await self._live(body.sandbox_id), body.watch)


def _process(entry: ProcessEntry, names: dict[int, str]) -> m.ProcessInfo:
    argv: list[str] = []
    room = _CMDLINE_SHOWN
    for argument in entry.arguments:
        if room <= 0:
            break
        argv.append(text(argument[:room]))
        room -= len(argument)
    return m.ProcessInfo(
        pid=entry.pid,
        parent_pid=entry.ppid,
        uid=entry.uid,
        exec_id=names.get(entry.command),
        state=entry.state,
        rss_bytes=entry.rss_bytes,
        cpu_seconds=entry.cpu_us / 1e6,
        argv=argv,
    )
