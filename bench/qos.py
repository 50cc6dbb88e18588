"""How much best-effort load slows a latency-sensitive step: Sandfleet and Docker, in one run.

One sandbox does a step of ten milliseconds of pure computing again and again, a short
pause before each, and measures itself how long each took. Beside it other sandboxes
burn 10, 25 and 50 % of the machine, held there by their own caps, then all of it, and
twice as much as there is. They run once in the same class as the step, as Docker's
containers all do, and once as best-effort, which is the kernel's SCHED_IDLE for their
whole group. Inflation is a percentile of the step's time under load divided by the
same percentile without; 1.0 is no effect. What the load keeps of the CPU time it asked
for stands beside it. Docker has no idle groups; its least share is what it has instead.

    make bench-qos
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import peers
import report

from sandfleet import AsyncClient, AsyncSandbox, Qos, Resources, SandboxSpec, local

CORES = os.cpu_count() or 1
STEP_MS = 10
LEVELS = (10, 25, 50, 100, 200)
"""Load in percent of the machine."""
DOCKER_LEVELS = (50, 200)
ROUNDS = 3
MEMORY_BYTES = 256 * 1024**2
BURN = "while :; do :; done"

STEP = """
import random, sys, time

def spin(loops):
    began = time.perf_counter()
    for _ in range(loops):
        pass
    return (time.perf_counter() - began) * 1000

steps, loops = int(sys.argv[1]), int(sys.argv[2])
if not loops:
    print(round(100_000 * float(sys.argv[3]) / min(spin(100_000) for _ in range(50))))
for _ in range(steps):
    time.sleep(random.uniform(0.005, 0.025))
    print(spin(loops))
"""
"""Arguments: how many steps, loops of each, and, with no loops, milliseconds to find loops for."""


@dataclass(slots=True)
class Measured:
    """Times of steps and of commands in ms, and what the load used, of several rounds."""

    steps: list[float] = field(default_factory=list[float])
    commands: list[float] = field(default_factory=list[float])
    load_seconds: float = 0.0
    """CPU time of the load."""
    seconds: float = 0.0

    @property
    def load_cores(self) -> float:
        """Cores that the load used."""
        return self.load_seconds / self.seconds if self.seconds else 0.0

    def inflation(self, base: Measured, percent: int) -> float:
        """Return how many times longer than in `base` a step takes, at a percentile."""
        return round(
            report.percentile(self.steps, percent) / report.percentile(base.steps, percent), 2
        )


def shares(level: int) -> list[float]:
    """Return what each burning process may use, in cores, to load so much of the machine."""
    if level <= 100:
        return [level / 100] * CORES
    return [1.0] * (CORES * level // 100)


def spec(cpu: float, qos: Qos) -> SandboxSpec:
    """Return what to ask for."""
    return SandboxSpec(
        resources=Resources(cpu=cpu, memory_bytes=MEMORY_BYTES), qos=qos, ttl_seconds=600
    )


@asynccontextmanager
async def load(client: AsyncClient, level: int, qos: Qos) -> AsyncGenerator[list[AsyncSandbox]]:
    """Burn so much of the machine while the block runs."""
    async with AsyncExitStack() as stack:
        burning: list[AsyncSandbox] = []
        for cpu in shares(level):
            sandbox = await stack.enter_async_context(await client.create(spec(cpu, qos)))
            await sandbox.start(["sh", "-c", BURN])
            burning.append(sandbox)
        await asyncio.sleep(0.5)
        yield burning


async def spent(burning: list[AsyncSandbox]) -> float:
    """Return the CPU seconds of the load so far."""
    return sum([(await sandbox.usage()).cpu_seconds for sandbox in burning])


async def measure(
    into: Measured, step: AsyncSandbox, steps: int, loops: int, burning: list[AsyncSandbox]
) -> None:
    """Measure steps from inside, then commands from outside."""
    began, before = time.perf_counter(), await spent(burning)
    done = await step.run(["python3", "-c", STEP, str(steps), str(loops)])
    into.load_seconds += await spent(burning) - before
    into.seconds += time.perf_counter() - began
    into.steps += map(float, done.stdout.split())
    for _ in range(max(10, steps // 5)):
        start = time.perf_counter()
        await step.run(["true"])
        into.commands.append((time.perf_counter() - start) * 1000)


async def level_of(
    client: AsyncClient, step: AsyncSandbox, level: int, steps: int, loops: int
) -> tuple[Measured, Measured, Measured]:
    """Measure without load, with plain load and with idle load, in turns.

    In turns, because whatever else the machine does changes from one minute to the next.
    """
    quiet, plain, idle = Measured(), Measured(), Measured()
    for _ in range(ROUNDS):
        await measure(quiet, step, steps // ROUNDS, loops, [])
        for into, qos in ((plain, Qos.LATENCY), (idle, Qos.BEST_EFFORT)):
            async with load(client, level, qos) as burning:
                await measure(into, step, steps // ROUNDS, loops, burning)
    return quiet, plain, idle


async def ours(steps: int) -> dict[str, float]:
    """Measure Sandfleet."""
    found: dict[str, float] = {}
    async with (
        AsyncClient.connect() as client,
        await client.create(spec(CORES, Qos.LATENCY)) as step,
    ):
        asked = await step.run(["python3", "-c", STEP, "0", "0", str(STEP_MS)])
        loops = int(asked.stdout)
        all_quiet = Measured()
        for level in LEVELS:
            quiet, plain, idle = await level_of(client, step, level, steps, loops)
            all_quiet.steps += quiet.steps
            all_quiet.commands += quiet.commands
            for name, one in (("plain", plain), ("idle", idle)):
                found[f"inflation_{name}_{level}"] = one.inflation(quiet, 50)
                found[f"inflation_{name}_{level}_p99"] = one.inflation(quiet, 99)
                found[f"exec_{name}_{level}_p50_ms"] = round(report.percentile(one.commands, 50), 2)
                found[f"load_{name}_{level}_cores"] = round(one.load_cores, 2)
            found[f"throughput_kept_{level}"] = report.ratio(idle.load_cores, plain.load_cores)
    return {
        "step_p50_ms": round(report.percentile(all_quiet.steps, 50), 2),
        "step_p99_ms": round(report.percentile(all_quiet.steps, 99), 2),
        "exec_p50_ms": round(report.percentile(all_quiet.commands, 50), 2),
        **found,
    }


def docker_steps(docker: peers.Docker, steps: int, loops: int, *more: str) -> list[str]:
    """Run steps in a container, and return the lines it printed."""
    arguments = ("python3", "-c", STEP, str(steps), str(loops), *more)
    return docker.call("exec", "step", *arguments).decode().split()


@contextmanager
def docker_load(
    docker: peers.Docker, level: int, name: str, options: tuple[str, ...]
) -> Generator[None]:
    """Burn so much of the machine in containers while the block runs."""
    names = [f"{name}-{number}" for number in range(len(shares(level)))]
    for each, cpu in zip(names, shares(level), strict=True):
        docker.call(
            "run", "--detach", "--network", "none", "--name", each,
            "--cpus", f"{cpu:g}", *options, "base", "sh", "-c", BURN,
        )  # fmt: skip
    time.sleep(0.5)
    yield
    docker.call("rm", "--force", *names)


def theirs(layer: Path, steps: int) -> tuple[dict[str, float | None], list[str]]:
    """Measure Docker: containers of equal shares, then load with the least share there is."""
    kinds = {"docker": (), "docker_least_share": ("--cpu-shares", "2")}
    found: dict[str, float | None] = {
        f"inflation_{name}_{level}": None for level in DOCKER_LEVELS for name in kinds
    }
    if absent := peers.missing_tools("docker", "dockerd", "containerd"):
        return found, [f"Docker was not measured: {', '.join(absent)} not installed"]
    with peers.docker(layer) as docker:
        docker.create("step")
        loops = int(docker_steps(docker, 0, 0, str(STEP_MS))[0])
        for level in DOCKER_LEVELS:
            quiet, loaded = Measured(), {name: Measured() for name in kinds}
            for turn in range(ROUNDS):
                quiet.steps += map(float, docker_steps(docker, steps // ROUNDS, loops))
                for name, options in kinds.items():
                    with docker_load(docker, level, f"{name}-{level}-{turn}", options):
                        timed = docker_steps(docker, steps // ROUNDS, loops)
                    loaded[name].steps += map(float, timed)
            for name, one in loaded.items():
                found[f"inflation_{name}_{level}"] = one.inflation(quiet, 50)
                found[f"inflation_{name}_{level}_p99"] = one.inflation(quiet, 99)
    return found, []


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=120, help="steps under each load")
    options = parser.parse_args()
    state = local.state_dir()
    local.up(state, progress=lambda line: None)
    try:
        figures: dict[str, float | int | str | None] = {**asyncio.run(ours(options.n))}
    finally:
        local.down(state, progress=lambda line: None)
    layer = peers.base_layer(state)
    medians, notes = theirs(layer, options.n)
    figures.update(medians)
    figures["n"] = options.n
    notes.append(
        "inflation: a percentile (the median where none is named) of a step's time under load, "
        "divided by the same without load; plain: load of the step's own class, "
        "idle: best-effort load, whose groups are SCHED_IDLE"
    )
    report.write("qos", figures, notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
