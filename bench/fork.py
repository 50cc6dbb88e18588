"""How fast a sandbox with a dirty disk becomes a snapshot and many children, beside Docker.

The parent has written 200 MB, half of it random, in some thousand files. It is snapshotted
into the store; then it is forked, once for a single child and once for many. Every child says
the digest of all its files, which must be the parent's, writes to the same file as all others,
and must find its own words there and nothing else. `docker commit` and `docker run` do the
same with a container of the same content.

    make bench-fork
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import peers
import report

from sandfleet import AsyncClient, AsyncSandbox, Resources, SandboxSpec, local
from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.ids import new_sandbox_id, new_snapshot_id, node_of

SPEC = SandboxSpec(resources=Resources(cpu=1, memory_bytes=512 * 1024**2, pids=64))
ROUNDS = 5
CHECKS_AT_ONCE = 8
PEERS_AT_ONCE = 4
WITHIN_SECONDS = 300.0

DIRTY = """
import os
os.makedirs("/srv/data", exist_ok=True)
for number in range(1000):
    with open(f"/srv/data/{number}", "wb") as file:
        file.write(os.urandom(100_000) + b"%0100000d" % number)
"""
"""200 MB in a thousand files."""

DIGEST = """
import hashlib, os
total = hashlib.sha256()
for folder, folders, names in os.walk("/srv/data"):
    folders.sort()
    for name in sorted(names):
        total.update(name.encode())
        with open(os.path.join(folder, name), "rb") as file:
            total.update(file.read())
print(total.hexdigest())
"""

BodyT = TypeVar("BodyT", bound=m.Message)
ReplyT = TypeVar("ReplyT", bound=m.Message)
Figures = dict[str, float | int | str | None]


@dataclass(frozen=True, slots=True)
class Fork:
    """One fork: how long it took in all, and until each child was ready, in ms."""

    total_ms: float
    ready_ms: list[float]
    frozen_ms: float
    pack_ms: float
    children: list[str]


async def said(sandbox: AsyncSandbox, *argv: str) -> str:
    """Run a command that must succeed and return what it printed."""
    result = await sandbox.run(list(argv))
    if result.exit_code != 0:
        raise RuntimeError(f"{argv[0]} exited with {result.exit_code}: {result.stderr[-300:]}")
    return result.stdout.decode().strip()


async def ask(client: AsyncClient, subject: s.Subject[BodyT, ReplyT], body: BodyT) -> ReplyT:
    """Ask a node in its own words: how long each part took is not what the SDK returns."""
    transport = client._connection.transport  # pyright: ignore[reportPrivateUsage]
    return await transport.call(subject, body, within=WITHIN_SECONDS)


async def snapshot(client: AsyncClient, sandbox: AsyncSandbox) -> tuple[float, m.SnapshotInfo]:
    """Take a snapshot; return how long it took until it was ready, in ms."""
    node = node_of(sandbox.id)
    body = m.SandboxSnapshot(
        sandbox_id=sandbox.id, snapshot_id=new_snapshot_id(node), wait_seconds=60
    )
    began = time.perf_counter()
    info = await ask(client, s.SNAPSHOT, body)
    if info.state is not m.SnapshotState.READY:
        raise RuntimeError(f"the snapshot is {info.state}: {info.failure}")
    return (time.perf_counter() - began) * 1000, info


async def fork(client: AsyncClient, sandbox: AsyncSandbox, count: int) -> Fork:
    """Fork a sandbox into so many children."""
    node = node_of(sandbox.id)
    body = m.SandboxFork(
        sandbox_id=sandbox.id, snapshot_id=new_snapshot_id(node),
        children=[new_sandbox_id(node) for _ in range(count)], deadline_seconds=WITHIN_SECONDS,
    )  # fmt: skip
    began, began_at = time.perf_counter(), time.time()
    forked = await ask(client, s.FORK, body)
    total = (time.perf_counter() - began) * 1000
    failed = [o.failure for o in forked.outcomes if o.status != "ready"]
    if failed:
        raise RuntimeError(f"{len(failed)} of {count} children were not created: {failed[0]}")
    ready = [((o.info.ready_at or 0) - began_at) * 1000 for o in forked.outcomes if o.info]
    shared = forked.snapshot
    return Fork(total, ready, shared.frozen_ms or 0, shared.packed_ms or 0, body.children)


async def verify(client: AsyncClient, children: list[str], digest: str) -> None:
    """Have each child prove what it holds, and that it holds nothing of the others'."""
    gate = asyncio.Semaphore(CHECKS_AT_ONCE)
    sandboxes = [await client.get(child) for child in children]

    async def write(sandbox: AsyncSandbox) -> None:
        async with gate:
            found = await said(sandbox, "python3", "-c", DIGEST)
            if found != digest:
                raise RuntimeError(f"{sandbox.id} does not hold its parent's files")
            await said(sandbox, "sh", "-c", f"echo {sandbox.id} >> /srv/data/7")

    async def read(sandbox: AsyncSandbox) -> None:
        async with gate:
            found = await said(sandbox, "tail", "-c", str(len(sandbox.id) + 2), "/srv/data/7")
            if found != f"7{sandbox.id}":
                raise RuntimeError(f"{sandbox.id} sees what another wrote: {found!r}")

    async with asyncio.TaskGroup() as group:
        for sandbox in sandboxes:
            group.create_task(write(sandbox))
    async with asyncio.TaskGroup() as group:
        for sandbox in sandboxes:
            group.create_task(read(sandbox))


async def stop(client: AsyncClient, ids: list[str]) -> None:
    """Stop sandboxes."""
    async with asyncio.TaskGroup() as group:
        for sandbox_id in ids:
            group.create_task((await client.get(sandbox_id)).stop())


async def ours(count: int) -> Figures:
    """Measure Sandfleet."""
    async with AsyncClient.connect() as client, await client.create(SPEC) as parent:
        await said(parent, "python3", "-c", DIRTY)
        digest = await said(parent, "python3", "-c", DIGEST)
        snapshots: list[tuple[float, m.SnapshotInfo]] = []
        for number in range(ROUNDS):
            await said(parent, "sh", "-c", f"echo {number} > /srv/round")
            snapshots.append(await snapshot(client, parent))
        singles = [await fork(client, parent, 1) for _ in range(ROUNDS)]
        many = await fork(client, parent, count)
        await verify(client, many.children, digest)
        if await said(parent, "python3", "-c", DIGEST) != digest:
            raise RuntimeError("the parent's files have changed")
        ends = [*many.children, *(child for one in singles for child in one.children)]
        await stop(client, ends)
    return {
        "snapshot_ms": round(median(ms for ms, _ in snapshots)),
        "frozen_ms": round(median(info.frozen_ms or 0 for _, info in snapshots), 1),
        "pack_ms": round(median(info.packed_ms or 0 for _, info in snapshots)),
        "store_ms": round(median(info.stored_ms or 0 for _, info in snapshots)),
        "fork_p50_ms": round(median(one.total_ms for one in singles), 1),
        "fork_frozen_ms": round(median(one.frozen_ms for one in [*singles, many]), 1),
        "children": count,
        "children_ms": round(many.total_ms),
        "children_p50_ms": round(report.percentile(many.ready_ms, 50)),
        "children_p99_ms": round(report.percentile(many.ready_ms, 99)),
        "children_per_s": round(count / many.total_ms * 1000, 1),
        "verified": count,
    }


def theirs(layer: Path, count: int) -> tuple[Figures, list[str]]:
    """Measure `docker commit` and `docker run`."""
    figures: Figures = dict.fromkeys(
        ("docker_commit_ms", "docker_fork_ms", "docker_children_per_s")
    )
    if absent := peers.missing_tools("docker", "dockerd", "containerd"):
        return figures, [f"Docker was not measured: {', '.join(absent)} not installed"]
    with peers.docker(layer) as docker:
        docker.create("parent")
        docker.call("exec", "parent", "python3", "-c", DIRTY)
        began = time.perf_counter()
        docker.call("commit", "parent", "moment")
        commit_ms = (time.perf_counter() - began) * 1000
        idle = ["--detach", "--network", "none"]
        docker.call("run", *idle, "moment", *peers.IDLE)
        fork_ms = (time.perf_counter() - began) * 1000

        def run(number: int) -> None:
            docker.call("run", *idle, "--name", f"child{number}", "moment", *peers.IDLE)

        began = time.perf_counter()
        with ThreadPoolExecutor(PEERS_AT_ONCE) as pool:
            list(pool.map(run, range(count)))
        seconds = time.perf_counter() - began
    figures.update(
        docker_commit_ms=round(commit_ms),
        docker_fork_ms=round(fork_ms),
        docker_children_per_s=round(count / seconds, 1),
    )
    return figures, [
        f"docker: {count} children, {PEERS_AT_ONCE} at a time; the commit is in docker_fork_ms and "
        "not in docker_children_per_s, as the fork is in children_per_s"
    ]


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=100, help="children of one fork, at most 256")
    parser.add_argument("--docker", type=int, default=20, help="Docker's children")
    options = parser.parse_args()
    state = local.state_dir()
    local.up(state, progress=lambda line: None)
    try:
        figures = asyncio.run(ours(options.n))
    finally:
        local.down(state, progress=lambda line: None)
    measured, notes = theirs(peers.base_layer(state), options.docker)
    figures.update(measured)
    for key, slower, faster in (
        ("ratio_fork", "docker_fork_ms", "fork_p50_ms"),
        ("ratio_children", "children_per_s", "docker_children_per_s"),
    ):
        numbers = [float(figures[name] or 0) for name in (slower, faster)]
        figures[key] = report.ratio(numbers[0], numbers[1]) if all(numbers) else None
    report.write("fork", figures, notes)
    return 0


if __name__ == "__main__":
    sys.exit(main())
