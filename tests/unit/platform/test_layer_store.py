"""The store of layers and environments."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from pathlib import Path

import pytest

from sandfleet_common.errors import Conflict, NotFound
from sandfleet_node.layers import Environment, LayerStore


@pytest.fixture
def store(tmp_path: Path) -> LayerStore:
    made = LayerStore(tmp_path / "layers")
    made.make()
    return made


def add(store: LayerStore, content: bytes) -> str:
    image = store.temporary("image")
    image.write_bytes(content)
    return store.add(image, kind="base", created_at=1.0).digest


def publish(store: LayerStore, name: str, version: str, *digests: str) -> Environment:
    made = Environment(name=name, version=version, layers=digests)
    store.publish(made)
    return made


def test_a_layer_is_named_by_the_hash_of_its_bytes(store: LayerStore) -> None:
    digest = add(store, b"image")
    assert digest == f"sha256:{hashlib.sha256(b'image').hexdigest()}"
    assert store.layer_path(digest).read_bytes() == b"image"
    assert store.manifest(digest).size_bytes == 5


def test_a_layer_in_the_store_cannot_be_written(store: LayerStore) -> None:
    mode = store.layer_path(add(store, b"image")).stat().st_mode
    assert stat.S_IMODE(mode) == 0o444


def test_the_same_bytes_added_twice_keep_the_first_manifest(store: LayerStore) -> None:
    first = add(store, b"image")
    again = store.temporary("image")
    again.write_bytes(b"image")
    manifest = store.add(again, kind="snapshot", created_at=2.0, description="later")
    assert (manifest.digest, manifest.kind, manifest.created_at) == (first, "base", 1.0)
    assert not again.exists()


def test_nothing_unfinished_stays_in_the_store(store: LayerStore) -> None:
    publish(store, "debian", "1", add(store, b"image"))
    files = [path for path in store.root.rglob("*") if path.is_file()]
    assert sorted(path.suffix for path in files) == [".erofs", ".json", ".json"]


def test_an_unknown_environment_is_refused_with_the_known_ones(store: LayerStore) -> None:
    digest = add(store, b"image")
    publish(store, "debian", "1", digest)
    publish(store, "alpine", "1", digest)
    with pytest.raises(NotFound, match=r"'debain'; there are: alpine, debian"):
        store.resolve("debain")


@pytest.mark.parametrize("name", ["", "../debian", "a/b", "Debian", "debian:", "debian:x", "d\n"])
def test_what_is_no_name_is_not_found(store: LayerStore, name: str) -> None:
    publish(store, "debian", "1", add(store, b"image"))
    with pytest.raises(NotFound):
        store.resolve(name)


def test_the_newest_version_is_the_one_with_the_highest_numbers(store: LayerStore) -> None:
    digest = add(store, b"image")
    for version in ("12.9", "12.10", "2.30"):
        publish(store, "debian", version, digest)
    assert store.resolve("debian").version == "12.10"
    assert store.resolve("debian:12.9").version == "12.9"
    with pytest.raises(NotFound, match=r"there are: 2\.30, 12\.9, 12\.10"):
        store.resolve("debian:3")


def test_a_published_version_never_changes(store: LayerStore) -> None:
    publish(store, "debian", "1", add(store, b"one"))
    with pytest.raises(Conflict):
        publish(store, "debian", "1", add(store, b"two"))


def test_an_environment_needs_its_layers_in_the_store(store: LayerStore) -> None:
    with pytest.raises(NotFound):
        publish(store, "debian", "1", f"sha256:{'0' * 64}")
    assert store.environments() == []


@pytest.mark.parametrize("digest", ["", "sha256:", "sha256:../../etc/passwd", "md5:" + "0" * 64])
def test_a_digest_cannot_lead_out_of_the_store(store: LayerStore, digest: str) -> None:
    with pytest.raises(NotFound):
        store.layer_path(digest)


def test_another_store_on_the_same_directory_sees_what_is_published(store: LayerStore) -> None:
    other = LayerStore(store.root)
    assert other.environments() == []
    publish(store, "debian", "1", add(store, b"image"))
    assert other.resolve("debian").version == "1"
    publish(store, "debian", "2", add(store, b"image"))
    assert other.resolve("debian").version == "2"


def settle(folder: Path) -> None:
    """Make a directory look as if it had not changed for a minute."""
    past = time.time() - 60
    os.utime(folder, (past, past))


def test_a_directory_that_did_not_change_is_not_read_again(store: LayerStore) -> None:
    publish(store, "debian", "1", add(store, b"image"))
    folder = store.root / "environments" / "debian"
    settle(folder)
    assert store.resolve("debian") is store.resolve("debian")


def test_a_damaged_environment_hides_only_itself(store: LayerStore) -> None:
    publish(store, "debian", "1", add(store, b"image"))
    (store.root / "environments" / "debian" / "2.json").write_text("{")
    assert store.resolve("debian").version == "1"


def test_a_store_that_is_not_there_is_empty(tmp_path: Path) -> None:
    store = LayerStore(tmp_path / "nowhere")
    assert store.environments() == []
    with pytest.raises(NotFound, match="none yet"):
        store.resolve("debian")
