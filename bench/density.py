"""How many idle sandboxes one machine holds, and what each costs, beside Docker.

One job asks for all of them; they stay. Host memory is MemAvailable before and
after, so that every process and kernel structure counts, those of the scheduler,
Redis and this program included. Then one command runs in each sandbox, one after
another, which shows that all are alive; and then nothing happens for a while, and
CPU time is counted. Docker's containers come afterwards, on the same base layer;
what would fit is extrapolated from the first hundred.

    make bench-density
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

import host
import peers
import report

from sandfleet import AsyncClient, AsyncSandbox, Resources, SandboxSpec, local

SPEC = SandboxSpec(
    resources=Resources(cpu=1, memory_bytes=256 * 1024**2, pids=64), ttl_seconds=7200
)
WATCHED_SECONDS = 30
PEER_MEMORY_BYTES = 24 * 1024**3
PEER_SECONDS = 600

Figures = dict[str, float | int | str | None]


def rate(ready_at: list[float]) -> float:
    """Return how many became ready per second between the first and the last of some."""
    return (len(ready_at) - 1) / (ready_at[-1] - ready_at[0])


async def run_in_each(sandboxes: list[AsyncSandbox]) -> list[float]:
    """Run `true` in every sandbox, one after another; return latencies in ms.

    Raises:
        RuntimeError: one is not alive.
    """
    taken: list[float] = []
    for sandbox in sandboxes:
        began = time.perf_counter()
        result = await sandbox.run(["true"])
        taken.append((time.perf_counter() - began) * 1000)
        if result.exit_code != 0:
            raise RuntimeError(f"true exited with {result.exit_code} in {sandbox.id}")
    return taken


def idle_cores(state: Path, seconds: float) -> tuple[float, float]:
    """Return the cores that node service, launcher and sandboxes use, and the whole platform."""
    places = local.find(state)
    if places is None:
        raise RuntimeError("the platform has gone")
    node = [places.pids["node"], host.process_of("launcher", "--run-dir", str(state))]
    everything = [*node, *places.pids.values()]
    before = host.processes()
    began = time.monotonic()
    time.sleep(seconds)
    after = host.processes()
    spent = time.monotonic() - began
    parts = [
        (host.cpu_seconds(pids, after) - host.cpu_seconds(pids, before)) / spent
        for pids in (node, everything)
    ]
    return parts[0], parts[1]


async def ours(state: Path, count: int) -> Figures:
    """Measure Sandfleet."""
    async with AsyncClient.connect() as client:
        async with await client.create(SPEC) as first:
            await first.run(["true"])
        free = host.settled_available_bytes()
        began = time.perf_counter()
        async with client.job(SPEC, count, deadline_seconds=600) as job:
            sandboxes = [sandbox async for sandbox in job.ready()]
            spent = time.perf_counter() - began
            if job.failures:
                raise RuntimeError(f"{len(job.failures)} failed: {job.failures[0].message}")
            used = free - host.settled_available_bytes()
            cores, all_cores = idle_cores(state, WATCHED_SECONDS)
            taken = await run_in_each(sandboxes)
            dates = [sandbox.info_now.ready_at for sandbox in sandboxes]
            ready_at = sorted(date for date in dates if date is not None)
    return {
        "sandboxes": len(taken),
        "bytes_each": round(used / count),
        "create_rate_per_s": round(count / spent, 1),
        "create_rate_first_100_per_s": round(rate(ready_at[:100]), 1),
        "create_rate_last_100_per_s": round(rate(ready_at[-100:]), 1),
        "exec_p50_ms": round(report.percentile(taken, 50), 2),
        "exec_p99_ms": round(report.percentile(taken, 99), 2),
        "idle_cpu_cores": round(cores, 3),
        "platform_idle_cpu_cores": round(all_cores, 3),
    }


def theirs(layer: Path, count: int) -> tuple[Figures, list[str]]:
    """Run Docker containers that idle, and extrapolate how many would fit."""
    figures: Figures = dict.fromkeys(
        ("docker_bytes_each", "docker_rate_per_s", "docker_fit_24_gib", "docker_fit_10_min")
    )
    if absent := peers.missing_tools("docker", "dockerd", "containerd"):
        return figures, [f"Docker was not measured: {', '.join(absent)} not installed"]
    with peers.docker(layer) as docker:
        docker.create("warm-up")
        free = host.settled_available_bytes()
        began = time.perf_counter()
        for number in range(count):
            docker.create(f"c{number}")
        spent = time.perf_counter() - began
        each = (free - host.settled_available_bytes()) / count
    figures["docker_bytes_each"] = round(each)
    figures["docker_rate_per_s"] = round(count / spent, 2)
    figures["docker_fit_24_gib"] = round(PEER_MEMORY_BYTES / each)
    figures["docker_fit_10_min"] = round(PEER_SECONDS * count / spent)
    note = f"Docker's fits are extrapolated from {count} containers, as if none slowed the next"
    return figures, [note]


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=3200, help="sandboxes to create and keep")
    parser.add_argument("--docker", type=int, default=100, help="Docker containers")
    options = parser.parse_args()
    state = local.state_dir()
    local.up(state, progress=lambda line: None)
    try:
        figures = asyncio.run(ours(state, options.n))
    finally:
        local.down(state, progress=lambda line: None)
    layer = peers.base_layer(state)
    measured, notes = theirs(layer, options.docker)
    figures.update(measured)
    report.write("density", figures, notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
