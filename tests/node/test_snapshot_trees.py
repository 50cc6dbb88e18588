"""Trees that a sandbox left, made fit to be a layer: hostile ones, too."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import Generator
from pathlib import Path

import pytest
from requirements import need_root

from sandfleet_common.errors import Conflict, NotFound
from sandfleet_node.snapshots.rules import Rules
from sandfleet_node.snapshots.tree import (
    OPAQUE,
    Bounds,
    Cleaned,
    Cleaning,
    is_whiteout,
    open_root,
    remove_own,
)

pytestmark = [pytest.mark.root]

OWNER = 0x7000_0000
RULES = Rules.parse("secret **/.netrc # x\nresidue tmp/** # x\nsecret **/.aws/* # x", "test")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    need_root()
    upper = tmp_path / "upper"
    upper.mkdir()
    return upper


@pytest.fixture
def top(tree: Path) -> Generator[int]:
    fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    yield fd
    os.close(fd)


def clean(top: int, *, oci: bool = False, files: int = 100_000, size: int = 1 << 30) -> Cleaned:
    before = set(os.listdir("/proc/self/fd"))
    try:
        cleaning = Cleaning(
            RULES, Bounds(size, files), OWNER, oci=oci, is_stopping=lambda: False
        )
        return cleaning.run(top)
    finally:
        assert set(os.listdir("/proc/self/fd")) == before


def whiteout(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def attributes(path: Path) -> list[str]:
    return os.listxattr(path, follow_symlinks=False)


def test_devices_and_sockets_go_and_pipes_and_whiteouts_stay(tree: Path, top: int) -> None:
    os.mknod(tree / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(tree / "disk", stat.S_IFBLK | 0o666, os.makedev(8, 0))
    whiteout(tree / "gone")
    os.mkfifo(tree / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tree / "socket"))
    clean(top)
    assert sorted(os.listdir(tree)) == ["gone", "pipe"]
    assert is_whiteout((tree / "gone").lstat())


def test_only_attributes_that_are_content_stay(tree: Path, top: int) -> None:
    (tree / "folder").mkdir()
    (tree / "folder" / "file").write_text("x")
    (tree / "link").symlink_to("/etc/passwd")
    for path in (tree, tree / "folder", tree / "folder" / "file"):
        for name in ("origin", "impure", "nlink", "redirect", "metacopy", "uuid"):
            os.setxattr(path, f"trusted.overlay.{name}", b"host")
        os.setxattr(path, "user.kept", b"1")
    os.setxattr(tree / "folder", OPAQUE, b"y")
    os.setxattr(tree / "link", "trusted.overlay.origin", b"host", follow_symlinks=False)
    clean(top)
    assert attributes(tree) == ["user.kept"]
    assert sorted(attributes(tree / "folder")) == [OPAQUE, "user.kept"]
    assert attributes(tree / "folder" / "file") == ["user.kept"]
    assert attributes(tree / "link") == []


def test_what_matches_goes_as_a_whole_and_is_told(tree: Path, top: int) -> None:
    (tree / "tmp" / "build" / "deep").mkdir(parents=True)
    (tree / "tmp" / "build" / "deep" / "object").write_text("x")
    (tree / "root").mkdir()
    (tree / "root" / ".netrc").write_text("secret")
    (tree / "root" / "work").write_text("x")
    cleaned = clean(top)
    assert sorted(cleaned.scrubbed) == ["/root/.netrc", "/tmp/build"]
    assert os.listdir(tree / "tmp") == []
    assert os.listdir(tree / "root") == ["work"]


def test_what_hides_something_below_is_never_scrubbed(tree: Path, top: int) -> None:
    """Otherwise a file that the sandbox removed would be there again."""
    (tree / "tmp" / "a").mkdir(parents=True)
    whiteout(tree / "tmp" / "a" / "removed")
    (tree / "tmp" / "a" / "made").write_text("x")
    (tree / "tmp" / "b").mkdir()
    os.setxattr(tree / "tmp" / "b", OPAQUE, b"y")
    clean(top)
    assert os.listdir(tree / "tmp" / "a") == ["removed"]
    assert sorted(os.listdir(tree / "tmp")) == ["a", "b"]


def test_a_link_that_looks_like_a_directory_is_not_entered(
    tree: Path, top: int, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / ".netrc").write_text("the host's own")
    (tree / "tmp").symlink_to(outside)
    (tree / "loop").symlink_to("loop")
    (tree / ".aws").symlink_to(outside)
    cleaned = clean(top)
    assert (outside / ".netrc").exists()
    assert cleaned.scrubbed == []
    assert (tree / "loop").is_symlink()


def test_names_of_any_bytes_are_taken(tree: Path, top: int) -> None:
    name = os.fsencode(tree) + b"/tmp/new\nline\xff"
    (tree / "tmp").mkdir()
    with open(name, "wb"):
        pass
    assert clean(top).scrubbed == ["/tmp/new\nline�"]
    assert os.listdir(tree / "tmp") == []


def test_oci_marks_become_whiteouts(tree: Path, top: int) -> None:
    (tree / "etc").mkdir()
    (tree / "etc" / ".wh.removed").touch()
    (tree / "etc" / ".wh.replaced").touch()
    (tree / "etc" / "replaced").write_text("new")
    (tree / "etc" / ".wh.newdir").touch()
    (tree / "etc" / "newdir").mkdir()
    (tree / "opt").mkdir()
    (tree / "opt" / ".wh..wh..opq").touch()
    (tree / "opt" / "new").touch()
    (tree / ".wh..wh.plnk").touch()
    (tree / ".wh...").touch()
    clean(top, oci=True)
    assert sorted(os.listdir(tree / "etc")) == ["newdir", "removed", "replaced"]
    removed = (tree / "etc" / "removed").lstat()
    assert is_whiteout(removed)
    assert removed.st_uid == OWNER
    assert attributes(tree / "etc" / "newdir") == [OPAQUE]
    assert attributes(tree / "opt") == [OPAQUE]
    assert os.listdir(tree / "opt") == ["new"]
    assert sorted(os.listdir(tree)) == ["etc", "opt"]


def test_without_oci_such_names_are_names(tree: Path, top: int) -> None:
    (tree / ".wh.x").touch()
    clean(top)
    assert os.listdir(tree) == [".wh.x"]


def test_holes_count_and_a_second_name_does_not(tree: Path, top: int) -> None:
    with (tree / "sparse").open("wb") as file:
        file.truncate(1 << 20)
    os.link(tree / "sparse", tree / "again")
    assert clean(top).apparent_bytes == 1 << 20
    with (tree / "huge").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(Conflict, match="too long to be packed") as caught:
        clean(top)
    assert caught.value.code == "conflict"


def test_too_many_files_are_refused(tree: Path, top: int) -> None:
    for number in range(30):
        (tree / str(number)).touch()
    with pytest.raises(Conflict, match="more than 20 files"):
        clean(top, files=20)


def test_a_tree_that_is_too_deep_is_refused(tree: Path, top: int) -> None:
    here = os.dup(top)
    for _ in range(40):
        os.mkdir("d" * 120, dir_fd=here)
        deeper = os.open("d" * 120, os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = deeper
    os.close(here)
    with pytest.raises(Conflict, match="too deep"):
        clean(top)


# ----------------------------------------------------------------------- root


def test_a_root_is_found_component_by_component(tree: Path, top: int) -> None:
    (tree / "srv" / "image").mkdir(parents=True)
    for root in ("/srv/image", "srv/image/", "//srv/./image"):
        fd = open_root(top, root)
        assert os.fstat(fd).st_ino == (tree / "srv" / "image").stat().st_ino
        os.close(fd)


@pytest.mark.parametrize("root", ["/image", "/image/ssh", "/a/../b", "/file"])
def test_a_root_through_a_link_is_refused(tree: Path, top: int, root: str) -> None:
    (tree / "image").symlink_to("/etc")
    (tree / "a").mkdir()
    (tree / "b").mkdir()
    (tree / "file").touch()
    with pytest.raises(Conflict) as caught:
        open_root(top, root)
    assert caught.value.code == "conflict"


def test_a_root_that_is_not_there_is_not_found(top: int) -> None:
    with pytest.raises(NotFound, match="no directory /image") as caught:
        open_root(top, "/image")
    assert caught.value.code == "not_found"


def test_a_root_that_is_partly_below_is_refused(tree: Path, top: int) -> None:
    (tree / "usr").mkdir()
    os.setxattr(tree / "usr", "trusted.overlay.origin", b"below")
    with pytest.raises(Conflict, match="was there before"):
        open_root(top, "/usr")
    os.setxattr(tree / "usr", OPAQUE, b"y")
    os.close(open_root(top, "/usr"))


# ------------------------------------------------------------------ own files


def test_what_the_launcher_made_goes_and_what_a_user_changed_stays(tree: Path, top: int) -> None:
    for name in ("proc", "dev", "sys", "etc"):
        (tree / name).mkdir()
    (tree / "etc" / "hostname").write_text("sb-12345678")
    (tree / "etc" / "resolv.conf").touch()
    (tree / "etc" / "hosts").write_text("127.0.0.1\tlocalhost\n::1\tlocalhost\n10.0.0.1 db\n")
    remove_own(top, "sb-12345678")
    assert os.listdir(tree) == ["etc"]
    assert os.listdir(tree / "etc") == ["hosts"]


def test_a_pipe_in_place_of_an_own_file_does_not_hold_anybody_up(tree: Path, top: int) -> None:
    (tree / "etc").mkdir()
    os.mkfifo(tree / "etc" / "hostname")
    (tree / "etc" / "hosts").symlink_to("/etc/hosts")
    remove_own(top, "sb-12345678")
    assert sorted(os.listdir(tree / "etc")) == ["hostname", "hosts"]
