"""How much memory a pause gives back, and how soon a paused sandbox answers, beside Docker.

A process dirties 1 GiB, half of it random, which no compression makes smaller, and waits
for lines that it answers. The sandbox is paused until its memory has been given back,
which goes to a swap file of the node's own unless the machine has swap; then a command
runs in it, which resumes it; then the process is asked. `docker pause` freezes a container
with the same process. What came back is the rise of the host's MemAvailable.

    make bench-pause
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import host
import peers
import report

from sandfleet import AsyncClient, AsyncCommand, AsyncSandbox, Resources, SandboxSpec, local

DIRTY_BYTES = 1024**3
SPEC = SandboxSpec(resources=Resources(memory_bytes=DIRTY_BYTES + DIRTY_BYTES // 2))
PAUSE_SECONDS = 60
COMMANDS = 20

HOLD = """
import os, sys
half = int(sys.argv[1]) // 2
held = bytearray(2 * half)
for at in range(0, half, 1 << 20):
    held[at : at + (1 << 20)] = os.urandom(1 << 20)
for at in range(half, 2 * half, 4096):
    held[at : at + 16] = b"%016d" % at
print("ready", flush=True)
for line in sys.stdin:
    print(sum(held[at] for at in range(0, 2 * half, 1 << 22)), flush=True)
"""
"""Holds memory, and reads a byte of every fourth MiB of it when asked."""

Figures = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Pause:
    """One pause and what followed."""

    returned_fraction: float
    pause_ms: float
    first_answer_ms: float
    process_answer_ms: float
    next_p50_ms: float
    """Of commands right after the first answer, while memory is read back."""


async def line_of(command: AsyncCommand) -> bytes:
    """Return the next line that a process prints."""
    line = b""
    while not line.endswith(b"\n"):
        line += (await anext(command)).data
    return line


async def timed(sandbox: AsyncSandbox) -> float:
    """Run `true`; return how long it took in ms."""
    began = time.perf_counter()
    result = await sandbox.run(["true"])
    if result.exit_code != 0:
        raise RuntimeError(f"true exited with {result.exit_code}")
    return (time.perf_counter() - began) * 1000


async def paused(sandbox: AsyncSandbox, command: AsyncCommand) -> Pause:
    """Pause once, and come back."""
    before = host.settled_available_bytes(drop_caches=False)
    began = time.perf_counter()
    await sandbox.pause(wait=PAUSE_SECONDS)
    pause_ms = (time.perf_counter() - began) * 1000
    came_back = host.settled_available_bytes(drop_caches=False) - before
    first = await timed(sandbox)
    after = [await timed(sandbox) for _ in range(COMMANDS)]
    began = time.perf_counter()
    await command.write(b"\n")
    await line_of(command)
    return Pause(
        came_back / DIRTY_BYTES,
        pause_ms,
        first,
        (time.perf_counter() - began) * 1000,
        report.percentile(after, 50),
    )


async def ours(rounds: int) -> Figures:
    """Measure Sandfleet: the median of some pauses, each of a sandbox of its own."""
    found: list[Pause] = []
    async with AsyncClient.connect() as client:
        for _ in range(rounds):
            async with await client.create(SPEC) as sandbox:
                await timed(sandbox)
                argv = ["python3", "-c", HOLD, str(DIRTY_BYTES)]
                async with await sandbox.start(argv, stdin=True, background=True) as command:
                    await line_of(command)
                    found.append(await paused(sandbox, command))
    return {
        "returned_fraction": round(median(p.returned_fraction for p in found), 3),
        "pause_ms": round(median(p.pause_ms for p in found)),
        "first_answer_ms": round(median(p.first_answer_ms for p in found), 1),
        "first_answer_worst_ms": round(max(p.first_answer_ms for p in found), 1),
        "process_answer_ms": round(median(p.process_answer_ms for p in found), 1),
        "next_commands_p50_ms": round(median(p.next_p50_ms for p in found), 1),
    }


def theirs(layer: Path) -> tuple[Figures, list[str]]:
    """Measure `docker pause`."""
    figures: Figures = {"docker_pause_returned_fraction": None, "docker_pause_ms": None}
    if absent := peers.missing_tools("docker", "dockerd", "containerd"):
        return figures, [f"Docker was not measured: {', '.join(absent)} not installed"]
    with peers.docker(layer) as docker:
        docker.call(
            "run", "--detach", "--interactive", "--network", "none", "--name", "held", "base",
            "python3", "-c", HOLD, str(DIRTY_BYTES),
        )  # fmt: skip
        until = time.monotonic() + PAUSE_SECONDS
        while b"ready" not in docker.call("logs", "held"):
            if time.monotonic() > until:
                raise RuntimeError("the container did not fill its memory")
            time.sleep(0.2)
        before = host.settled_available_bytes(drop_caches=False)
        began = time.perf_counter()
        docker.call("pause", "held")
        figures["docker_pause_ms"] = round((time.perf_counter() - began) * 1000)
        came_back = host.settled_available_bytes(drop_caches=False) - before
        figures["docker_pause_returned_fraction"] = round(came_back / DIRTY_BYTES, 3)
        docker.call("unpause", "held")
    return figures, []


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=3, help="pauses")
    options = parser.parse_args()
    state = local.state_dir()
    local.up(state, progress=lambda line: None)
    try:
        figures = asyncio.run(ours(options.n))
    finally:
        local.down(state, progress=lambda line: None)
    layer = peers.base_layer(state)
    measured, notes = theirs(layer)
    figures.update(measured)
    notes.append("half of the dirty memory is random and cannot be compressed")
    report.write("pause", figures, notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
