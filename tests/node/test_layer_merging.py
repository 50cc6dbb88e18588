"""Merged layers look the same as unmerged ones: the kernel's overlay is asked, on random trees."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import stat
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from objectserver import object_server
from obstore.store import S3Store
from requirements import need_root

from sandfleet_common.errors import Broken, Conflict
from sandfleet_common.messages import LayerKind
from sandfleet_node.layers import open_store
from sandfleet_node.layers.image import pack
from sandfleet_node.layers.index import index_of
from sandfleet_node.layers.mergework import merge_layers
from sandfleet_node.layers.merging import Bounds, merge
from sandfleet_node.layers.store import LayerFiles
from sandfleet_node.probes import syscalls

pytestmark = [pytest.mark.root, pytest.mark.timeout(120)]

_OPAQUE = "trusted.overlay.opaque"
_NEW_MOUNTS, _PRIVATE, _READ_ONLY = 0x20200, 0x44000, 1


@pytest.fixture(autouse=True)
def able() -> None:
    """Skip where layers cannot be packed or mounted."""
    need_root()
    if shutil.which("mkfs.erofs") is None:
        pytest.skip("needs mkfs.erofs: apt-get install erofs-utils")


class Trees:
    """Trees that are written, packed, merged and stacked below one directory."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._count = 0

    def new(self) -> Path:
        """Return an empty directory."""
        self._count += 1
        made = self._root / str(self._count)
        made.mkdir()
        return made

    def packed(self, tree: Path) -> LayerFiles:
        """Pack a tree into a layer."""
        folder = self.new()
        pack(tree, folder)
        return LayerFiles(folder / "meta", folder / "data")

    def merged(self, *layers: LayerFiles, bounds: Bounds | None = None) -> LayerFiles:
        """Merge layers into one."""
        target = self.new()
        merge(layers, target / "tree", bounds)
        return self.packed(target / "tree")

    def shown(self, *layers: LayerFiles) -> dict[str, object]:
        """Return what the kernel shows of a stack, top first."""
        found: dict[str, object] = {}
        bottom = self.packed(self.new())  # one layer alone would not be an overlay

        def look() -> None:
            places = [_mounted(layer, self.new()) for layer in (*layers, bottom)]
            where = self.new()
            names = ":".join(str(place) for place in places).encode()
            syscalls.mount(
                b"overlay", os.fsencode(where), b"overlay", _READ_ONLY, b"lowerdir=" + names
            )
            found.update(walk(where))

        in_own_namespace(look)
        return found


@pytest.fixture
def trees(tmp_path: Path) -> Trees:
    """Return a workshop of trees."""
    return Trees(tmp_path)


def in_own_namespace(do: Callable[[], None]) -> None:
    """Run something in a mount namespace that ends with it."""
    problems: list[BaseException] = []

    def enter() -> None:
        try:
            syscalls.unshare(_NEW_MOUNTS)
            syscalls.mount(b"none", b"/", b"", _PRIVATE, b"")
            do()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


def _mounted(layer: LayerFiles, where: Path) -> Path:
    options = f"device={layer.data}".encode()
    syscalls.mount(os.fsencode(layer.meta), os.fsencode(where), b"erofs", _READ_ONLY, options)
    return where


def walk(top: Path) -> dict[str, object]:
    """Return all there is below a directory, by path."""
    found: dict[str, object] = {}
    for path in [top, *sorted(top.rglob("*"))]:
        try:
            info = path.lstat()
        except FileNotFoundError:
            continue  # the kernel lists whiteouts of a directory that only one layer has
        attributes = {
            name: os.getxattr(path, name, follow_symlinks=False)
            for name in os.listxattr(path, follow_symlinks=False)
            if not name.startswith("trusted.overlay.")
        }
        content: object = None
        if path.is_symlink():
            content = path.readlink()
        elif stat.S_ISREG(info.st_mode):
            content = hashlib.sha256(path.read_bytes()).hexdigest()
        owner = (info.st_uid, info.st_gid, info.st_rdev)
        found[str(path.relative_to(top))] = (info.st_mode, owner, attributes, content)
    return found


def whiteout(path: Path) -> None:
    """Say that what lies below does not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mknod(path, stat.S_IFCHR, 0)


def opaque(path: Path) -> Path:
    """Make a directory that hides what lies below it."""
    path.mkdir(parents=True, exist_ok=True)
    os.setxattr(path, _OPAQUE, b"y")
    return path


def write(path: Path, text: str) -> Path:
    """Write a file and the directories it needs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def demand_same(trees: Trees, *written: Path) -> None:
    """Merge the upper layers, all ways there are, and compare with the stack."""
    layers = [trees.packed(tree) for tree in written]
    expected = trees.shown(*layers)
    for first in range(len(layers)):
        for end in range(first + 2, len(layers) + 1):
            merged = trees.merged(*layers[first:end])
            stack = (*layers[:first], merged, *layers[end:])
            assert trees.shown(*stack) == expected, (first, end)


def test_whiteouts_hide_what_lies_below_the_merged_layers(trees: Trees) -> None:
    a, b, c = trees.new(), trees.new(), trees.new()
    write(c / "gone", "c")
    write(c / "kept", "c")
    write(c / "dir" / "x", "c")
    whiteout(b / "gone")
    whiteout(b / "dir")
    write(b / "again", "b")
    whiteout(a / "again")
    write(a / "gone2", "a")
    demand_same(trees, a, b, c)


def test_opaque_directories_stay_opaque(trees: Trees) -> None:
    a, b, c = trees.new(), trees.new(), trees.new()
    write(c / "d" / "c", "c")
    write(c / "d" / "e" / "c", "c")
    write(opaque(b / "d") / "b", "b")
    write(a / "d" / "e" / "a", "a")
    demand_same(trees, a, b, c)


def test_directories_and_files_replace_each_other(trees: Trees) -> None:
    a, b, c = trees.new(), trees.new(), trees.new()
    write(c / "x" / "c", "c")
    write(b / "x", "b")
    write(a / "x" / "a", "a")
    write(c / "y", "c")
    write(b / "y" / "b", "b")
    write(a / "y", "a")
    write(c / "z" / "c", "c")
    whiteout(b / "z")
    write(a / "z" / "a", "a")
    demand_same(trees, a, b, c)


def test_links_owners_modes_and_attributes_are_kept(trees: Trees) -> None:
    a, b = trees.new(), trees.new()
    one = write(b / "d" / "one", "same")
    os.link(one, b / "two")
    os.link(one, b / "d" / "three")
    write(a / "two", "other")
    os.chown(one, 1000, 1001)
    one.chmod(0o4751)
    os.setxattr(one, "user.note", b"\x00\xff")
    (b / "dangling").symlink_to("/etc/shadow")
    os.chown(b / "dangling", 7, 8, follow_symlinks=False)
    (a / "d").mkdir(mode=0o700)
    os.chown(a / "d", 5, 6)
    os.setxattr(a / "d", "user.dir", b"1")
    os.mkfifo(a / "pipe")
    demand_same(trees, a, b)
    target = trees.new() / "tree"
    merge([trees.packed(a), trees.packed(b)], target)
    assert (target / "d" / "one").samefile(target / "d" / "three")
    assert (target / "d" / "one").stat().st_nlink == 2


def test_holes_stay_holes(trees: Trees) -> None:
    a, b = trees.new(), trees.new()
    with (b / "sparse").open("wb") as file:
        file.seek(64 * 1024 * 1024)
        file.write(b"end")
    write(a / "other", "a")
    target = trees.new() / "tree"
    merge([trees.packed(a), trees.packed(b)], target)
    assert (target / "sparse").stat().st_size == 64 * 1024 * 1024 + 3
    assert (target / "sparse").stat().st_blocks * 512 < 8 * 1024 * 1024
    assert (target / "sparse").read_bytes().endswith(b"\0end")


def test_a_tree_over_its_bounds_is_not_merged(trees: Trees) -> None:
    a, b = trees.new(), trees.new()
    write(a / "one", "12345")
    write(b / "two", "12345")
    layers = [trees.packed(a), trees.packed(b)]
    with pytest.raises(Conflict, match="too many files"):
        trees.merged(*layers, bounds=Bounds(files=1))
    with pytest.raises(Conflict, match="too long together"):
        trees.merged(*layers, bounds=Bounds(size_bytes=9))


def test_what_overlays_cannot_have_written_is_not_merged(trees: Trees) -> None:
    a, b = trees.new(), trees.new()
    (a / "moved").mkdir()
    os.setxattr(a / "moved", "trusted.overlay.redirect", b"/old")
    with pytest.raises(Conflict, match="redirect"):
        trees.merged(trees.packed(a), trees.packed(b))


@pytest.mark.parametrize("seed", range(12))
def test_random_stacks_look_the_same_merged(trees: Trees, seed: int) -> None:
    chance = random.Random(seed)
    written = [trees.new() for _ in range(4)]
    for tree in written:
        _grow(tree, chance, depth=0)
    demand_same(trees, *written)


def _grow(folder: Path, chance: random.Random, depth: int) -> None:
    for name in "abcd":
        path = folder / name
        match chance.randrange(7):
            case 0:
                whiteout(path)
            case 1:
                path.write_text(str(chance.random()))
                path.chmod(chance.choice((0o600, 0o755)))
            case 2:
                path.symlink_to(chance.choice("abcd"))
            case 3 | 4 | 5 if depth < 3:
                path.mkdir()
                os.chown(path, chance.randrange(3), 0)
                if chance.random() < 0.3:
                    opaque(path)
                _grow(path, chance, depth + 1)
            case 6:
                other = folder / chance.choice("abcd")
                with contextlib.suppress(OSError):
                    os.link(other, path, follow_symlinks=False)
            case _:
                pass


@pytest.mark.integration
async def test_layers_of_an_object_store_are_fetched_verified_and_merged(
    trees: Trees, tmp_path: Path
) -> None:
    a, b = trees.new(), trees.new()
    write(a / "one", "a")
    write(b / "two", "b" * 300_000)
    files = [trees.packed(tree) for tree in (a, b)]
    wanted = index_of(*_copied(trees.merged(*files), trees.new())).digest
    work = trees.new()
    with object_server(trees.new()) as server:
        store = open_store(server.url, server.endpoint, 10)
        layers = [
            await store.add(_copied(one, trees.new())[0].parent, LayerKind.TOOLKIT, created_at=0)
            for one in files
        ]
        merged = await merge_layers(store, layers, work)
        assert merged.digest == wanted
        assert await store.layer(merged.digest) == merged
        assert list(work.iterdir()) == []
        damaged = layers[1].digest.partition(":")[2]
        objects = S3Store.from_url(
            server.url, endpoint=server.endpoint, client_options={"allow_http": True}
        )
        await objects.put_async(f"layers/{damaged}/data/00000", b"x" * 300_000)
        with pytest.raises(Broken, match="damaged"):
            await merge_layers(store, layers, work)
        assert list(work.iterdir()) == []


def _copied(layer: LayerFiles, folder: Path) -> tuple[Path, Path]:
    """Copy a layer's files: a store takes what it is given."""
    shutil.copy(layer.meta, folder / "meta")
    shutil.copy(layer.data, folder / "data")
    return folder / "meta", folder / "data"
