"""How fast sandboxes are created: Sandfleet, bare runc, Docker, in one run.

Sandfleet is measured from the outside: SDK, NATS, scheduler, node, launcher,
agent ready. First paced creations give the latency, then many at once the rate,
all of them kept alive, so that a slowdown with their number would show. The
peers create containers that idle, on the same base layer.

    make bench-create
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import peers
import report

from sandfleet import AsyncClient, AsyncSandbox, Resources, SandboxSpec, local

SPEC = SandboxSpec(resources=Resources(cpu=1, memory_bytes=256 * 1024**2, pids=64))
PACE_PER_S = 50
PACED = 300
AT_ONCE = 16
"""Creations in flight while the rate is measured."""
PEERS_AT_ONCE = 4
"""More than cores: the peers wait for the kernel, too."""


async def paced(client: AsyncClient) -> list[float]:
    """Create PACED sandboxes at PACE_PER_S, whatever each takes; return their latencies in ms."""
    taken: list[float] = []
    made: list[AsyncSandbox] = []

    async def one() -> None:
        began = time.perf_counter()
        made.append(await client.create(SPEC))
        taken.append((time.perf_counter() - began) * 1000)

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number in range(PACED):
            await asyncio.sleep(max(0.0, start + number / PACE_PER_S - time.perf_counter()))
            group.create_task(one())
    await stop_all(made)
    return taken


async def sustained(client: AsyncClient, count: int) -> tuple[float, float, float]:
    """Create `count` sandboxes and keep them; return rates per second: all, first and last 100."""
    done_at: list[float] = []
    made: list[AsyncSandbox] = []
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            made.append(await client.create(SPEC))
            done_at.append(time.perf_counter())

    start = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(worker())
    first = min(100, count)
    rates = (
        count / (done_at[-1] - start),
        first / (done_at[first - 1] - start),
        first / (done_at[-1] - done_at[-first - 1] if count > first else done_at[-1] - start),
    )
    await stop_all(made)
    return rates


async def stop_all(sandboxes: list[AsyncSandbox]) -> None:
    """Stop sandboxes, a few at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def stop(sandbox: AsyncSandbox) -> None:
        async with gate:
            await sandbox.stop()

    async with asyncio.TaskGroup() as group:
        for sandbox in sandboxes:
            group.create_task(stop(sandbox))


def peer_rate(create: Callable[[str], None], count: int) -> float:
    """Create `count` containers, PEERS_AT_ONCE at a time; return how many a second."""
    create("warm-up")
    start = time.perf_counter()
    with ThreadPoolExecutor(PEERS_AT_ONCE) as pool:
        list(pool.map(create, [f"c{number}" for number in range(count)]))
    return count / (time.perf_counter() - start)


async def ours(count: int) -> dict[str, float]:
    """Measure Sandfleet."""
    async with AsyncClient.connect() as client:
        await stop_all([await client.create(SPEC) for _ in range(5)])
        taken = await paced(client)
        rate, first, last = await sustained(client, count)
    return {
        "native_p50_ms": round(report.percentile(taken, 50), 2),
        "native_p99_ms": round(report.percentile(taken, 99), 2),
        "native_rate_per_s": round(rate, 1),
        "rate_first_100_per_s": round(first, 1),
        "rate_last_100_per_s": round(last, 1),
    }


def theirs(
    layer: Path, runc_count: int, docker_count: int
) -> tuple[dict[str, float | None], list[str]]:
    """Measure the peers that are installed."""
    rates: dict[str, float | None] = {"runc_rate_per_s": None, "docker_rate_per_s": None}
    notes: list[str] = []
    if absent := peers.missing_tools("runc"):
        notes.append(f"runc was not measured: {', '.join(absent)} not installed")
    else:
        with peers.runc(layer) as runc:
            rates["runc_rate_per_s"] = round(peer_rate(runc.create, runc_count), 2)
    if absent := peers.missing_tools("docker", "dockerd", "containerd"):
        notes.append(f"Docker was not measured: {', '.join(absent)} not installed")
    else:
        with peers.docker(layer) as docker:
            rates["docker_rate_per_s"] = round(peer_rate(docker.create, docker_count), 2)
    return rates, notes


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=1000, help="sandboxes to create and keep")
    parser.add_argument("--runc", type=int, default=60, help="runc containers")
    parser.add_argument("--docker", type=int, default=24, help="Docker containers")
    options = parser.parse_args()
    state = local.state_dir()
    local.up(state, progress=lambda line: None)
    try:
        figures: dict[str, float | int | str | None] = {**asyncio.run(ours(options.n))}
    finally:
        local.down(state, progress=lambda line: None)
    layer = peers.base_layer(state)
    rates, notes = theirs(layer, options.runc, options.docker)
    native = float(figures["native_rate_per_s"] or 0)
    figures.update(rates)
    for peer in ("runc", "docker"):
        rate = rates[f"{peer}_rate_per_s"]
        figures[f"ratio_{peer}"] = report.ratio(native, rate) if rate else None
    figures["n"] = options.n
    report.write("create", figures, notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
