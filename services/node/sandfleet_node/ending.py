"""How a sandbox ends: all of it is released, then its record says why it ended."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Executor

from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.states import TERMINAL, Origin, State

from .cgroups import Cgroups
from .core import death
from .disk import Disks
from .janitor import Janitor
from .keeper import Keeper
from .launcher import Launcher
from .places import Places
from .sandbox import Sandbox
from .sandboxes import Sandboxes
from .uids import IdRanges

KILL_SECONDS = 2.0
"""After so long without the launcher's word the processes are counted, and killed again."""
GIVE_UP_SECONDS = 60.0
_REMOVE_TRIES = 20
LAUNCHER_DIED = "the launcher of its node died"


class Ending:
    """Ends sandboxes, each once, whoever asks and however often."""

    def __init__(
        self,
        sandboxes: Sandboxes,
        keeper: Keeper,
        cgroups: Cgroups,
        disks: Disks,
        ranges: IdRanges,
        places: Places,
        janitor: Janitor,
        pool: Executor,
        tasks: Tasks,
        log: Logger,
    ) -> None:
        self._sandboxes = sandboxes
        self._keeper = keeper
        self._cgroups = cgroups
        self._disks = disks
        self._ranges = ranges
        self._places = places
        self._janitor = janitor
        self._pool = pool
        self._tasks = tasks
        self._log = log
        self.on_end: list[Callable[[Sandbox], None]] = []
        """Called when a sandbox begins to end: streams, watches and uploads close."""

    def begin(
        self, sandbox: Sandbox, state: State, reason: str | None, origin: Origin | None
    ) -> asyncio.Task[None]:
        """Begin to end a sandbox in STOPPED or FAILED; return the task, which may be an older one.

        Args:
            sandbox: which.
            state: how it ends.
            reason: why; None: it died, and what is left of it tells why.
            origin: who brought it about; None with the reason.
        """
        if sandbox.ending is None:
            starting = sandbox.starting
            if starting is not None and starting is not asyncio.current_task():
                starting.cancel()
            if state is State.STOPPED and sandbox.state in (State.RUNNING, State.PAUSED):
                self._sandboxes.move(sandbox, State.STOPPING, reason=reason, origin=origin)
                # So that a service that comes after a kill gives the same reason.
                self._sandboxes.keep(sandbox)
            sandbox.reason, sandbox.origin = reason, origin
            sandbox.ending = self._tasks.start(
                self._end(sandbox, state, reason, origin), f"end {sandbox.id}"
            )
        return sandbox.ending

    async def end(
        self, sandbox: Sandbox, state: State, reason: str | None, origin: Origin | None
    ) -> None:
        """End a sandbox and wait until all of it is released."""
        await asyncio.shield(self.begin(sandbox, state, reason, origin))

    def on_exit(self, sandbox_id: str, status: int) -> None:
        """Take note that a sandbox has gone entirely, as its launcher says."""
        sandbox = self._sandboxes.find(sandbox_id)
        if sandbox is None:
            launcher = self._keeper.launcher
            if launcher is not None:
                launcher.forget(sandbox_id)
            return
        sandbox.status = status
        if not sandbox.gone.done():
            sandbox.gone.set_result(None)
        self.begin(sandbox, State.FAILED, None, None)

    def on_closed(self, sandbox: Sandbox, problem: str | None) -> None:
        """End a sandbox whose agent has closed its channel."""
        if sandbox.ending is None and sandbox.state is not State.PREPARING:
            reason = f"its agent broke the protocol: {problem}" if problem else None
            self.begin(sandbox, State.FAILED, reason, Origin.AGENT if problem else None)

    async def _end(
        self, sandbox: Sandbox, state: State, reason: str | None, origin: Origin | None
    ) -> None:
        if reason is not None:
            self._close(sandbox, reason)
        launcher = self._keeper.launcher
        starting = sandbox.starting
        if starting is not None:
            await asyncio.wait({starting})  # cancelled; what its thread makes is to be released
        self._kill(sandbox)
        await self._until_gone(sandbox)
        if reason is None:
            reason, origin = self._why(sandbox, launcher)
            self._close(sandbox, reason)
        await self.release(sandbox.id, sandbox.uid)
        if sandbox.state not in TERMINAL:
            self._sandboxes.move(sandbox, state, reason=reason, origin=origin)
        self._log.info(
            "sandbox.ended", sandbox=sandbox.id, state=state, reason=reason, origin=origin
        )

    def _why(self, sandbox: Sandbox, launcher: Launcher | None) -> tuple[str, Origin]:
        """Return why a sandbox died that its launcher, when it began to end, was to tell of."""
        if sandbox.status is None and (launcher is None or not launcher.is_open):
            return LAUNCHER_DIED, Origin.PLATFORM
        kills = self._cgroups.oom_kills(sandbox.id)
        return death(sandbox.status, kills, sandbox.spec.resources.memory_bytes)

    def _close(self, sandbox: Sandbox, reason: str) -> None:
        sandbox.reason = reason
        sandbox.commands.end_all(f"the sandbox ended: {reason}")
        for hear in self.on_end:
            hear(sandbox)
        if sandbox.link is not None:
            sandbox.link.close()

    def _kill(self, sandbox: Sandbox) -> None:
        launcher = self._keeper.launcher
        if sandbox.gone.done():
            return
        if launcher is not None:
            launcher.kill(sandbox.id)
        if launcher is None or not sandbox.pid:
            self._cgroups.kill(sandbox.id)

    async def _until_gone(self, sandbox: Sandbox) -> None:
        """Wait for the launcher's word, or, where none will come, until no process is left."""
        began = time.monotonic()
        while not sandbox.gone.done():
            is_told = self._keeper.launcher is not None and sandbox.pid
            await asyncio.wait({sandbox.gone}, timeout=KILL_SECONDS if is_told else 0.01)
            if sandbox.gone.done() or not self._cgroups.is_populated(sandbox.id):
                return
            self._cgroups.kill(sandbox.id)
            if time.monotonic() - began > GIVE_UP_SECONDS:
                self._log.error("sandbox.unkillable", sandbox=sandbox.id)
                return

    async def release(self, sandbox_id: str, uid: int | None) -> None:
        """Give back all that a sandbox without processes held."""
        loop = asyncio.get_running_loop()
        for attempt in range(_REMOVE_TRIES):
            if await loop.run_in_executor(self._pool, self._cgroups.remove, sandbox_id):
                break
            self._cgroups.kill(sandbox_id)
            await asyncio.sleep(0.05 * attempt)
        else:
            self._log.error("sandbox.cgroup_left", sandbox=sandbox_id)
        await loop.run_in_executor(self._pool, self._disks.remove, sandbox_id)
        try:
            self._places.discard(sandbox_id)
        except OSError as problem:
            # The next service finds it and clears it away.
            self._log.warning("sandbox.not_discarded", sandbox=sandbox_id, error=str(problem))
        self._janitor.wake()
        launcher = self._keeper.launcher
        if launcher is not None:
            launcher.forget(sandbox_id)
        if uid is not None:
            self._ranges.free(uid)
