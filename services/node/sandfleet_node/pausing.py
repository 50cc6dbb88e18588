"""Pausing and resuming: a sandbox stands still, and its memory is the machine's again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Executor
from contextlib import asynccontextmanager

from sandfleet_common.errors import Busy, Conflict, FileProblem, SandboxFailed, SandfleetError
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import MIB, Qos
from sandfleet_common.states import Origin, State
from sandfleet_common.wire import FrameType

from .cgroups import Cgroups
from .ending import Ending
from .freezer import Freezer
from .memorygroup import MemoryGroup, give_back, prefetch
from .metrics import NodeMetrics
from .sandbox import Sandbox
from .sandboxes import Sandboxes
from .swap import Swap
from .turns import Turn

QUIET_SECONDS = 5.0
"""How long a pause waits for operations that are under way."""
HOLD_SECONDS = 1.0
"""How long its agent may take to let time limits stand still."""
RETRY_SECONDS = 5.0
"""When a pause for idleness did not succeed."""
_WORTH_BYTES = 2 * MIB
"""A sandbox that holds less is not paused for its memory."""
_WORTH_GIVING_BYTES = MIB
"""An agent alone holds a quarter of it, most of which cannot be swapped."""
_GIVE_BACK_SECONDS = 60.0


class Pausing:
    """Freezes and thaws sandboxes. What is done to one sandbox happens one after the other.

    The record leads: a sandbox that is on record as running is thawed by the next service, one
    that is on record as paused is frozen. A pause is on record after the sandbox stands still,
    a resumption before it moves.
    """

    def __init__(
        self,
        sandboxes: Sandboxes,
        ending: Ending,
        cgroups: Cgroups,
        freezer: Freezer,
        swap: Swap,
        at_once: int,
        prefetch_bytes: int,
        pool: Executor,
        tasks: Tasks,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._sandboxes = sandboxes
        self._ending = ending
        self._cgroups = cgroups
        self._freezer = freezer
        self._swap = swap
        self._prefetch_bytes = prefetch_bytes
        self._pool = pool
        self._tasks = tasks
        self._metrics = metrics
        self._log = log
        self._gate = asyncio.Semaphore(at_once)
        self.is_exempt: Callable[[Sandbox], bool] = _never
        """Says which sandboxes `pause_idle` leaves alone, whatever their class."""

    # ----------------------------------------------------------------- pause

    async def pause(self, sandbox: Sandbox, *, reason: str | None = None) -> None:
        """Freeze a sandbox; its memory is given back after that, in the background.

        It is frozen and on record as paused when this returns. One that is paused already
        stays so.

        Args:
            sandbox: which.
            reason: why, for the log; None: its user asked for it.

        Raises:
            Busy: operations on it are under way that do not come to an end.
            SandboxGone: it is ending.
        """
        turn = self._turn(sandbox)
        async with turn.lock:
            sandbox.agent()
            if sandbox.state is State.PAUSED:
                return
            if sandbox.state is not State.RUNNING:
                raise Conflict(f"the sandbox is {sandbox.state}: only one that runs can be paused")
            await self._until_quiet(sandbox, turn)
            if reason is not None and sandbox.commands.foreground:
                raise Busy("a command has started meanwhile", retry_after_seconds=1)
            await self._freeze(sandbox)
            sandbox.begin_pause(time.time())
            self._sandboxes.move(sandbox, State.PAUSED)
            self._sandboxes.keep(sandbox)
        self._metrics.pauses.labels("user" if reason is None else "node").inc()
        self._log.info("sandbox.paused", sandbox=sandbox.id, reason=reason)
        self._begin_giving(sandbox, turn)

    async def _until_quiet(self, sandbox: Sandbox, turn: Turn) -> None:
        if sandbox.uses:
            turn.quiet = asyncio.get_running_loop().create_future()
            try:
                await asyncio.wait({turn.quiet}, timeout=QUIET_SECONDS)
            finally:
                turn.quiet = None
        sandbox.agent()
        if sandbox.uses:
            raise Busy(
                f"{sandbox.uses} operations on the sandbox are under way", retry_after_seconds=1
            )

    async def _freeze(self, sandbox: Sandbox) -> None:
        try:
            await self._hold_limits(sandbox)
            is_frozen = await self._freezer.freeze(sandbox.id)
            sandbox.agent()
            if not is_frozen:
                raise Busy("a process of the sandbox cannot be stopped now", retry_after_seconds=5)
        except OSError as problem:
            self._thaw(sandbox)
            sandbox.agent()
            raise Conflict(f"the sandbox cannot be frozen: {problem}") from problem
        except BaseException:
            self._thaw(sandbox)
            raise

    async def _hold_limits(self, sandbox: Sandbox) -> None:
        """Have the time limits of its commands stand still: the agent's clock does not."""
        try:
            async with asyncio.timeout(HOLD_SECONDS):
                await sandbox.agent().request(FrameType.HOLD, sandbox.next_id())
        except SandboxFailed:
            return  # its channel has closed: it is ending
        except (TimeoutError, FileProblem) as problem:
            # It does not answer, or is of an older release: the limits count on.
            self._log.warning("sandbox.limits_count", sandbox=sandbox.id, error=problem)

    def _thaw(self, sandbox: Sandbox) -> None:
        self._freezer.thaw(sandbox.id)
        if sandbox.link is not None and sandbox.is_greeted:
            sandbox.link.send(FrameType.GO, sandbox.next_id())

    def begin_idle_pause(self, sandbox: Sandbox, reason: str) -> None:
        """Pause a sandbox whose idle time is over; if that fails, look at it again later."""
        self._tasks.start(self._pause_idle(sandbox, reason), f"pause {sandbox.id}")

    async def _pause_idle(self, sandbox: Sandbox, reason: str) -> None:
        try:
            await self.pause(sandbox, reason=reason)
        except SandfleetError as problem:
            if sandbox.ending is None:
                self._log.warning("sandbox.unpaused", sandbox=sandbox.id, error=problem.message)
                self._sandboxes.look_at(sandbox, time.time() + RETRY_SECONDS)

    @asynccontextmanager
    async def still(self, sandbox: Sandbox) -> AsyncGenerator[None]:
        """Let a sandbox stand still while the block runs; one that is paused does already.

        Operations on it wait meanwhile, and nobody pauses or resumes it.

        Raises:
            SandboxGone: it is ending.
            Busy: a process of it cannot be stopped now.
            Conflict: it is neither running nor paused.
        """
        async with self._turn(sandbox).lock:
            sandbox.agent()
            if sandbox.state is State.PAUSED:
                yield
                return
            if sandbox.state is not State.RUNNING:
                raise Conflict(f"the sandbox is {sandbox.state}: it must run or be paused")
            await self._freeze(sandbox)
            try:
                yield
            finally:
                self._thaw(sandbox)

    # ---------------------------------------------------------------- resume

    async def resume(self, sandbox: Sandbox) -> None:
        """Let a paused sandbox run; one that runs already is no error.

        Raises:
            SandboxGone: it is ending.
        """
        began = time.monotonic()
        turn = self._turn(sandbox)
        async with turn.lock:
            sandbox.agent()
            if sandbox.state is not State.PAUSED:
                return
            turn.stop.set()
            sandbox.end_pause(time.time())
            self._sandboxes.move(sandbox, State.RUNNING)
            self._sandboxes.keep(sandbox)
            self._thaw(sandbox)
            await self._greet(sandbox)
        seconds = time.monotonic() - began
        self._metrics.resume.observe(seconds)
        self._log.info("sandbox.resumed", sandbox=sandbox.id, ms=round(seconds * 1000, 3))
        if self._prefetch_bytes:
            turn.fetching = self._tasks.start(
                self._fetch(sandbox, turn, turn.fetching), f"prefetch {sandbox.id}"
            )

    async def _greet(self, sandbox: Sandbox) -> None:
        """Say hello to an agent that was frozen when this service took it over."""
        link = sandbox.agent()
        if sandbox.is_greeted:
            return
        try:
            await sandbox.greet(link)
        except SandfleetError as problem:
            reason = f"it was resumed and could not be taken over: {problem.message}"
            self._ending.begin(sandbox, State.FAILED, reason, Origin.PLATFORM)
            sandbox.agent()

    @asynccontextmanager
    async def using(self, sandbox: Sandbox) -> AsyncGenerator[Sandbox]:
        """Resume a sandbox if it is paused, and keep it from being paused while the block runs.

        Everything that waits for the sandbox's agent belongs into such a block.

        Raises:
            SandboxGone: it is ending.
        """
        await self.awake(sandbox)
        sandbox.uses += 1
        try:
            yield sandbox
        finally:
            sandbox.uses -= 1
            if not sandbox.uses and sandbox.turn is not None:
                sandbox.turn.is_quiet()

    async def awake(self, sandbox: Sandbox) -> None:
        """Resume a sandbox if it is paused, or about to be. Nothing is waited for if it runs.

        Until the caller waits for something else the sandbox will not be paused.
        """
        while (turn := sandbox.turn) is not None and (
            sandbox.state is State.PAUSED or turn.lock.locked()
        ):
            await self.resume(sandbox)

    # ---------------------------------------------------------------- memory

    async def given_back(self, sandbox: Sandbox, seconds: float) -> int:
        """Wait until a paused sandbox's memory has been given back, at most so long.

        Returns:
            How many bytes came back with this pause so far.
        """
        turn = self._turn(sandbox)
        if turn.giving is not None and seconds > 0:
            await asyncio.wait({turn.giving}, timeout=seconds)
        return turn.given_bytes

    async def pause_idle(self, target_bytes: int) -> int:
        """Pause idle best-effort sandboxes, longest idle first, until so much memory came back.

        Returns:
            How many bytes were given back; fewer than asked for when no such sandbox is left.
        """
        freed = 0
        for sandbox in sorted(self._sandboxes, key=lambda one: one.active_at):
            if freed >= target_bytes:
                break
            if not self._may_pause(sandbox):
                continue
            try:
                await self.pause(sandbox, reason="the node needs memory")
            except SandfleetError as problem:
                self._log.warning("sandbox.unpaused", sandbox=sandbox.id, error=problem.message)
                continue
            freed += await self.given_back(sandbox, _GIVE_BACK_SECONDS)
        return freed

    def _may_pause(self, sandbox: Sandbox) -> bool:
        return (
            sandbox.state is State.RUNNING
            and sandbox.ending is None
            and sandbox.spec.qos is Qos.BEST_EFFORT
            and not sandbox.commands.foreground
            and not sandbox.uses
            and not self.is_exempt(sandbox)
            and self.group(sandbox).usage() >= _WORTH_BYTES
        )

    def group(self, sandbox: Sandbox) -> MemoryGroup:
        """Return a sandbox's group of the memory controller."""
        return MemoryGroup(*self._cgroups.controller_dir("memory", sandbox.id))

    def _begin_giving(self, sandbox: Sandbox, turn: Turn) -> None:
        turn.stop = stop = threading.Event()
        turn.given_bytes = 0
        turn.giving = self._tasks.start(
            self._give_back(sandbox, turn, stop, turn.giving), f"give back {sandbox.id}"
        )

    async def _give_back(
        self,
        sandbox: Sandbox,
        turn: Turn,
        stop: threading.Event,
        before: asyncio.Task[None] | None,
    ) -> None:
        """Give a paused sandbox's memory back, once the pause before has left off."""
        if before is not None:
            await asyncio.wait({before})
        loop = asyncio.get_running_loop()
        async with self._gate:
            if stop.is_set() or sandbox.ending is not None:
                return
            began = time.monotonic()
            group = self.group(sandbox)
            if group.usage() < _WORTH_GIVING_BYTES:
                return
            await loop.run_in_executor(self._pool, self._swap.ensure)
            try:
                given = await loop.run_in_executor(self._pool, give_back, group, stop.is_set)
            except asyncio.CancelledError:
                stop.set()
                raise
        turn.given_bytes = given
        self._metrics.given_back.labels("pause").inc(given)
        self._log.info(
            "sandbox.given_back", sandbox=sandbox.id, bytes=given, kept_bytes=group.usage(),
            seconds=round(time.monotonic() - began, 3), is_whole=not stop.is_set(),
        )  # fmt: skip

    async def _fetch(self, sandbox: Sandbox, turn: Turn, before: asyncio.Task[None] | None) -> None:
        """Bring back what a resumed sandbox will miss, while it runs."""
        if before is not None:
            await asyncio.wait({before})
        if sandbox.state is not State.RUNNING or sandbox.ending is not None:
            return
        loop = asyncio.get_running_loop()

        def stopped() -> bool:
            return sandbox.state is not State.RUNNING or sandbox.ending is not None

        group = self.group(sandbox)
        limit = min(self._prefetch_bytes, group.swapped())
        if limit:
            fetched = await loop.run_in_executor(
                self._pool, prefetch, group, [sandbox.pid], limit, stopped
            )
            self._metrics.prefetched.inc(fetched)

    # --------------------------------------------------------------- service

    async def adopt(self, sandbox: Sandbox) -> None:
        """Make a sandbox as its record says, for a service that takes it over."""
        self.group(sandbox).restore(sandbox.spec.resources.memory_bytes)
        if sandbox.state is not State.PAUSED:
            self._freezer.thaw(sandbox.id)
            return
        turn = self._turn(sandbox)
        try:
            if not await self._freezer.freeze(sandbox.id):
                self._log.warning("sandbox.unfrozen", sandbox=sandbox.id)
        except OSError:
            return  # it is ending, as its channel will say
        self._begin_giving(sandbox, turn)

    def forget(self, sandbox: Sandbox) -> None:
        """Leave off whatever runs for a sandbox that ends."""
        if sandbox.turn is not None:
            sandbox.turn.stop.set()

    def close(self) -> None:
        """Leave off everywhere; the next service goes on."""
        for sandbox in self._sandboxes:
            self.forget(sandbox)

    @staticmethod
    def _turn(sandbox: Sandbox) -> Turn:
        if sandbox.turn is None:
            sandbox.turn = Turn()
        return sandbox.turn


def _never(sandbox: Sandbox) -> bool:
    return False
