"""A burst of sandboxes that each run a test command, and what it took."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from sandfleet import AsyncClient, Resources, SandboxSpec

MIB = 1024**2
_RESOURCES = Resources(cpu=2, memory_bytes=1024 * MIB, disk_bytes=4096 * MIB)
_SECTOR_BYTES = 512
_DEADLINE_SECONDS = 900


@dataclass(frozen=True, slots=True)
class Task:
    """What one sandbox does."""

    environment: str
    command: str


@dataclass(frozen=True, slots=True)
class Burst:
    """How a burst went."""

    seconds: float
    """From the first request to the end of the last command."""
    first_seconds: float
    """Until the first command had ended."""
    written_bytes: int
    """By the whole machine, to the disk that holds the state directory."""


def mixed(kinds: Sequence[Task], count: int) -> list[Task]:
    """Return `count` tasks, as many of each kind, in an order that is always the same."""
    tasks = [kinds[number % len(kinds)] for number in range(count)]
    random.Random(1).shuffle(tasks)
    return tasks


async def run(
    state: Path, tasks: Sequence[Task], before: Callable[[str], Awaitable[None]] | None = None
) -> Burst:
    """Create all sandboxes at once, run each one's command, and remove it.

    Args:
        state: whose disk is watched.
        tasks: one for each sandbox.
        before: awaited with the environment's name before a sandbox is asked for.

    Raises:
        RuntimeError: a command failed; the message has the end of what it said.
    """
    _drop_caches()
    written = _written_bytes(state)
    began = time.perf_counter()
    async with AsyncClient.connect() as client:
        ends = await asyncio.gather(*(_one(client, task, before) for task in tasks))
    seconds = time.perf_counter() - began
    os.sync()
    return Burst(seconds, min(ends) - began, _written_bytes(state) - written)


async def _one(
    client: AsyncClient, task: Task, before: Callable[[str], Awaitable[None]] | None
) -> float:
    if before is not None:
        await before(task.environment)
    spec = SandboxSpec(environment=task.environment, resources=_RESOURCES)
    sandbox = await client.create(spec, deadline=_DEADLINE_SECONDS)
    async with sandbox:
        result = await sandbox.run(["sh", "-c", task.command], timeout=_DEADLINE_SECONDS)
    if result.exit_code != 0:
        said = (result.stdout + result.stderr).strip()[-800:]
        raise RuntimeError(f"{task.command} in {task.environment} failed: {said}")
    return time.perf_counter()


def _drop_caches() -> None:
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3")


def _written_bytes(folder: Path) -> int:
    device = folder.stat().st_dev
    place = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    return int(place.read_text().split()[6]) * _SECTOR_BYTES
