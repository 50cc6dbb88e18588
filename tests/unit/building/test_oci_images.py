"""OCI layouts: what is read of them, and that nothing in them is believed."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import images
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet.building import importing, oci
from sandfleet_common.errors import BadRequest, NotFound, SandfleetError

PLAIN = images.layer(images.entry("etc/a", b"a"))
UPPER = images.layer(images.entry("etc/b", b"b" * 100_000))


@pytest.fixture
def layout(tmp_path: Path) -> images.Layout:
    config = {"Env": ["A=1=2", "odd"], "User": "me:staff", "WorkingDir": "/w", "Cmd": ["x"]}
    return images.Layout(tmp_path / "layout", [PLAIN, UPPER], config)


def content(folder: Path) -> list[bytes]:
    return [b"".join(oci.tar_of(found)) for found in oci.read(folder, "amd64").layers]


def test_an_image_is_read_with_how_to_run_it(layout: images.Layout) -> None:
    found = oci.read(layout.write(), "amd64")
    assert found.env == {"A": "1=2"}
    assert (found.user, found.workdir) == ("me", "/w")
    assert json.loads(found.notes["cmd"]) == ["x"]
    assert content(layout.root) == [PLAIN, UPPER]


def test_layers_may_be_plain(layout: images.Layout) -> None:
    layout.pack, layout.layer_type = bytes, f"{images.OCI}.layer.v1.tar"
    assert content(layout.write()) == [PLAIN, UPPER]


def test_layers_may_be_packed_with_zstd(layout: images.Layout) -> None:
    program = shutil.which("zstd")
    if program is None:
        pytest.skip("zstd is not installed")

    def pack(data: bytes) -> bytes:
        return subprocess.run([program, "-c"], input=data, capture_output=True, check=True).stdout

    layout.pack, layout.layer_type = pack, f"{images.OCI}.layer.v1.tar+zstd"
    assert content(layout.write()) == [PLAIN, UPPER]


def test_gzip_members_may_follow_each_other(layout: images.Layout) -> None:
    import gzip

    layout.pack = lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:])
    assert content(layout.write()) == [PLAIN, UPPER]


def test_of_several_machines_ours_is_taken(layout: images.Layout) -> None:
    layout.write()
    index = json.loads((layout.root / "index.json").read_text())
    (ours,) = index["manifests"]
    del ours["annotations"]
    ours["platform"] = {"os": "linux", "architecture": "amd64"}
    other = {**ours, "digest": "sha256:" + "0" * 64, "platform": {"architecture": "arm64"}}
    nested = layout.document({"manifests": [other, ours]}, f"{images.OCI}.index.v1+json")
    layout.index([nested])
    assert len(oci.read(layout.root, "amd64").layers) == 2
    with pytest.raises(NotFound):
        oci.read(layout.root, "riscv64")


def test_several_images_want_a_name(layout: images.Layout) -> None:
    layout.write()
    (first,) = json.loads((layout.root / "index.json").read_text())["manifests"]
    reference = {"org.opencontainers.image.ref.name": "other"}
    layout.index([first, {**first, "digest": "sha256:" + "0" * 64, "annotations": reference}])
    assert oci.read(layout.root, "amd64", "image").layers
    for name, kind in ((None, BadRequest), ("none", NotFound)):
        with pytest.raises(kind):
            oci.read(layout.root, "amd64", name)


def damaged_blob(layout: images.Layout) -> None:
    blobs = sorted((layout.root / "blobs" / "sha256").iterdir(), key=lambda p: p.stat().st_size)
    for blob in blobs:
        data = bytearray(blob.read_bytes())
        data[len(data) // 2] ^= 1
        blob.write_bytes(data)


def lost_blob(layout: images.Layout) -> None:
    for blob in (layout.root / "blobs" / "sha256").iterdir():
        blob.unlink()


@pytest.mark.parametrize("harm", [damaged_blob, lost_blob])
def test_what_is_damaged_or_lost_is_said(layout: images.Layout, harm: Any) -> None:
    layout.write()
    harm(layout)
    with pytest.raises((BadRequest, NotFound)):
        oci.read(layout.root, "amd64")


def test_a_damaged_layer_is_noticed_before_its_end(layout: images.Layout) -> None:
    layout.pack, layout.layer_type = bytes, f"{images.OCI}.layer.v1.tar"
    found = oci.read(layout.write(), "amd64").layers[1]
    data = bytearray(found.blob.read_bytes())
    data[1000] ^= 1
    found.blob.write_bytes(data)
    with pytest.raises(BadRequest) as caught:
        list(oci.tar_of(found))
    assert "damaged" in caught.value.message


def test_a_layer_that_the_configuration_does_not_name_is_refused(layout: images.Layout) -> None:
    layout.diff_ids = [images.digest_of(PLAIN), images.digest_of(PLAIN)]
    found = oci.read(layout.write(), "amd64").layers[1]
    with pytest.raises(BadRequest) as caught:
        list(oci.tar_of(found))
    assert "diff id" in caught.value.message
    layout.diff_ids = [images.digest_of(PLAIN)]
    with pytest.raises(BadRequest):
        oci.read(layout.write(), "amd64")


def test_a_layer_that_ends_too_early_is_refused(layout: images.Layout) -> None:
    import gzip

    layout.pack = lambda data: gzip.compress(data)[:-20]
    found = oci.read(layout.write(), "amd64").layers[0]
    with pytest.raises(BadRequest):
        list(oci.tar_of(found))


@pytest.mark.parametrize(
    "kind",
    [
        "application/vnd.oci.image.layer.nondistributable.v1.tar",
        "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip",
        "text/plain",
    ],
)
def test_layers_of_other_kinds_are_refused(layout: images.Layout, kind: str) -> None:
    layout.layer_type = kind
    with pytest.raises(BadRequest) as caught:
        oci.read(layout.write(), "amd64")
    assert kind in caught.value.message


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        '{"manifests": 1}',
        '{"manifests": [{"digest": "sha256:../../etc/passwd", "size": 1}]}',
        '{"manifests": [{"digest": "sha256:%s", "size": -1}]}' % ("0" * 64),
        '{"manifests": []}',
        "[" * 100_000,
    ],
)
def test_an_index_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "index.json").write_text(text)
    with pytest.raises((BadRequest, NotFound)):
        oci.read(tmp_path, "amd64")


@given(st.dictionaries(st.sampled_from(["manifests", "config", "rootfs", "layers"]), st.none()))
def test_any_document_is_read_or_refused(value: dict[str, None]) -> None:
    for kind in (oci.Descriptor, oci.Platform):
        try:
            oci._parsed(kind, json.dumps(value).encode(), "it")  # pyright: ignore[reportPrivateUsage]
        except SandfleetError as problem:
            assert "malformed" in problem.message


def test_neighbours_are_put_together_while_they_are_small(layout: images.Layout) -> None:
    one = oci.read(layout.write(), "amd64").layers[0]
    sizes = [10, 10, 10, 100, 5, 5]
    found = [dataclasses.replace(one, size=size, form="plain") for size in sizes]
    groups = importing.grouped(found, 30)
    assert [[layer.size for layer in group] for group in groups] == [[10, 10, 10], [100], [5, 5]]
    packed = [dataclasses.replace(layer, form="gzip") for layer in found[:3]]
    assert len(importing.grouped(packed, 30)) == 3


def test_names_of_images_become_names_of_environments() -> None:
    assert importing.derived_name("python:3.12-slim") == "image-python-3.12-slim"
    assert importing.derived_name("host:5000/a/b:1") == "image-host-5000-a-b-1"
    long = importing.derived_name("host/" + "a" * 200)
    assert len(long) <= 63
    assert long != importing.derived_name("host/" + "a" * 201)


@pytest.mark.parametrize("source", ["", "python", "dir:/x", "docker:python", "oci:", "http://x"])
def test_a_source_that_is_none_is_refused_with_those_there_are(source: str) -> None:
    with pytest.raises(BadRequest) as caught:
        importing.check_source(source)
    assert "docker" in caught.value.message


def test_what_a_probe_prints_is_not_believed() -> None:
    said = {"distribution": "debian bookworm", "libc": "x" * 100, "python": 3, "other": "y"}
    assert importing.facts_of(json.dumps(said).encode()) == {"distribution": "debian bookworm"}
    assert importing.facts_of(b"[" * 10_000) == {}
    assert importing.facts_of(b"[]") == {}


def test_where_a_file_lay_is_nobodys_business() -> None:
    assert importing.named_source("oci-archive:/home/me/a.tar:tag") == "oci-archive:a.tar:tag"
    assert importing.named_source("docker://host/a:1") == "docker://host/a:1"
