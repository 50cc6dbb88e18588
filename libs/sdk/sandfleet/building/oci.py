"""An OCI image layout on disk: index, manifest, configuration, layers.

It was fetched from somewhere and is read as if an attacker had written it: everything
is bounded, every digest is checked, nothing in it names a file of this machine.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from sandfleet_common.errors import BadRequest, NotFound
from sandfleet_common.messages import Digest

DOCUMENT_BYTES = 8 * 1024 * 1024
MOST_LAYERS = 512
LARGEST_LAYER_BYTES = 1 << 38
_PIECE_BYTES = 256 * 1024
_INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_LAYER = re.compile(
    r"application/vnd\.(?:oci\.image\.layer\.v1\.tar|docker\.image\.rootfs\.diff\.tar)"
    r"(?:[+.](?P<form>gzip|zstd))?"
)
_REF_NAME = "org.opencontainers.image.ref.name"
Form = Literal["plain", "gzip", "zstd"]
ModelT = TypeVar("ModelT", bound=BaseModel)
_Short = Annotated[str, StringConstraints(max_length=1024)]


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", populate_by_name=True)


class Platform(_Part):
    """For which machines an image is."""

    os: _Short = "linux"
    architecture: _Short = ""


class Descriptor(_Part):
    """One blob: where it is, how long, of which kind."""

    media_type: _Short = Field(alias="mediaType", default="")
    digest: Digest
    size: int = Field(ge=0, le=LARGEST_LAYER_BYTES)
    platform: Platform | None = None
    annotations: dict[str, str] | None = None


class _Index(_Part):
    manifests: Annotated[list[Descriptor], Field(max_length=1000)]


class _Manifest(_Part):
    config: Descriptor
    layers: Annotated[list[Descriptor], Field(min_length=1, max_length=MOST_LAYERS)]


class _Settings(_Part):
    user: _Short | None = Field(alias="User", default=None)
    env: Annotated[list[str], Field(max_length=1024)] | None = Field(alias="Env", default=None)
    workdir: str | None = Field(alias="WorkingDir", default=None)
    cmd: list[str] | None = Field(alias="Cmd", default=None)
    entrypoint: list[str] | None = Field(alias="Entrypoint", default=None)
    labels: dict[str, str] | None = Field(alias="Labels", default=None)


class _Roots(_Part):
    type: Literal["layers"] = "layers"
    diff_ids: Annotated[list[Digest], Field(max_length=MOST_LAYERS)]


class _Config(_Part):
    architecture: _Short = ""
    os: _Short = "linux"
    config: _Settings | None = None
    rootfs: _Roots


@dataclass(frozen=True, slots=True)
class ImageLayer:
    """One layer of an image, lowest first."""

    blob: Path
    digest: Digest
    size: int
    """As it lies there."""
    form: Form
    diff_id: Digest
    """sha256 of its tar."""


@dataclass(frozen=True, slots=True)
class Image:
    """An image: its layers, lowest first, and how to run it."""

    layers: tuple[ImageLayer, ...]
    env: Mapping[str, str]
    user: str | None
    workdir: str | None
    notes: Mapping[str, str]
    architecture: str


def read(folder: Path, architecture: str, name: str | None = None) -> Image:
    """Return the image of a layout.

    Args:
        folder: the layout.
        architecture: which one to take of several: amd64, arm64.
        name: which one, by its reference, when there are several.

    Raises:
        NotFound: there is no such image in it.
        BadRequest: it is damaged, or of a kind that is not supported.
    """
    index = _parsed(_Index, _document(folder / "index.json"), "index.json")
    manifest = _manifest(folder, _chosen(index.manifests, architecture, name), architecture)
    config = _parsed(_Config, _blob(folder, manifest.config), "the image's configuration")
    if config.os != "linux":
        raise BadRequest(f"the image is for {config.os[:40]}; sandboxes run Linux")
    if len(config.rootfs.diff_ids) != len(manifest.layers):
        raise BadRequest("the image's configuration names other layers than its manifest")
    layers = [
        ImageLayer(_place(folder, d.digest), d.digest, d.size, _form(d), diff_id)
        for d, diff_id in zip(manifest.layers, config.rootfs.diff_ids, strict=True)
    ]
    settings = config.config or _Settings()
    return Image(
        tuple(layers),
        _variables(settings.env or []),
        (settings.user or "").partition(":")[0] or None,
        settings.workdir or None,
        _notes(settings),
        config.architecture,
    )


def tar_of(layer: ImageLayer) -> Iterator[bytes]:
    """Yield a layer's tar, and check both digests by its end.

    Whoever reads it must not use it before the end came without an error.

    Raises:
        BadRequest: it is damaged, or another one than the image says.
    """
    packed, plain = hashlib.sha256(), hashlib.sha256()
    size = 0
    for piece in _UNPACKED[layer.form](_raw(layer, packed)):
        size += len(piece)
        if size > LARGEST_LAYER_BYTES:
            raise BadRequest(f"layer {layer.digest[:19]} is larger than 256 GiB")
        plain.update(piece)
        yield piece
    if f"sha256:{packed.hexdigest()}" != layer.digest:
        raise BadRequest(f"layer {layer.digest[:19]} is damaged: its digest is another")
    if f"sha256:{plain.hexdigest()}" != layer.diff_id:
        raise BadRequest(f"layer {layer.digest[:19]} is not what the image says: diff id differs")


def _raw(layer: ImageLayer, seen: hashlib._Hash) -> Iterator[bytes]:  # pyright: ignore[reportPrivateUsage]
    try:
        with layer.blob.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                seen.update(piece)
                yield piece
    except OSError as problem:
        raise NotFound(f"layer {layer.digest[:19]} is missing: {problem.strerror}") from None


def _plain(pieces: Iterator[bytes]) -> Iterator[bytes]:
    return pieces


def _gunzipped(pieces: Iterator[bytes]) -> Iterator[bytes]:
    """Decompress, one gzip member after another; a piece at a time, however it grows."""
    reader = zlib.decompressobj(wbits=31)
    is_fresh = True
    try:
        for piece in pieces:
            left = piece
            while left:
                if reader.eof:
                    reader, is_fresh = zlib.decompressobj(wbits=31), True
                made = reader.decompress(left, _PIECE_BYTES)
                is_fresh = False
                left = reader.unused_data if reader.eof else reader.unconsumed_tail
                if made:
                    yield made
            while not reader.eof and (made := reader.decompress(b"", _PIECE_BYTES)):
                yield made
    except zlib.error as problem:
        raise BadRequest(f"a layer is damaged: {problem}") from None
    if not reader.eof and not is_fresh:
        raise BadRequest("a layer is damaged: it ends too early")


def _unzstd(pieces: Iterator[bytes]) -> Iterator[bytes]:
    program = shutil.which("zstd")
    if program is None:
        raise NotFound("the image is packed with zstd: install zstd here, then import it again")
    with tempfile.TemporaryFile() as packed:
        for piece in pieces:
            packed.write(piece)
        packed.seek(0)
        argv = [program, "-d", "-c", "-q"]
        with subprocess.Popen(argv, stdin=packed, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            # Left early, the pipe is closed, which ends the program.
            while piece := process.stdout.read(_PIECE_BYTES):
                yield piece
        if process.returncode != 0:
            raise BadRequest(f"a layer is damaged: zstd ended with {process.returncode}")


_UNPACKED = {"plain": _plain, "gzip": _gunzipped, "zstd": _unzstd}


def _chosen(found: list[Descriptor], architecture: str, name: str | None) -> Descriptor:
    fitting = found
    if name is not None:
        fitting = [d for d in found if (d.annotations or {}).get(_REF_NAME) == name]
        if not fitting:
            raise NotFound(f"there is no image {name[:80]!r} in the layout")
    fitting = [d for d in fitting if _fits(d, architecture)]
    if not fitting:
        raise NotFound(f"the image is not there for {architecture}")
    if len(fitting) > 1 and len({d.digest for d in fitting}) > 1:
        names = [(d.annotations or {}).get(_REF_NAME, "?")[:80] for d in fitting[:5]]
        raise BadRequest(f"the layout holds several images: name one of {', '.join(names)}")
    return fitting[0]


def _fits(found: Descriptor, architecture: str) -> bool:
    platform = found.platform
    if platform is None:
        return True
    return platform.os == "linux" and platform.architecture in ("", architecture)


def _manifest(folder: Path, found: Descriptor, architecture: str) -> _Manifest:
    if found.media_type in _INDEX_TYPES:
        index = _parsed(_Index, _blob(folder, found), "the image's index")
        found = _chosen(index.manifests, architecture, None)
    if found.media_type in _INDEX_TYPES:
        raise BadRequest("an index of an index of images is not supported")
    return _parsed(_Manifest, _blob(folder, found), "the image's manifest")


def _form(found: Descriptor) -> Form:
    kind = _LAYER.fullmatch(found.media_type)
    if kind is None:
        raise BadRequest(f"layers of type {found.media_type[:100]!r} are not supported")
    if kind["form"] == "gzip":
        return "gzip"
    return "zstd" if kind["form"] == "zstd" else "plain"


def _place(folder: Path, digest: Digest) -> Path:
    return folder / "blobs" / "sha256" / digest.removeprefix("sha256:")


def _blob(folder: Path, found: Descriptor) -> bytes:
    if found.size > DOCUMENT_BYTES:
        raise BadRequest(f"{found.digest[:19]} is longer than {DOCUMENT_BYTES} bytes")
    data = _document(_place(folder, found.digest))
    if f"sha256:{hashlib.sha256(data).hexdigest()}" != found.digest or len(data) != found.size:
        raise BadRequest(f"{found.digest[:19]} is damaged: its digest is another")
    return data


def _document(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(DOCUMENT_BYTES + 1)
    except OSError as problem:
        raise NotFound(f"{path.name[:40]} of the image is missing: {problem.strerror}") from None
    if len(data) > DOCUMENT_BYTES:
        raise BadRequest(f"{path.name[:40]} of the image is longer than {DOCUMENT_BYTES} bytes")
    return data


def _parsed(kind: type[ModelT], data: bytes, what: str) -> ModelT:
    try:
        return kind.model_validate_json(data)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(part) for part in first["loc"])[:100]
        raise BadRequest(f"{what} is malformed: {where}: {first['msg'][:200]}") from None


def _variables(found: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in found]
    return {name: value for name, equals, value in pairs if name and equals}


def _notes(settings: _Settings) -> dict[str, str]:
    notes: dict[str, str] = {}
    for name, words in (("cmd", settings.cmd), ("entrypoint", settings.entrypoint)):
        if words:
            notes[name] = json.dumps(words)[:2000]
    return notes
