"""What a build context holds, what .dockerignore leaves out, where copies go."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet.building import ignoring
from sandfleet.building.context import Context, open_context
from sandfleet.building.parcels import (
    Owner,
    Parcel,
    Place,
    archive_pieces,
    opened_archive,
    place_of,
)
from sandfleet_common.errors import BadRequest, NotFound


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    (tmp_path / "src" / "deep").mkdir(parents=True)
    (tmp_path / "src" / "a.py").write_text("a")
    (tmp_path / "src" / "deep" / "b.py").write_text("b")
    (tmp_path / "src" / "deep" / "b.pyc").write_bytes(b"c")
    (tmp_path / "README.md").write_text("r")
    (tmp_path / "link").symlink_to("src/a.py")
    (tmp_path / "outside").symlink_to("/etc/passwd")
    (tmp_path / "loop").symlink_to("loop")
    return tmp_path


@pytest.mark.parametrize(
    ("rules", "left_out", "kept"),
    [
        ("*.md", ["a.md"], ["x/a.md", "a.md5"]),
        ("**/*.md", ["a.md", "x/y/a.md"], ["a.txt"]),
        ("/build", ["build", "build/x/y"], ["x/build", "builder"]),
        ("a/../b/", ["b", "b/c"], ["a"]),
        ("*\n!keep", ["x", "x/y"], ["keep", "keep/x"]),
        ("!keep\n*", ["keep"], []),
        ("# note\n\n?.c", ["a.c"], ["ab.c", "# note"]),
        ("[a-c].o\n[^x].k", ["b.o", "y.k"], ["d.o", "x.k"]),
        ("a**b", ["ab", "a/x/b"], ["a/c"]),
        (r"\*", ["*"], ["x"]),
        ("docs/**/tmp", ["docs/tmp", "docs/a/b/tmp"], ["tmp"]),
    ],
)
def test_dockerignore_leaves_out_what_its_last_rule_says(
    rules: str, left_out: list[str], kept: list[str]
) -> None:
    found = ignoring.parse(rules)
    assert [path for path in left_out + kept if found.leaves_out(path)] == left_out


def test_a_pattern_that_is_none_is_refused_with_its_line() -> None:
    with pytest.raises(BadRequest) as caught:
        ignoring.parse("ok\n[open\n")
    assert caught.value.message.startswith(".dockerignore:2:")


def test_many_stars_take_no_ages() -> None:
    found = ignoring.parse("*a" * 60 + "b")
    began = time.process_time()
    assert not found.leaves_out("a" * 4000)
    assert time.process_time() - began < 5


@given(st.text(max_size=40), st.text(max_size=40))
def test_any_rules_are_read_or_refused(rules: str, path: str) -> None:
    try:
        ignoring.parse(rules).leaves_out(path)
    except BadRequest as problem:
        assert ".dockerignore" in problem.message


def names(context: Context, source: str) -> list[str]:
    return [entry.path for entry in context.match(source)]


def test_sources_are_paths_and_patterns(tree: Path) -> None:
    context = open_context(tree)
    assert names(context, "src/a.py") == ["src/a.py"]
    assert names(context, "/src/../README.md") == ["README.md"]
    assert names(context, "../../README.md") == ["README.md"]
    assert names(context, "src/*/*.py") == ["src/deep/b.py"]
    assert names(context, "link") == ["src/a.py"]
    for missing in ("nothing", "*.none", "outside", "loop"):
        with pytest.raises(NotFound) as caught:
            context.match(missing)
        assert missing in caught.value.message


def test_what_is_left_out_is_not_there_and_the_error_says_why(tree: Path) -> None:
    (tree / ".dockerignore").write_text("README.md\n**/*.pyc\n")
    context = open_context(tree)
    assert "src/deep/b.pyc" not in context.entries()
    with pytest.raises(NotFound) as caught:
        context.match("README.md")
    assert ".dockerignore" in caught.value.message
    (tree / "Dockerfile.dockerignore").write_text("src\n")
    assert "README.md" in open_context(tree, tree / "Dockerfile").entries()


def test_a_hash_is_of_names_modes_and_contents_not_of_times(tree: Path) -> None:
    def hashed() -> str:
        context = Context(tree)
        return context.content_hash(context.match("src")[0])

    first = hashed()
    os.utime(tree / "src" / "a.py", (1, 1))
    assert hashed() == first
    (tree / "src" / "a.py").write_text("b")
    second = hashed()
    (tree / "src" / "a.py").chmod(0o755)
    third = hashed()
    (tree / "src" / "a.py").rename(tree / "src" / "c.py")
    assert len({first, second, third, hashed()}) == 4


@pytest.mark.parametrize(
    ("target", "from_folder", "is_there", "expected"),
    [
        ("/x/y", False, False, Place("/x", "y")),
        ("/x/y", False, True, Place("/x/y", None)),
        ("/x/y/", False, False, Place("/x/y", None)),
        ("/x/y", True, False, Place("/x/y", None)),
        ("/y", False, False, Place("/", "y")),
        ("/", True, False, Place("/", None)),
    ],
)
def test_copies_go_where_docker_puts_them(
    target: str, from_folder: bool, is_there: bool, expected: Place
) -> None:
    assert place_of(target, from_folder=from_folder, is_folder_there=is_there) == expected


def test_a_parcel_has_owners_and_modes_and_never_follows_links(tree: Path) -> None:
    context = Context(tree)
    with Parcel(Owner(7, 8, 0o600)) as parcel:
        parcel.add_entry(context, context.entries()[""], None)
        parcel.add_text("inline", "text")
        data = b"".join(parcel.pieces())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        members = {member.name: member for member in tar}
        assert members["outside"].linkname == "/etc/passwd"
        assert members["src/a.py"].mode == 0o600
        assert {(m.uid, m.gid, m.uname) for m in members.values()} == {(7, 8, "")}
        assert tar.extractfile("inline").read() == b"text"  # pyright: ignore[reportOptionalMemberAccess]


def hostile_tar() -> io.BytesIO:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, kind in (
            ("../../up", tarfile.REGTYPE),
            ("/abs", tarfile.REGTYPE),
            ("dev", tarfile.CHRTYPE),
            ("pipe", tarfile.FIFOTYPE),
        ):
            info = tarfile.TarInfo(name)
            info.type = kind
            tar.addfile(info)
        hard = tarfile.TarInfo("hard")
        hard.type, hard.linkname = tarfile.LNKTYPE, "../../etc/passwd"
        tar.addfile(hard)
    made.seek(0)
    return made


def test_names_from_a_sandbox_never_lead_upwards() -> None:
    with Parcel(Owner()) as parcel:
        parcel.add_tar(hostile_tar(), None)
        data = b"".join(parcel.pieces())
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        found = {member.name: member.linkname for member in tar}
    assert found == {"up": "", "abs": "", "hard": "etc/passwd"}


@given(st.binary(max_size=2000))
def test_any_bytes_from_a_sandbox_are_a_tar_or_refused(data: bytes) -> None:
    with Parcel(Owner()) as parcel:
        try:
            parcel.add_tar(io.BytesIO(data), None)
        except BadRequest as problem:
            assert "no tar" in problem.message


@pytest.mark.parametrize("pack", [bytes, gzip.compress, bz2.compress, lzma.compress])
def test_archives_are_known_by_their_content(pack: object, tmp_path: Path) -> None:
    plain = hostile_tar().getvalue()
    path = tmp_path / "archive"
    path.write_bytes(pack(plain))  # type: ignore[operator]
    opened = opened_archive(path)
    assert opened is not None
    with opened:
        assert b"".join(archive_pieces(opened)) == plain
    path.write_bytes(pack(b"no tar" * 200))  # type: ignore[operator]
    assert opened_archive(path) is None


def test_a_damaged_archive_is_said_to_be_damaged(tmp_path: Path) -> None:
    path = tmp_path / "archive"
    plain = hostile_tar().getvalue() + os.urandom(100_000)
    path.write_bytes(gzip.compress(plain)[:-5000])
    opened = opened_archive(path)
    assert opened is not None
    with opened, pytest.raises(BadRequest) as caught:
        list(archive_pieces(opened))
    assert "damaged" in caught.value.message
