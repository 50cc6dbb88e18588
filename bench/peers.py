"""The peers of the benchmarks, driven by hand: bare runc and Docker Engine.

Both run the same base layer as Sandfleet does. Each is a context manager that
ends and removes all that it started.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from sandfleet_common.logs import Logger
from sandfleet_node.disk.mounts import attach_in, open_mount
from sandfleet_node.layers import Catalog, DirectoryStore

IDLE = ["sleep", "86400"]


def missing_tools(*names: str) -> list[str]:
    """Return those of `names` that are not installed."""
    return [name for name in names if shutil.which(name) is None]


def _run(
    argv: list[str], *, cwd: Path | None = None, stdin: IO[bytes] | None = None
) -> subprocess.CompletedProcess[bytes]:
    done = subprocess.run(argv, cwd=cwd, stdin=stdin, capture_output=True, check=False)
    if done.returncode != 0:
        text = done.stderr.decode(errors="replace").strip()[-400:]
        raise RuntimeError(f"{' '.join(argv[:4])} ... failed ({done.returncode}): {text}")
    return done


def base_layer(state: Path) -> Path:
    """Return the folder of the base layer, as a started platform has it."""
    store = DirectoryStore(state / "layers")

    async def newest() -> str:
        catalog = Catalog(store, Logger("bench"))
        return (await catalog.resolve("debian")).layers[-1]

    return store.folder(asyncio.run(newest()))


@contextmanager
def mounted(layer: Path) -> Generator[Path]:
    """Mount a layer, given its folder, while the block runs; files serve as its devices."""
    with tempfile.TemporaryDirectory(prefix="sandfleet-bench-") as folder:
        where = Path(folder) / "base"
        where.mkdir()
        mount = open_mount(
            "erofs", str(layer / "meta"), {"device": str(layer / "data"), "ro": None}
        )
        try:
            attach_in(os.getpid(), mount, where)
        finally:
            os.close(mount)
        try:
            yield where
        finally:
            _run(["umount", str(where)])


class Runc:
    """Bare `runc run`: an overlay on the layer and a bundle per container, nothing else."""

    def __init__(self, base: Path, folder: Path) -> None:
        self._base = base
        self._folder = folder
        self._root = folder / "runc"
        template = folder / "template"
        template.mkdir()
        _run(["runc", "spec"], cwd=template)
        self._config = json.loads((template / "config.json").read_text())
        self._config["process"].update(args=IDLE, terminal=False)
        self._config["root"]["readonly"] = False
        self._made: list[str] = []

    def create(self, name: str) -> None:
        """Mount an overlay and run a container that idles."""
        bundle = self._folder / name
        for part in ("upper", "work", "rootfs"):
            (bundle / part).mkdir(parents=True)
        options = f"lowerdir={self._base},upperdir={bundle}/upper,workdir={bundle}/work"
        _run(["mount", "-t", "overlay", "overlay", "-o", options, str(bundle / "rootfs")])
        self._made.append(name)
        (bundle / "config.json").write_text(json.dumps(self._config))
        with (bundle / "log").open("wb") as log:
            started = subprocess.run(
                [
                    "runc", "--root", str(self._root),
                    "run", "--detach", "--bundle", str(bundle), name,
                ],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, check=False,
            )  # fmt: skip
        if started.returncode != 0:
            raise RuntimeError(f"runc run failed: {(bundle / 'log').read_text()[-400:]}")

    def execute(self, name: str, argv: list[str]) -> None:
        """Run a command in a container."""
        _run(["runc", "--root", str(self._root), "exec", name, *argv])

    def close(self) -> None:
        """Delete all containers and their mounts."""
        for name in self._made:
            subprocess.run(
                ["runc", "--root", str(self._root), "delete", "--force", name],
                capture_output=True, check=False,
            )  # fmt: skip
            subprocess.run(
                ["umount", "--lazy", str(self._folder / name / "rootfs")],
                capture_output=True, check=False,
            )  # fmt: skip


@contextmanager
def runc(layer: Path) -> Generator[Runc]:
    """Bare runc on `layer`."""
    with mounted(layer) as base, tempfile.TemporaryDirectory(prefix="sandfleet-bench-") as folder:
        peer = Runc(base, Path(folder))
        try:
            yield peer
        finally:
            peer.close()


class Docker:
    """Docker Engine with an image made from the layer, no network."""

    def __init__(self, folder: Path) -> None:
        self._host = f"unix://{folder}/docker.sock"

    def call(self, *words: str, stdin: IO[bytes] | None = None) -> bytes:
        """Run one docker command and return what it printed."""
        return _run(["docker", "--host", self._host, *words], stdin=stdin).stdout

    def create(self, name: str) -> None:
        """`docker run` a container that idles."""
        self.call("run", "--detach", "--network", "none", "--name", name, "base", *IDLE)

    def execute(self, name: str, argv: list[str]) -> None:
        """`docker exec` a command."""
        self.call("exec", name, *argv)

    def remove_all(self) -> None:
        """Remove every container of this engine."""
        names = self.call("ps", "--all", "--quiet").decode().split()
        for start in range(0, len(names), 50):
            self.call("rm", "--force", *names[start : start + 50])


@contextmanager
def docker(layer: Path) -> Generator[Docker]:
    """Start a Docker Engine of our own by hand, and end it with the block."""
    with tempfile.TemporaryDirectory(prefix="sandfleet-bench-") as text:
        folder = Path(text)
        with (folder / "dockerd.log").open("wb") as log:
            daemon = subprocess.Popen(
                [
                    "dockerd", "--iptables=false", "--ip6tables=false", "--bridge=none",
                    "--data-root", str(folder / "data"), "--exec-root", str(folder / "exec"),
                    "--pidfile", str(folder / "pid"), "--host", f"unix://{folder}/docker.sock",
                ],
                stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        peer = Docker(folder)
        try:
            _wait_for_engine(peer, daemon, folder)
            with mounted(layer) as base:
                tar = subprocess.Popen(
                    ["tar", "--create", "--directory", str(base), "."], stdout=subprocess.PIPE
                )
                peer.call("import", "-", "base", stdin=tar.stdout)
                tar.wait()
            yield peer
            peer.remove_all()
        finally:
            daemon.terminate()
            try:
                daemon.wait(30)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            _unmount_below(folder)


def _wait_for_engine(peer: Docker, daemon: subprocess.Popen[bytes], folder: Path) -> None:
    until = time.monotonic() + 60
    while True:
        try:
            peer.call("version")
            return
        except RuntimeError:
            if daemon.poll() is not None or time.monotonic() > until:
                text = (folder / "dockerd.log").read_text(errors="replace")[-600:]
                raise RuntimeError(f"dockerd did not start: {text}") from None
            time.sleep(0.2)


def _unmount_below(folder: Path) -> None:
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in sorted((m for m in mounts if m.startswith(f"{folder}{os.sep}")), reverse=True):
        subprocess.run(["umount", "--lazy", mount], capture_output=True, check=False)
