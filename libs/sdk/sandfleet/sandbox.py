"""A sandbox: run commands in it, move files, end it.

async with await client.create() as sandbox:
    result = await sandbox.run("python3 -c 'print(6 * 7)'")
    print(result.text)
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Self

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import NodeLost, SandboxGone, SandfleetError, TimedOut, Unavailable
from sandfleet_common.ids import new_exec_id, new_snapshot_id

from .calls import CALL_SECONDS, call
from .command import HOLD_SECONDS, AsyncCommand
from .connection import Connection
from .files import AsyncFiles
from .forking import fork
from .phase import AsyncPhase
from .results import Result, result_of
from .snapshot import HOLD_SECONDS as HOLD_SNAPSHOT_SECONDS
from .snapshot import AsyncSnapshot, take

SHELL = ("/bin/sh", "-c")
CLEANUP_SECONDS = 10.0
"""What ending a sandbox or a command may take when the caller is on its way out."""
_STOPS_AT_ONCE = 16
INPUT_ONLY_WINDOW_BYTES = 4096
"""Of a stream that is there for its input; its output is read otherwise."""


def argv_of(command: str | Sequence[str]) -> list[str]:
    """Return what to execute: a list as it is, a string under `/bin/sh -c`."""
    return [*SHELL, command] if isinstance(command, str) else list(command)


class AsyncSandbox:
    """A sandbox. Leaving its `async with` block ends it."""

    def __init__(self, connection: Connection, info: m.SandboxInfo) -> None:
        self._connection = connection
        self._info = info
        self._files = AsyncFiles(connection, info.sandbox_id)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id} {self._info.state}>"

    @property
    def id(self) -> str:
        """Its name, which also names its node."""
        return self._info.sandbox_id

    @property
    def files(self) -> AsyncFiles:
        """Its files."""
        return self._files

    @property
    def info_now(self) -> m.SandboxInfo:
        """What was known of it when it was last asked; `info()` asks."""
        return self._info

    # ---------------------------------------------------------------- commands

    async def run(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  kept inside the sandbox
        input: bytes | str | None = None,
        check: bool = False,
        output_limit: int = m.OUTPUT_LIMIT_BYTES,
    ) -> Result:
        """Run a command and return how it ended and what it printed.

            result = await sandbox.run("ls -l | wc -l", cwd="/etc")
            result = await sandbox.run(["python3", "-"], input=program, timeout=60)

        A string runs under `/bin/sh -c`, a list as it is. After `timeout` seconds
        the command and all it started are killed, and the result has `timed_out`
        and the output so far; None lets it run as long as the sandbox does. Output
        beyond `output_limit` bytes is dropped and counted. If the caller is
        cancelled, the command is killed.

        Raises:
            CommandFailed: `check` was given and it did not exit with 0.
            NotFound: there is no such program.
            SandboxGone, NodeLost: the sandbox ended first; says why.
            Interrupted: its node cannot tell how it ended.
        """
        data = input.encode() if isinstance(input, str) else input
        is_long = data is not None and len(data) > m.INLINE_BYTES
        body = self._start_request(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            output_limit=output_limit,
            stdin=None if is_long else data,
            stdin_open=is_long,
            wait_seconds=0 if is_long else HOLD_SECONDS,
        )
        try:
            state = await self._start(body)
            if state.state == "exited" and _is_complete(state):
                result = result_of(state, state.output)
            else:
                result = await self._finish(state, data if is_long else None)
        except asyncio.CancelledError:
            await self._kill_quietly(body.exec_id)
            raise
        return result.check() if check else result

    async def start(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  kept inside the sandbox
        stdin: bool = False,
        background: bool = False,
        output_limit: int = m.OUTPUT_LIMIT_BYTES,
        exec_id: str | None = None,
    ) -> AsyncCommand:
        """Start a command and return at once; it runs on whether or not anybody watches.

            command = await sandbox.start("make -j4")
            async for chunk in command:
                print(chunk.data.decode(), end="")

        With `stdin` its input stays open for `command.write`. A `background` command
        does not keep its sandbox from being idle. The same `exec_id` again starts
        nothing and returns the command it named before.
        """
        body = self._start_request(
            command,
            env=env,
            cwd=cwd,
            user=user,
            timeout=timeout,
            output_limit=output_limit,
            stdin_open=stdin,
            background=background,
            exec_id=exec_id,
        )
        return AsyncCommand(self._connection, await self._start(body))

    async def pty(
        self,
        command: str | Sequence[str] = ("/bin/sh", "-i"),
        *,
        rows: int = 24,
        cols: int = 80,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        user: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109  kept inside the sandbox
        exec_id: str | None = None,
    ) -> AsyncCommand:
        r"""Start a command on a terminal of its own, a shell unless another is named.

        shell = await sandbox.pty()
        await shell.write("echo hello\n")
        """
        body = self._start_request(
            command,
            env={"TERM": "xterm-256color", **(env or {})},
            cwd=cwd,
            user=user,
            timeout=timeout,
            stdin_open=True,
            exec_id=exec_id,
            pty=m.PtySize.of(rows=rows, cols=cols),
        )
        return AsyncCommand(self._connection, await self._start(body))

    async def attach(self, exec_id: str, *, position: int = 0) -> AsyncCommand:
        """Return a command that was started before, here or elsewhere.

        Its output begins at `position`: with the number of bytes a former reader
        had, nothing is missed and nothing comes twice.

        Raises:
            NotFound: the sandbox has no such command.
        """
        body = m.ExecWait.of(sandbox_id=self.id, exec_id=exec_id, position=position)
        state = await call(self._connection.transport, s.EXEC_WAIT, body)
        return AsyncCommand(self._connection, state, position=position)

    async def commands(self) -> list[m.ExecState]:
        """Return its commands, those that have ended included, oldest first."""
        body = m.ExecList(sandbox_id=self.id)
        return (await call(self._connection.transport, s.EXEC_LIST, body)).commands

    async def processes(self) -> list[m.ProcessInfo]:
        """Return all processes in it, whoever started them."""
        body = m.ProcessList(sandbox_id=self.id)
        return (await call(self._connection.transport, s.PROCESS_LIST, body)).processes

    # -------------------------------------------------------------------- life

    async def info(self) -> m.SandboxInfo:
        """Ask what is known of it now. Works after its end, too, and is not activity."""
        body = m.SandboxGet(sandbox_id=self.id)
        self._info = await call(self._connection.transport, s.SANDBOX_GET, body)
        return self._info

    async def extend(self, ttl: float) -> m.SandboxInfo:
        """Let it live `ttl` seconds from now."""
        body = m.SandboxExtend.of(sandbox_id=self.id, ttl_seconds=ttl)
        self._info = await call(self._connection.transport, s.EXTEND, body)
        return self._info

    async def pause(self, *, wait: float = 0) -> m.SandboxInfo:
        """Freeze it and give its memory back; processes, files and terminals stay as they are.

            await sandbox.pause()           # returns once it is frozen
            await sandbox.pause(wait=10)    # returns once its memory has been given back

        Any operation resumes it, asking about it does not. Its time to live does not
        count meanwhile, `paused_ttl_seconds` does. Pausing a paused one is no error.
        `wait` is how many seconds to wait for its memory at most, up to 60.

        Raises:
            SandboxGone, NodeLost: it has ended.
        """
        body = m.SandboxPause.of(sandbox_id=self.id, wait_seconds=wait)
        self._info = await call(
            self._connection.transport, s.PAUSE, body, within=CALL_SECONDS + wait, held=wait
        )
        return self._info

    async def resume(self) -> m.SandboxInfo:
        """Let it go on, as any operation does. Resuming one that runs is no error."""
        body = m.SandboxResume(sandbox_id=self.id)
        self._info = await call(self._connection.transport, s.RESUME, body)
        return self._info

    async def snapshot(
        self,
        *,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        description: str = "",
        scrub: bool = True,
        wait: bool = True,
    ) -> AsyncSnapshot:
        """Keep what it has written so far, to create other sandboxes from; it goes on.

            snapshot = await sandbox.snapshot(name="before-tests")
            other = await client.create(SandboxSpec(environment=snapshot.id))

        It stands still for some milliseconds. Files are kept, processes and memory are not.
        Secrets and build residue are left out by the node's rules, unless `scrub` is False;
        `info_now.scrubbed` says which. Without `wait` the snapshot may not be ready yet.

        Raises:
            SandboxGone, NodeLost: it has ended.
            SandfleetError: the snapshot failed; says in which phase and why.
        """
        body = m.SandboxSnapshot.of(
            sandbox_id=self.id,
            snapshot_id=new_snapshot_id(self._info.node),
            name=name,
            labels=dict(labels or {}),
            description=description,
            scrub=scrub,
            wait_seconds=HOLD_SNAPSHOT_SECONDS if wait else 0,
        )
        return AsyncSnapshot(self._connection, await take(self._connection, body))

    async def fork(
        self,
        count: int = 1,
        *,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        ttl_seconds: float | None = None,
        deadline: float = 60,
    ) -> AsyncFork:
        """Create sandboxes on its node that begin with its files, all with those of one moment.

            async with await sandbox.fork(8) as fork:
                for child in fork.children:
                    ...

        What is not given is as in this sandbox. Children do not see each other's writes.
        `fork.failures` says why some could not be created.

        Raises:
            SandboxGone, NodeLost: it has ended.
            SandfleetError: its files could not be kept.
        """
        changes = m.ForkChanges.of(
            env=None if env is None else dict(env),
            labels=None if labels is None else dict(labels),
            ttl_seconds=ttl_seconds,
        )
        told = await fork(self._connection, self.id, self._info.node, count, changes, deadline)
        ready = [o.info for o in told.outcomes if o.status == "ready" and o.info is not None]
        children = [AsyncSandbox(self._connection, info) for info in ready]
        return AsyncFork(self._connection, children, told)

    async def migrate(self, node: str | None = None, *, deadline: float = 120) -> m.SandboxInfo:
        """Move it to another node, or to the named one; it keeps its id and its files.

        Its processes end, and so do its commands.

        Raises:
            NoCapacity: no node took it by the deadline; it goes on where it was.
            NotFound: there is no such node.
        """
        body = m.SandboxMigrate.of(sandbox_id=self.id, node=node, deadline_seconds=deadline)
        self._info = await call(
            self._connection.transport,
            s.SANDBOX_MIGRATE,
            body,
            within=deadline + 5,
            held=deadline,
        )
        return self._info

    async def set_phase(self, phase: m.SandboxPhase | str) -> None:
        """Say what it is doing, which decides its share of the CPU where that is scarce.

        "waiting", "active", "scoring", or "auto": active while a command runs.
        """
        body = m.SandboxSetPhase.of(sandbox_id=self.id, phase=phase)
        await call(self._connection.transport, s.SET_PHASE, body)

    def scoring(self) -> AsyncPhase:
        """Return a block in which its result is judged: it goes first, somebody waits for it.

        async with sandbox.scoring():
            result = await sandbox.run("pytest -q")
        """
        return AsyncPhase(self._connection, self.id, m.SandboxPhase.SCORING)

    async def usage(self) -> m.SandboxUsage:
        """Return what it has used so far: CPU, memory, disk, network.

        Asking is no activity and resumes nothing. For a while it can be asked after its
        end, too.

        Raises:
            SandboxGone: it ended, and what it used is not known any more.
        """
        body = m.SandboxUsageGet(sandbox_id=self.id)
        return await call(self._connection.transport, s.USAGE, body)

    async def stop(self, *, reason: str | None = None) -> m.SandboxInfo:
        """End it. Ending one that has ended already is no error."""
        given = {} if reason is None else {"reason": reason}
        body = m.SandboxStop.of(sandbox_id=self.id, **given)
        try:
            self._info = await call(self._connection.transport, s.STOP, body)
        except (SandboxGone, NodeLost):
            return await self.info()
        return self._info

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            async with asyncio.timeout(CALL_SECONDS if kind is None else CLEANUP_SECONDS):
                await self.stop()
        except TimeoutError:
            if kind is None:
                raise TimedOut(f"{self.id} was not ended in time; its TTL will end it") from None
        except SandfleetError as problem:
            # It is gone already, or the caller's own error matters more.
            if kind is None and isinstance(problem, Unavailable):
                raise

    # ---------------------------------------------------------------- internal

    def _start_request(
        self,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None,
        exec_id: str | None = None,
        timeout: float | None,
        output_limit: int = m.OUTPUT_LIMIT_BYTES,
        **fields: Any,
    ) -> m.ExecStart:
        return m.ExecStart.of(
            sandbox_id=self.id,
            exec_id=exec_id or new_exec_id(),
            argv=argv_of(command),
            env=dict(env) if env else {},
            timeout_seconds=timeout,
            output_limit_bytes=output_limit,
            **fields,
        )

    async def _start(self, body: m.ExecStart) -> m.ExecState:
        return await call(
            self._connection.transport,
            s.EXEC_START,
            body,
            within=CALL_SECONDS + body.wait_seconds,
            held=body.wait_seconds,
        )

    async def _finish(self, state: m.ExecState, data: bytes | None) -> Result:
        if data is None:
            return await AsyncCommand(self._connection, state).wait()
        window = INPUT_ONLY_WINDOW_BYTES
        command = AsyncCommand(self._connection, state, window_bytes=window)
        async with command:
            await command.feed(data)
            return await command.wait()

    async def _kill_quietly(self, exec_id: str) -> None:
        body = m.ExecSignal(sandbox_id=self.id, exec_id=exec_id, signal=9, tree=True)
        try:
            async with asyncio.timeout(CLEANUP_SECONDS):
                await call(self._connection.transport, s.EXEC_SIGNAL, body, within=CLEANUP_SECONDS)
        except (SandfleetError, TimeoutError):
            return  # its own time limit, or the sandbox's end, ends it


def _is_complete(state: m.ExecState) -> bool:
    return sum([len(chunk.data) for chunk in state.output]) >= state.output_bytes


class AsyncFork:
    """What became of the children of a fork. Leaving its `async with` block ends them."""

    def __init__(
        self, connection: Connection, children: Sequence[AsyncSandbox], told: m.SandboxForked
    ) -> None:
        self._connection = connection
        self._children = list(children)
        self._told = told

    @property
    def snapshot_id(self) -> str:
        """The moment that they share."""
        return self._told.snapshot.snapshot_id

    @property
    def children(self) -> list[AsyncSandbox]:
        """Those that are ready, in the order asked."""
        return self._children

    @property
    def outcomes(self) -> list[m.Outcome]:
        """What became of each, in the order asked."""
        return self._told.outcomes

    @property
    def failures(self) -> list[SandfleetError]:
        """Why some are not."""
        return [o.failure.to_error() for o in self._told.outcomes if o.failure is not None]

    async def stop(self) -> None:
        """End all children; those that have ended are no error."""
        gate = asyncio.Semaphore(_STOPS_AT_ONCE)

        async def end(child: AsyncSandbox) -> None:
            async with gate:
                await child.stop(reason="its fork is over")

        await asyncio.gather(*(end(child) for child in self._children))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()
