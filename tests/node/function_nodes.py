"""Nodes that serve function calls, and environments for them made of what this host has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from layering import add_tree, finish, publish, resolve
from node.nodes import RunningNode, build_tiny_layer
from requirements import REPOSITORY

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import NotFound
from sandfleet_common.ids import environment_token
from sandfleet_common.messages import LayerKind
from sandfleet_node.functions.calls import is_warm
from sandfleet_node.layers import DirectoryStore

PYTHON = "debian"
LANGUAGES = "languages"
_PACKAGES = (
    "gcc-12 cpp-12 g++-12 libgcc-12-dev libstdc++-12-dev libc6-dev linux-libc-dev gcc g++ "
    "binutils-x86-64-linux-gnu binutils"
)
_WANTED = re.compile(r"/usr/(bin|include|lib)/(?!.*(lto1$|/plugin/|/gold/|\.py$))")


def python_layers(root: Path) -> DirectoryStore:
    """Return a store with the Debian base, which has Python and bash, and a tiny environment."""
    shared = Path(os.environ.get("SANDFLEET_STATE_DIR", REPOSITORY / ".sandfleet")) / "layers"
    try:
        base = resolve(DirectoryStore(shared), PYTHON)
    except NotFound:
        pytest.skip("doctor line `base layer`: build it with `sandfleet up`")
    build_tiny_layer(root)
    for digest in base.layers:
        name = digest.partition(":")[2]
        (root / "blobs" / "sha256" / name).symlink_to(shared / "blobs" / "sha256" / name)
    store = DirectoryStore(root)
    layers = [finish(store.layer(digest)) for digest in base.layers]
    publish(store, PYTHON, base.reference.partition(":")[2], layers, env=base.env)
    return store


def add_languages(store: DirectoryStore) -> None:
    """Add an environment with this host's compilers and node on top of the Debian base."""
    node = shutil.which("node")
    if node is None or shutil.which("dpkg") is None or shutil.which("gcc-12") is None:
        pytest.skip("needs gcc-12 and g++-12 of a Debian, and node")
    listed = subprocess.run(
        ["dpkg", "-L", *_PACKAGES.split()], capture_output=True, text=True, check=False
    ).stdout.split("\n")
    files = {path for path in listed if _WANTED.match(path) and not Path(path).is_dir()}
    files.add(node)
    tree = store.temporary("languages")
    for path in sorted(files | _libraries(files)):
        _copy(Path(path), tree)
    base = resolve(store, PYTHON)
    toolkit = add_tree(store, tree, LayerKind.TOOLKIT)
    layers = [toolkit, *(finish(store.layer(digest)) for digest in base.layers)]
    publish(store, LANGUAGES, "1", layers, env=base.env)


def _libraries(files: set[str]) -> set[str]:
    programs = [f for f in files if os.access(f, os.X_OK) and Path(f).stat().st_size > 4096]
    told = subprocess.run(["ldd", *programs], capture_output=True, text=True, check=False).stdout
    return set(re.findall(r"=> (/\S+) \(", told))


def _copy(source: Path, tree: Path) -> None:
    """Copy a file, and what it links to, without following links on the way into the tree."""
    real = source.resolve()
    target = tree / str(real).lstrip("/")
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(real, target)
    place = source.parent.resolve() / source.name
    link = tree / str(place).lstrip("/")
    if not link.exists() and not link.is_symlink():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(real)


async def call(node: RunningNode, code: str, **fields: Any) -> m.FunctionResult:
    """Make a function call over the bus, as a client does."""
    fields.setdefault("environment", PYTHON)
    body = m.FunctionCall(code=code, **fields)
    token = environment_token(body.environment)
    return await node.bus.ask(s.FUNCTION_CALL, body, within=60, environment=token)


def warm_ids(node: RunningNode) -> list[str]:
    """Return the ids of the node's warm sandboxes."""
    return [sandbox.id for sandbox in node.node.sandboxes if is_warm(sandbox)]
