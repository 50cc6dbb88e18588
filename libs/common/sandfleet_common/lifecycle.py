"""How a service runs: signals, tasks with an owner, health and readiness.

Every task in Sandfleet is started through `Tasks`, the one place that calls
`create_task`: a task's exception is seen, a cancelled owner cancels and awaits
what it started.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import TracebackType
from typing import Any, Protocol, Self

from .logs import Logger

CLEANUP_SECONDS = 10.0
"""What cleaning up after a cancellation may take."""
RECANCEL_SECONDS = 1.0


class Tasks:
    """Owner of tasks that come and go; use as an async context manager.

    A task that fails is logged and, when `critical`, ends the owner's `failed`
    wait. Leaving the block cancels and awaits all that still run.
    """

    def __init__(self, log: Logger) -> None:
        self._log = log
        self._running: set[asyncio.Task[Any]] = set()
        self._failure: asyncio.Future[BaseException] | None = None

    async def __aenter__(self) -> Self:
        self._failure = asyncio.get_running_loop().create_future()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.cancel_all()
        if self._failure is not None:
            self._failure.cancel()

    def start(
        self, work: Coroutine[Any, Any, Any], name: str, *, critical: bool = False
    ) -> asyncio.Task[Any]:
        """Run `work` until it ends or the owner does."""
        task = asyncio.get_running_loop().create_task(work, name=name)
        self._running.add(task)
        task.add_done_callback(lambda done: self._finished(done, critical))
        return task

    async def failed(self) -> BaseException:
        """Wait until a critical task fails, and return why."""
        assert self._failure is not None, "enter the block first"
        return await asyncio.shield(self._failure)

    async def cancel_all(self) -> None:
        """Cancel every task and wait for it, for at most CLEANUP_SECONDS.

        One that goes on is cancelled again each second: the NATS client swallows a
        cancellation that arrives while it flushes, and a loop around it would not end.
        """
        for _ in range(int(CLEANUP_SECONDS / RECANCEL_SECONDS)):
            pending = {t for t in self._running if t is not asyncio.current_task()}
            if not pending:
                return
            for task in pending:
                task.cancel()
            await asyncio.wait(pending, timeout=RECANCEL_SECONDS)
        for task in self._running:
            if task is not asyncio.current_task():
                self._log.error("task.stuck", task=task.get_name())

    def __len__(self) -> int:
        return len(self._running)

    def _finished(self, task: asyncio.Task[Any], critical: bool) -> None:
        self._running.discard(task)
        if task.cancelled():
            return
        error = task.exception()
        if error is None:
            return
        self._log.error("task.failed", task=task.get_name(), error=error)
        if critical and self._failure is not None and not self._failure.done():
            self._failure.set_result(error)


class Service(Protocol):
    """What `serve` runs."""

    name: str

    async def run(self, ready: Callable[[], None]) -> None:
        """Work until cancelled; call `ready` once requests can be taken."""
        ...

    async def drain(self) -> None:
        """Stop taking work and finish what is under way; called before cancellation."""
        ...


class Health:
    """What /healthz and /readyz say."""

    def __init__(self) -> None:
        self.is_ready = False
        self.checks: dict[str, Callable[[], str | None]] = {}
        """Name to a function that returns None, or what is wrong. Those two that most services
        have are called `bus` and `store`."""

        self.warnings: dict[str, Callable[[], str | None]] = {}
        """The same for what a service does without: it is told, and the service stays ready."""

    def problems(self) -> dict[str, str]:
        """Return what is wrong now, by check."""
        return _told(self.checks)

    def warned(self) -> dict[str, str]:
        """Return what is missing now and can be done without, by check."""
        return _told(self.warnings)


def _told(checks: dict[str, Callable[[], str | None]]) -> dict[str, str]:
    found = {name: check() for name, check in checks.items()}
    return {name: problem for name, problem in found.items() if problem}


async def serve(
    service: Service,
    log: Logger,
    health: Health,
    *,
    drain_seconds: float,
    on_ready: Callable[[], None] | None = None,
) -> int:
    """Run a service until SIGTERM, SIGINT or a failure, and return the exit status.

    A first signal drains, for at most `drain_seconds`; a second cancels at once.
    """
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    hurry = asyncio.Event()

    def on_signal(number: int) -> None:
        log.info("service.signal", service=service.name, signal=signal.Signals(number).name)
        (hurry if stop.is_set() else stop).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)

    def ready() -> None:
        health.is_ready = True
        log.info("service.ready", service=service.name)
        if on_ready is not None:
            on_ready()

    status = 0
    async with Tasks(log) as tasks:
        running = tasks.start(service.run(ready), f"{service.name}.run")
        stopping = tasks.start(stop.wait(), "stop")
        await asyncio.wait({running, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if running.done() and not running.cancelled() and (error := running.exception()):
            log.error("service.failed", service=service.name, error=error)
            status = 1
        elif not running.done():
            health.is_ready = False
            await _drain(service, tasks, hurry, drain_seconds, log)
    log.info("service.stopped", service=service.name, status=status)
    return status


async def _drain(
    service: Service, tasks: Tasks, hurry: asyncio.Event, seconds: float, log: Logger
) -> None:
    draining = tasks.start(service.drain(), f"{service.name}.drain")
    hurried = tasks.start(hurry.wait(), "hurry")
    done, _ = await asyncio.wait(
        {draining, hurried}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED
    )
    if draining not in done:
        log.warning("service.drain_cut_short", service=service.name, limit_seconds=seconds)


@asynccontextmanager
async def closing(*resources: AbstractAsyncContextManager[Any]) -> AsyncGenerator[None]:
    """Enter several resources in order and leave them in reverse."""
    if not resources:
        yield
        return
    async with resources[0], closing(*resources[1:]):
        yield


async def retry_forever(
    attempt: Callable[[], Awaitable[None]], delays: Callable[[int], float], log: Logger, what: str
) -> None:
    """Call `attempt` until it returns without an OSError or TimeoutError."""
    tries = 0
    while True:
        try:
            return await attempt()
        except (OSError, TimeoutError) as problem:
            tries += 1
            log.warning("retry", what=what, tries=tries, error=problem)
            await asyncio.sleep(delays(tries))
