"""How fast a command runs in a sandbox that is up: Sandfleet, bare runc, Docker, in one run.

One command after another, `true`, from the call until its exit code is known.

    make bench-exec
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Callable
from pathlib import Path

import peers
import report

from sandfleet import AsyncClient, local


async def ours(count: int) -> list[float]:
    """Run `true` `count` times through the SDK over NATS; return latencies in ms."""
    taken: list[float] = []
    async with AsyncClient.connect() as client, await client.create() as sandbox:
        for number in range(count + 20):
            began = time.perf_counter()
            result = await sandbox.run(["true"])
            if number >= 20:  # the first ones warm caches up
                taken.append((time.perf_counter() - began) * 1000)
            if result.exit_code != 0:
                raise RuntimeError(f"true exited with {result.exit_code}")
    return taken


def peer(
    create: Callable[[str], None], execute: Callable[[str, list[str]], None], count: int
) -> list[float]:
    """Run `true` `count` times in one container of a peer; return latencies in ms."""
    create("bench-exec")
    taken: list[float] = []
    for number in range(count + 2):
        began = time.perf_counter()
        execute("bench-exec", ["true"])
        if number >= 2:
            taken.append((time.perf_counter() - began) * 1000)
    return taken


def theirs(layer: Path, count: int) -> tuple[dict[str, float | None], list[str]]:
    """Measure the peers that are installed."""
    medians: dict[str, float | None] = {"runc_p50_ms": None, "docker_p50_ms": None}
    notes: list[str] = []
    if absent := peers.missing_tools("runc"):
        notes.append(f"runc was not measured: {', '.join(absent)} not installed")
    else:
        with peers.runc(layer) as runc:
            medians["runc_p50_ms"] = report.percentile(peer(runc.create, runc.execute, count), 50)
    if absent := peers.missing_tools("docker", "dockerd", "containerd"):
        notes.append(f"Docker was not measured: {', '.join(absent)} not installed")
    else:
        with peers.docker(layer) as docker:
            taken = peer(docker.create, docker.execute, count)
            medians["docker_p50_ms"] = report.percentile(taken, 50)
    return medians, notes


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=1000, help="commands through Sandfleet")
    parser.add_argument("--peer", type=int, default=40, help="commands through each peer")
    options = parser.parse_args()
    state = local.state_dir()
    local.up(state, progress=lambda line: None)
    try:
        taken = asyncio.run(ours(options.n))
    finally:
        local.down(state, progress=lambda line: None)
    layer = peers.base_layer(state)
    medians, notes = theirs(layer, options.peer)
    p50 = report.percentile(taken, 50)
    docker_p50 = medians["docker_p50_ms"]
    report.write(
        "exec",
        {
            "sdk_p50_ms": round(p50, 2),
            "sdk_p99_ms": round(report.percentile(taken, 99), 2),
            "runc_p50_ms": round(medians["runc_p50_ms"], 1) if medians["runc_p50_ms"] else None,
            "docker_p50_ms": round(docker_p50, 1) if docker_p50 else None,
            "ratio_docker": report.ratio(docker_p50, p50) if docker_p50 else None,
            "n": options.n,
        },
        notes,
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
