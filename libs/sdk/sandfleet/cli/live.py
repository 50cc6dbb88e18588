"""A command carried out live: its output on the screen, the reader's input and signals to it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandfleet.command import AsyncCommand
from sandfleet.results import Result
from sandfleet.sandbox import AsyncSandbox
from sandfleet_common.errors import BadRequest, Conflict, NotFound, SandfleetError, Unavailable
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Level, Logger
from sandfleet_common.messages import OUTPUT_LIMIT_BYTES

from . import terminal, text
from .session import EXIT_NO_PROGRAM, EXIT_SIGNAL, fail, tell

PATIENCE = 3
"""So many Ctrl-C mean: kill it, and all that it started."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to run and how."""

    argv: Sequence[str]
    env: dict[str, str] = field(default_factory=dict[str, str])
    cwd: str | None = None
    user: str | None = None
    timeout: float | None = None
    tty: bool = False
    interactive: bool = False
    output_limit: int = OUTPUT_LIMIT_BYTES

    def takes_input(self) -> bool:
        """Whether our input goes to the command: it is piped in, or was asked for."""
        return self.interactive or not terminal.is_terminal(0)


async def carry_out(sandbox: AsyncSandbox, order: Order) -> int:
    """Run a command live, and return the exit status that stands for its end.

    Raises:
        SandfleetError: the platform failed it.
    """
    if order.tty and not (terminal.is_terminal(0) and terminal.is_terminal(1)):
        raise BadRequest("-t needs a terminal for input and output; leave it out in a pipe")
    try:
        command = await _start(sandbox, order)
    except NotFound as problem:
        return fail(problem, EXIT_NO_PROGRAM)
    try:
        result = await (_on_terminal(command) if order.tty else _in_pipes(command, order))
    except BrokenPipeError:
        await command.kill()
        terminal.quiet_exit_on_broken_pipe()
        return EXIT_SIGNAL + signal.SIGPIPE
    except asyncio.CancelledError:
        await _kill_quietly(command)
        raise
    finally:
        await command.detach()
    return status_of(result, order)


def status_of(result: Result, order: Order) -> int:
    """Say what the output cannot, and return the exit status for a result."""
    if result.dropped_bytes:
        tell(
            f"[sandfleet: output limit of {text.size(order.output_limit)} reached, "
            f"{text.size(result.dropped_bytes)} dropped]"
        )
    if result.timed_out:
        tell(f"[sandfleet: time limit of {order.timeout or 0:g} s reached, the command was killed]")
    if result.signal is not None:
        return EXIT_SIGNAL + result.signal
    return result.exit_code if result.exit_code is not None else 1


async def follow(command: AsyncCommand, screen: terminal.Screen) -> None:
    """Show a command's output until it ends."""
    async for chunk in command:
        await screen.show(chunk.stream, chunk.data)
    await screen.end()


async def _start(sandbox: AsyncSandbox, order: Order) -> AsyncCommand:
    if order.tty:
        rows, cols = terminal.terminal_size()
        return await sandbox.pty(
            order.argv,
            rows=rows,
            cols=cols,
            env=order.env,
            cwd=order.cwd,
            user=order.user,
            timeout=order.timeout,
        )
    return await sandbox.start(
        order.argv,
        env=order.env,
        cwd=order.cwd,
        user=order.user,
        timeout=order.timeout,
        stdin=order.takes_input(),
        output_limit=order.output_limit,
    )


async def _in_pipes(command: AsyncCommand, order: Order) -> Result:
    asked = 0

    def on_signal(number: signal.Signals) -> None:
        nonlocal asked
        asked += 1
        work = command.kill() if asked >= PATIENCE else command.signal(number)
        tasks.start(_quietly(work), "signal")

    async with _tasks() as tasks:
        with terminal.on_signals(terminal.SIGNALS, on_signal):
            if order.takes_input():
                tasks.start(_feed(command), "input")
            await follow(command, terminal.Screen())
            return await command.wait()


async def _on_terminal(command: AsyncCommand) -> Result:
    def on_resize(_: signal.Signals) -> None:
        tasks.start(_quietly(command.resize(*terminal.terminal_size())), "resize")

    def on_end(number: signal.Signals) -> None:
        tasks.start(_quietly(command.signal(number)), "signal")

    ends = (signal.SIGTERM, signal.SIGHUP)
    async with _tasks() as tasks:
        with (
            terminal.on_signals((signal.SIGWINCH,), on_resize),
            terminal.on_signals(ends, on_end),
            terminal.raw_mode(),
        ):
            tasks.start(_feed(command), "keys")
            await follow(command, terminal.Screen(raw=True))
            return await command.wait()


async def _feed(command: AsyncCommand) -> None:
    try:
        async for data in terminal.read_input():
            await command.write(data)
        await command.close_stdin()
    except (Conflict, Unavailable):
        return  # it has ended, or reads no more


async def _quietly(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except SandfleetError:
        return  # it has ended meanwhile


async def _kill_quietly(command: AsyncCommand) -> None:
    try:
        async with asyncio.timeout(5):
            await command.kill()
    except (SandfleetError, TimeoutError):
        return


def _tasks() -> Tasks:
    return Tasks(Logger("cli", level=Level.ERROR))
