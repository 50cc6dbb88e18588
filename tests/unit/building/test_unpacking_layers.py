"""Layers of images unpacked into one tree: whiteouts, and tars that want to break out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
from images import entry, folder, hard_link, layer, link

from sandfleet.building.importing import script

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(os.geteuid() != 0, reason="doctor line `root`: chroot needs root"),
]


def unpack(root: Path, *layers: bytes, keep: bool = False) -> dict[str, Any]:
    said: dict[str, Any] = {}
    for data in layers:
        done = subprocess.run(
            [sys.executable, "-c", script("unpacking"), str(root), "1" if keep else "0"],
            input=data, capture_output=True, timeout=30, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr.decode()
        said = json.loads(done.stdout)
    return said


def refused(root: Path, data: bytes) -> str:
    argv = [sys.executable, "-c", script("unpacking"), str(root), "0"]
    done = subprocess.run(argv, input=data, capture_output=True, timeout=30, check=False)
    assert done.returncode == 1
    return done.stderr.decode()


def tree(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*"))


LOWER = layer(
    folder("d", mode=0o700, uid=5), entry("d/a", b"a"), entry("d/b", b"b"), folder("d/e"),
    entry("d/e/f", b"f"), link("l", "d/a"), hard_link("h", "d/b"),
)  # fmt: skip


def test_files_have_their_owners_modes_and_links(tmp_path: Path) -> None:
    said = unpack(tmp_path, LOWER)
    assert said == {"files": 7, "bytes": 3, "skipped": {}}
    status = (tmp_path / "d").stat()
    assert (status.st_mode & 0o7777, status.st_uid) == (0o700, 5)
    assert (tmp_path / "h").stat().st_ino == (tmp_path / "d" / "b").stat().st_ino
    assert (tmp_path / "l").readlink() == Path("d/a")


def test_whiteouts_remove_what_lower_layers_have(tmp_path: Path) -> None:
    unpack(tmp_path, LOWER, layer(entry("d/.wh.a"), entry("d/.wh.e"), entry("d/n", b"n")))
    assert tree(tmp_path) == ["d", "d/b", "d/n", "h", "l"]


def test_whiteouts_stay_where_layers_below_are_elsewhere(tmp_path: Path) -> None:
    unpack(tmp_path, LOWER, layer(entry("d/.wh.a"), entry("x/.wh.gone")), keep=True)
    assert tree(tmp_path) == ["d", "d/.wh.a", "d/b", "d/e", "d/e/f", "h", "l", "x", "x/.wh.gone"]


@pytest.mark.parametrize("mark_first", [True, False])
def test_an_opaque_directory_hides_lower_layers_and_not_its_own(
    tmp_path: Path, mark_first: bool
) -> None:
    mark, own = entry("d/.wh..wh..opq"), (folder("d/e"), entry("d/e/own", b"o"))
    entries = (folder("d"), mark, *own) if mark_first else (folder("d"), *own, mark)
    unpack(tmp_path, LOWER, layer(*entries))
    assert tree(tmp_path) == ["d", "d/e", "d/e/own", "h", "l"]


def test_a_whiteout_does_not_remove_what_comes_with_it(tmp_path: Path) -> None:
    unpack(tmp_path, LOWER, layer(entry("d/a", b"new"), entry("d/.wh.a")))
    assert (tmp_path / "d" / "a").read_bytes() == b"new"


def test_a_directory_that_comes_back_does_not_show_what_was_hidden(tmp_path: Path) -> None:
    hidden = layer(entry("d/.wh.e"))
    back = layer(folder("d/e"), entry("d/e/g", b"g"))
    unpack(tmp_path, hidden, back, keep=True)
    assert tree(tmp_path) == ["d", "d/e", "d/e/.wh..wh..opq", "d/e/g"]


def test_a_file_takes_the_place_of_a_directory_and_the_other_way(tmp_path: Path) -> None:
    unpack(tmp_path, LOWER, layer(entry("d", b"file"), folder("l")))
    assert (tmp_path / "d").read_bytes() == b"file"
    assert (tmp_path / "l").is_dir()


def test_nothing_is_written_outside(tmp_path: Path) -> None:
    outside, root = tmp_path / "outside", tmp_path / "root"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    up = "../" * 20
    unpack(
        root,
        layer(
            entry(f"{up}etc/up", b"1"),
            entry(f"/{outside}/abs", b"2"),
            link("away", str(outside)),
            link("far", f"{up}{outside}"),
            entry(f"{up}.wh.bin"),
        ),
        layer(folder(str(outside)), entry("away/through", b"3"), entry("far/.wh.precious")),
    )
    assert tree(outside) == ["precious"]
    assert (root / "etc" / "up").read_bytes() == b"1"
    assert (root / str(outside).lstrip("/") / "through").read_bytes() == b"3"


def test_a_hard_link_to_the_outside_is_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("x")
    said = refused(tmp_path / "root", layer(hard_link("h", f"../../{tmp_path}/secret")))
    assert "hard link" in said
    assert not os.path.lexists(tmp_path / "root" / "h")


def test_devices_and_pipes_are_left_out_and_counted(tmp_path: Path) -> None:
    said = unpack(
        tmp_path,
        layer(
            entry("sda", type=tarfile.BLKTYPE, devmajor=8),
            entry("mem", type=tarfile.CHRTYPE, devmajor=1, devminor=1),
            entry("pipe", type=tarfile.FIFOTYPE),
            entry("file"),
        ),
    )
    assert tree(tmp_path) == ["file"]
    assert said["skipped"] == {"devices and pipes": 3}


def test_a_file_through_a_link_to_nothing_is_refused(tmp_path: Path) -> None:
    said = refused(tmp_path, layer(link("a", "/nowhere"), entry("a/b", b"x")))
    assert "link to nothing" in said


@pytest.mark.parametrize("data", [b"no tar" * 200, layer(entry("f", b"x" * 5000))[:2000], b""])
def test_what_is_no_tar_is_refused(tmp_path: Path, data: bytes) -> None:
    assert refused(tmp_path, data)


def test_a_name_too_long_is_refused(tmp_path: Path) -> None:
    assert "4000" in refused(tmp_path, layer(entry("a/" * 3000 + "b", b"x")))


def test_holes_stay_holes(tmp_path: Path) -> None:
    unpack(tmp_path, layer(entry("hole", b"\0" * 8_000_000 + b"end")))
    status = (tmp_path / "hole").stat()
    assert status.st_size == 8_000_003
    assert status.st_blocks * 512 < 4_000_000


def test_attributes_are_kept(tmp_path: Path) -> None:
    info, data = entry("file", b"x")
    info.pax_headers = {"SCHILY.xattr.user.note": "value", "SCHILY.xattr.bogus": "y"}
    said = unpack(tmp_path, layer((info, data)))
    assert os.getxattr(tmp_path / "file", "user.note") == b"value"
    assert said["skipped"] == {"extended attributes": 1}


def test_a_tree_says_what_it_is(tmp_path: Path) -> None:
    release = b'ID=debian\nVERSION_CODENAME="trixie"\n'
    libc = b"\0GNU C Library (Debian GLIBC 2.41-1) stable release version 2.41.\n\0"
    unpack(
        tmp_path,
        layer(
            entry("usr/lib/os-release", release), link("etc/os-release", "../usr/lib/os-release"),
            link("lib", "usr/lib"), entry("usr/lib/x86_64-linux-gnu/libc.so.6", libc),
            entry("usr/bin/python3.9"), entry("usr/bin/python3.13"),
        ),
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", script("probing"), str(tmp_path)], capture_output=True, check=True
    )
    assert json.loads(done.stdout) == {
        "distribution": "debian trixie", "libc": "glibc 2.41", "python": "3.13",
    }  # fmt: skip
