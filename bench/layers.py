"""Loading layers on demand, beside having them and beside pulling them first; and beside tar.

Three environments of over a gigabyte each (bench/environments: compilers, Python's scientific
stack, Node with packages) lie in an S3 store behind a relay that gives everybody the same
bandwidth. A burst of sandboxes, a third for each environment, runs a real test command in
every one: with all layers on the node already (cached), on demand from an empty cache, and
eagerly: an environment's layers are pulled whole, by four reads at a time, before the first
sandbox that needs them starts. Page caches are dropped before each.

Then the same toolkit and workspace twice, both on the node: as layers, and as a tar.gz that
each sandbox unpacks before it runs the same test.

The bandwidth stands for the share of a node under a fleet's burst: 48 MiB/s for 60 sandboxes
is what DeepSeek's DSec reports for its cold pulls (1,000 GB in 20 minutes for 819 sandboxes on
a node, 1 MB/s for each).

    make bench-layers
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Awaitable, Callable, Generator, Mapping, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import burst
import report
from burst import MIB, Burst, Task
from eager import Puller
from objectserver import ObjectServer
from servers import free_port
from throttle import Throttle

from sandfleet import local
from sandfleet_common.logs import Logger
from sandfleet_node.layers import Catalog, DirectoryStore, LayerFiles, Store, open_store

ENVIRONMENTS = Path(__file__).parent / "environments"
TEST = "cd /work && ./test.sh"
KINDS = tuple(Task(f"bench-{name}", TEST) for name in ("compilers", "science", "node"))
UNPACKED = Task("bench-tools-tar", f"tar -xzf /tools.tar.gz -C / && {TEST}")
LAYERED = Task("bench-tools", TEST)
ALL = [task.environment for task in (*KINDS, LAYERED, UNPACKED)]
Before = Callable[[str], Awaitable[None]]


def build(state: Path) -> None:
    """Build what is missing, by the project's own builder; what is there is found in its cache."""
    local.up(state, progress=lambda line: None)
    try:
        for name in ALL:
            folder = str(ENVIRONMENTS / name.removeprefix("bench-"))
            argv = ["env", "build", folder, "--name", name, "--progress", "quiet"]
            program = Path(sys.executable).with_name("sandfleet")
            subprocess.run([program, *argv], check=True, stdout=subprocess.DEVNULL)
    finally:
        local.down(state, progress=lambda line: None)


def link(files: LayerFiles, folder: Path) -> None:
    """Put a layer's files into a folder that a store may empty."""
    for name, path in (("meta", files.meta), ("data", files.data)):
        (folder / name).symlink_to(path)


async def publish(source: DirectoryStore, target: Store) -> int:
    """Copy the environments of the bursts to another store; return the bytes of their layers."""
    catalog, sizes = Catalog(source, Logger("bench")), dict[str, int]()
    for task in KINDS:
        found = await catalog.resolve(task.environment)
        for digest in found.layers:
            if digest in sizes:
                continue
            layer, files = await source.layer(digest), source.files(digest)
            assert files is not None, digest
            sizes[digest] = layer.size_bytes
            with tempfile.TemporaryDirectory() as folder:
                link(files, Path(folder))
                await target.add(Path(folder), layer.kind, created_at=layer.created_at)
        record = found.reference.replace(":", "/")
        content = await source.record("environments", record)
        assert content is not None, record
        await target.put_record("environments", record, content)
    return sum(sizes.values())


@contextlib.contextmanager
def platform(state: Path, variables: Mapping[str, str]) -> Generator[Path]:
    """Run a platform with an empty state directory; give that of its node."""
    shutil.rmtree(state, ignore_errors=True)
    before = dict(os.environ)
    os.environ.update(variables, SANDFLEET_STATE_DIR=str(state))
    try:
        local.up(state, progress=lambda line: None, build=False)
        try:
            yield next((state / "node").iterdir())
        finally:
            local.down(state, progress=lambda line: None)
    finally:
        os.environ.clear()
        os.environ.update(before)
        shutil.rmtree(state, ignore_errors=True)


def run_burst(
    state: Path,
    variables: Mapping[str, str],
    tasks: Sequence[Task],
    source: Store | None = None,
) -> Burst:
    """Run a burst on a platform of its own; with `source`, pull from it before each sandbox."""
    with platform(state, variables) as node:

        async def go() -> Burst:
            before: Before | None = None
            if source is not None:
                before = Puller(source, DirectoryStore(node / "layers")).pull
            return await burst.run(state, tasks, before)

        return asyncio.run(go())


def measure(options: argparse.Namespace) -> tuple[dict[str, float | int | str | None], list[str]]:
    """Run everything; return figures and notes."""
    state = local.state_dir()
    build(state)
    source = DirectoryStore(state / "layers")
    place = Path(tempfile.mkdtemp(prefix="sandfleet-bench-", dir=state))
    server, port = ObjectServer(place / "objects"), free_port()
    os.environ.update(server.variables)
    endpoint = f"http://127.0.0.1:{port}"
    near = {"SANDFLEET_NODE_STORE_URL": source.root.as_uri()}
    far = {"SANDFLEET_NODE_STORE_URL": server.url, "SANDFLEET_NODE_STORE_ENDPOINT": endpoint}
    tasks = burst.mixed(KINDS, options.n)
    pairs = [LAYERED] * options.tar, [UNPACKED] * options.tar
    try:
        server.start()
        size = asyncio.run(publish(source, open_store(server.url, server.endpoint)))
        with Throttle(port, server.port, options.bandwidth * MIB) as relay:
            cached = run_burst(place / "state", near, tasks)
            counts = [relay.count()]
            ondemand = run_burst(place / "state", far, tasks)
            counts.append(relay.count())
            eager = run_burst(place / "state", far, tasks, open_store(server.url, endpoint))
            counts.append(relay.count())
        layered, unpacked = (run_burst(place / "state", near, pair) for pair in pairs)
    finally:
        server.kill()
        shutil.rmtree(place, ignore_errors=True)
    bytes_ondemand, bytes_eager = counts[1] - counts[0], counts[2] - counts[1]
    figures: dict[str, float | int | str | None] = {
        "sandboxes": options.n,
        "environments_bytes": size,
        "bandwidth_mib_per_s": options.bandwidth,
        "cached_s": round(cached.seconds, 1),
        "ondemand_s": round(ondemand.seconds, 1),
        "eager_s": round(eager.seconds, 1),
        "ratio_ondemand": report.ratio(ondemand.seconds, cached.seconds),
        "ratio_eager": report.ratio(eager.seconds, ondemand.seconds),
        "bytes_ondemand": bytes_ondemand,
        "bytes_eager": bytes_eager,
        "bytes_saved_fraction": round(1 - bytes_ondemand / bytes_eager, 3),
        "disk_written_cached": cached.written_bytes,
        "disk_written_ondemand": ondemand.written_bytes,
        "disk_written_eager": eager.written_bytes,
        "first_cached_s": round(cached.first_seconds, 1),
        "first_ondemand_s": round(ondemand.first_seconds, 1),
        "first_eager_s": round(eager.first_seconds, 1),
        "tar_sandboxes": options.tar,
        "tar_s": round(unpacked.seconds, 1),
        "layered_s": round(layered.seconds, 1),
        "ratio_tar": report.ratio(unpacked.seconds, layered.seconds),
        "disk_written_tar": unpacked.written_bytes,
        "disk_written_layered": layered.written_bytes,
    }
    return figures, [
        "a third of the sandboxes each: compilers, scientific Python, Node; every one runs a test",
        "cached: a directory store on the node's disk, mounted where it lies; no FUSE",
    ]


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("-n", type=int, default=60, help="sandboxes of each burst")
    parser.add_argument("--tar", type=int, default=16, help="sandboxes that unpack, or do not")
    parser.add_argument("--bandwidth", type=int, default=48, help="of the store, in MiB/s")
    report.write("layers", *measure(parser.parse_args()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
