"""The sensor program as a child: started, read, watched, ended."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from .records import PROTOCOL, Reader, Ready, Record, RecordError

CHUNK_BYTES = 65_536
END_SECONDS = 3.0
_NO_BPF = 3


class ProgramFailed(Exception):
    """The sensor program does not run; says why in one sentence."""

    def __init__(self, reason: str, *, is_for_good: bool = False) -> None:
        super().__init__(reason)
        self.is_for_good = is_for_good
        """It cannot load here, and trying again soon will not help."""


@dataclass(frozen=True, slots=True)
class Command:
    """How the program is started."""

    binary: str
    sandboxes: str
    """Directory of this node's sandboxes in cgroup v2."""
    calls: int
    calls_burst: int
    execs: int
    execs_burst: int

    def line(self) -> list[str]:
        """Return the command line."""
        return [
            self.binary,
            f"--sandboxes={self.sandboxes}",
            f"--calls={self.calls}",
            f"--calls-burst={self.calls_burst}",
            f"--execs={self.execs}",
            f"--execs-burst={self.execs_burst}",
        ]


@asynccontextmanager
async def sensing(
    command: Command, *, silence_seconds: float
) -> AsyncGenerator[AsyncIterator[list[Record]]]:
    """Run the program while the block runs; yields what it tells, some records at a time.

    Raises:
        ProgramFailed: it cannot be started, has ended, said nothing for `silence_seconds`, or
            said what is no record.
    """
    try:
        process = await asyncio.create_subprocess_exec(
            *command.line(),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=4 * CHUNK_BYTES,
            # A terminal's interrupt is for the service, which then ends the program.
            start_new_session=True,
        )
    except OSError as problem:
        raise ProgramFailed(f"{command.binary} does not start: {problem}") from problem
    try:
        yield _records(process, silence_seconds)
    finally:
        await _end(process)


async def _records(
    process: asyncio.subprocess.Process, silence_seconds: float
) -> AsyncGenerator[list[Record]]:
    assert process.stdout is not None
    reader = Reader()
    greeted = False
    while True:
        try:
            async with asyncio.timeout(silence_seconds):
                data = await process.stdout.read(CHUNK_BYTES)
        except TimeoutError:
            raise ProgramFailed(f"it said nothing for {silence_seconds:g} s") from None
        if not data:
            raise await _ended(process)
        try:
            records = reader.feed(data)
        except RecordError as problem:
            raise ProgramFailed(f"it does not speak the protocol: {problem}") from problem
        if records and not greeted:
            _check_greeting(records[0])
            greeted = True
        if records:
            yield records


def _check_greeting(first: Record) -> None:
    if not isinstance(first, Ready):
        raise ProgramFailed("it does not speak the protocol: it does not say that it is ready")
    if first.protocol != PROTOCOL:
        raise ProgramFailed(
            f"it speaks version {first.protocol} of the protocol, not {PROTOCOL}: build both anew",
            is_for_good=True,
        )


async def _ended(process: asyncio.subprocess.Process) -> ProgramFailed:
    assert process.stderr is not None
    try:
        async with asyncio.timeout(END_SECONDS):
            said = (await process.stderr.read(4096)).decode("utf-8", "backslashreplace")
            status = await process.wait()
    except TimeoutError:
        return ProgramFailed("it closed its output")
    lines = [line for line in said.splitlines() if line.strip()]
    last = lines[-1].removeprefix("sandfleet-sensor: ") if lines else f"it ended with {status}"
    return ProgramFailed(last[:500], is_for_good=status == _NO_BPF)


async def _end(process: asyncio.subprocess.Process) -> None:
    # Its input's end is what tells it to stop; what it still says is of no use to anybody.
    if process.stdin is not None:
        process.stdin.close()
    try:
        async with asyncio.timeout(END_SECONDS):
            await process.communicate()
    except TimeoutError:
        process.kill()
        await process.wait()
