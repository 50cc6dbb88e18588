"""OCI images made by hand: layers as tars, layouts, archives of them."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

OCI = "application/vnd.oci.image"


def entry(name: str, data: bytes = b"", **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return an entry of a tar: a file, or what `type` and `linkname` say."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(data), 0o755 if fields.get("type") == tarfile.DIRTYPE else 0o644
    for key, value in fields.items():
        setattr(info, key, value)
    return info, data


def folder(name: str, **fields: Any) -> tuple[tarfile.TarInfo, bytes]:
    """Return a directory."""
    return entry(name, type=tarfile.DIRTYPE, **fields)


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return a symbolic link."""
    return entry(name, type=tarfile.SYMTYPE, linkname=target)


def hard_link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    """Return a hard link."""
    return entry(name, type=tarfile.LNKTYPE, linkname=target)


def layer(*entries: tuple[tarfile.TarInfo, bytes]) -> bytes:
    """Return a tar."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for info, data in entries:
            tar.addfile(info, io.BytesIO(data))
    return made.getvalue()


def digest_of(data: bytes) -> str:
    """Return a digest."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


@dataclass(slots=True)
class Layout:
    """An OCI layout."""

    root: Path
    layers: Sequence[bytes]
    config: dict[str, Any] = field(default_factory=dict[str, Any])
    pack: Callable[[bytes], bytes] = gzip.compress
    layer_type: str = f"{OCI}.layer.v1.tar+gzip"
    diff_ids: list[str] | None = None
    architecture: str = "amd64"

    def write(self) -> Path:
        """Write it, and return where it is."""
        (self.root / "blobs" / "sha256").mkdir(parents=True, exist_ok=True)
        (self.root / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        packed = [self.blob(self.pack(data), self.layer_type) for data in self.layers]
        config = {
            "architecture": self.architecture,
            "os": "linux",
            "config": self.config,
            "rootfs": {
                "type": "layers",
                "diff_ids": self.diff_ids or [digest_of(data) for data in self.layers],
            },
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{OCI}.manifest.v1+json",
            "config": self.document(config, f"{OCI}.config.v1+json"),
            "layers": packed,
        }
        found = self.document(manifest, f"{OCI}.manifest.v1+json")
        found["annotations"] = {"org.opencontainers.image.ref.name": "image"}
        self.index([found])
        return self.root

    def index(self, manifests: list[dict[str, Any]]) -> None:
        """Write the index."""
        text = json.dumps({"schemaVersion": 2, "manifests": manifests})
        (self.root / "index.json").write_text(text)

    def document(self, value: Any, kind: str) -> dict[str, Any]:
        """Write a document, and return what describes it."""
        return self.blob(json.dumps(value).encode(), kind)

    def blob(self, data: bytes, kind: str) -> dict[str, Any]:
        """Write a blob, and return what describes it."""
        digest = digest_of(data)
        (self.root / "blobs" / "sha256" / digest[7:]).write_bytes(data)
        return {"mediaType": kind, "digest": digest, "size": len(data)}


def archive(layout: Path, target: Path) -> Path:
    """Pack a layout as an oci-archive."""
    with tarfile.open(target, "w") as tar:
        for path in sorted(layout.rglob("*")):
            tar.add(path, path.relative_to(layout).as_posix(), recursive=False)
    return target
