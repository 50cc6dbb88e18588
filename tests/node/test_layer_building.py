"""Building layers: the same bytes each time, and nothing left when it fails."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from layering import add_tree, finish, publish, resolve
from requirements import REPOSITORY, need_root

from sandfleet_common.errors import Unreachable
from sandfleet_node.layers import DirectoryStore
from sandfleet_node.layers.base import build_base
from sandfleet_node.layers.debian import Release, bootstrap
from sandfleet_node.layers.image import pack
from sandfleet_node.layers.index import index_of

pytestmark = [pytest.mark.root]


def need(program: str) -> None:
    if shutil.which(program) is None:
        pytest.skip(f"doctor line `base-layer`: {program} is not installed; run `make install`")


def tree(place: Path) -> Path:
    (place / "etc").mkdir(parents=True)
    (place / "etc" / "hosts").write_text("127.0.0.1 localhost\n")
    (place / "link").symlink_to("etc/hosts")
    return place


def test_equal_trees_give_equal_images(tmp_path: Path) -> None:
    need("mkfs.erofs")
    digests: set[str] = set()
    for name in ("one", "two"):
        made = tree(tmp_path / name)
        os.utime(made / "etc" / "hosts", (len(digests), len(digests)))
        (tmp_path / f"{name}.image").mkdir()
        pack(made, tmp_path / f"{name}.image", keep_times=False)
        digests.add(index_of(*(tmp_path / f"{name}.image" / n for n in ("meta", "data"))).digest)
    assert len(digests) == 1


def test_times_are_kept_and_equal_trees_still_give_equal_images(tmp_path: Path) -> None:
    need("mkfs.erofs")
    digests: list[str] = []
    for name, seconds in (("one", 1_500_000_000), ("two", 1_500_000_000), ("other", 1_500_000_001)):
        made = tree(tmp_path / name)
        for path in (made / "etc" / "hosts", made / "link", made / "etc", made):
            os.utime(path, (seconds, seconds), follow_symlinks=False)
        folder = tmp_path / f"{name}.image"
        folder.mkdir()
        pack(made, folder)
        digests.append(index_of(folder / "meta", folder / "data").digest)
    assert digests[0] == digests[1] != digests[2]


def test_a_mirror_that_does_not_answer_leaves_nothing_behind(tmp_path: Path) -> None:
    need_root()
    need("debootstrap")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound and not listening: refuses
        mirror = f"http://127.0.0.1:{closed.getsockname()[1]}/debian"
        mounts = Path("/proc/self/mounts").read_text()
        with pytest.raises(Unreachable, match="debootstrap of bookworm failed"):
            bootstrap(
                Release("bookworm", "12", mirror),
                tmp_path / "tree", tmp_path / "cache", tmp_path / "log", lambda line: None,
            )  # fmt: skip
    assert Path("/proc/self/mounts").read_text() == mounts


def test_an_environment_that_is_there_is_not_built_again(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path / "layers")
    store.make()
    publish(store, "debian", "12.1", [add_tree(store, tree(store.temporary("tree")))])
    told: list[str] = []
    assert finish(build_base(store, "debian", told.append)).version == "12.1"
    assert told == []


def test_the_command_names_what_it_made_sure_of() -> None:
    need_root()
    state = Path(os.environ.get("SANDFLEET_STATE_DIR", REPOSITORY / ".sandfleet"))
    command = [sys.executable, "-m", "sandfleet_node.layers", "build-base", "--state", str(state)]
    started = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    answers = [process.communicate(timeout=600) for process in started]
    assert [process.returncode for process in started] == [0, 0], answers
    assert len({out for out, _ in answers}) == 1
    name, digest = answers[0][0].split()
    environment = resolve(DirectoryStore(state / "layers"), "debian")
    assert (name, (digest,)) == (environment.reference, environment.layers)
