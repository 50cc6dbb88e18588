"""A launcher with one small layer, and sandboxes on it."""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
from collections.abc import Callable, Generator
from pathlib import Path

import pytest
from native.driver import REPOSITORY, Agent, Launcher
from requirements import need_root

PASSWD = """root:x:0:0:root:/root:/bin/sh
user:x:1000:1000::/home/user:/bin/sh
"""
GROUP = """root:x:0:
user:x:1000:
extra:x:1001:user
"""

_names = itertools.count()


@pytest.fixture(scope="session")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a root directory with a static busybox and the probe."""
    need_root()
    busybox = shutil.which("busybox")
    if (
        busybox is None
        or b"statically" not in subprocess.run(["file", busybox], capture_output=True).stdout
    ):
        pytest.skip("needs a static busybox (Debian's busybox-static)")
    subprocess.run(["make", "-s", "-C", REPOSITORY / "native", "probe"], check=True)
    tree = tmp_path_factory.mktemp("tree")
    for directory in ("bin", "etc", "root", "tmp", "proc", "sys", "dev", "home/user"):
        (tree / directory).mkdir(parents=True)
    shutil.copy(busybox, tree / "bin" / "busybox")
    shutil.copy(REPOSITORY / "native" / "build" / "probe", tree / "bin" / "probe")
    names = subprocess.run([busybox, "--list"], capture_output=True, text=True, check=True).stdout
    for name in set(names.split()) - {"busybox"}:
        (tree / "bin" / name).symlink_to("busybox")
    (tree / "etc" / "passwd").write_text(PASSWD)
    (tree / "etc" / "group").write_text(GROUP)
    (tree / "etc" / "secret").write_text("for root only")
    (tree / "etc" / "secret").chmod(0o600)
    (tree / "tmp").chmod(0o1777)
    os.chown(tree / "home" / "user", 1000, 1000)
    return tree


@pytest.fixture(scope="session")
def image(tree: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tree as an erofs image."""
    if shutil.which("mkfs.erofs") is None:
        pytest.skip("needs mkfs.erofs (Debian's erofs-utils)")
    image = tmp_path_factory.mktemp("image") / "base.erofs"
    subprocess.run(["mkfs.erofs", image, tree], check=True, capture_output=True)
    return image


@pytest.fixture
def launcher(tmp_path: Path, tree: Path) -> Generator[Launcher]:
    """Return a launcher of the test's own, with the layer `base`."""
    launcher = Launcher(tmp_path)
    try:
        launcher.hello()
        launcher.ask("layer", ("digest", "base"), ("path", os.fspath(tree)), ("fs", "dir"))
        yield launcher
    finally:
        launcher.close()


@pytest.fixture(scope="module")
def shared_launcher(tmp_path_factory: pytest.TempPathFactory, tree: Path) -> Generator[Launcher]:
    """Return a launcher that the tests of one module share."""
    launcher = Launcher(tmp_path_factory.mktemp("launcher"))
    try:
        launcher.hello()
        launcher.ask("layer", ("digest", "base"), ("path", os.fspath(tree)), ("fs", "dir"))
        yield launcher
    finally:
        launcher.close()


@pytest.fixture
def agent(shared_launcher: Launcher) -> Generator[Agent]:
    """Return a fresh sandbox's agent; the sandbox ends with the test."""
    name = f"sb-{next(_names)}"
    agent = shared_launcher.create(name, ["base"])
    yield agent
    agent.close()
    shared_launcher.end(name)


@pytest.fixture
def new_agent(shared_launcher: Launcher) -> Generator[Callable[..., Agent]]:
    """Return a function that makes sandboxes, some with limits."""
    made: list[tuple[str, Agent]] = []

    def make(limits: dict[str, str] | None = None) -> Agent:
        name = f"sb-{next(_names)}"
        made.append((name, shared_launcher.create(name, ["base"], limits=limits)))
        return made[-1][1]

    yield make
    for name, agent in made:
        agent.close()
        shared_launcher.end(name)
