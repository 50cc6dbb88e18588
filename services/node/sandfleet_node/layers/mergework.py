"""Merging layers of a store: which ones, where they come from, and where the result goes."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from sandfleet_common.errors import Broken
from sandfleet_common.ids import new_ulid
from sandfleet_common.messages import MIB, EnvironmentInfo, EnvironmentPublish, Layer

from .catalog import Catalog
from .compatibility import BUILT_ON
from .environments import Environments
from .image import pack
from .index import CHUNK_BYTES, parse
from .merging import Bounds, merge
from .store import LayerFiles, Store

SMALL_BYTES = 64 * MIB
"""A layer that is read on demand must not grow so that one sandbox's part of it is all of it."""
_PIECE_CHUNKS = 32


def runs(layers: Sequence[Layer], small_bytes: int) -> list[tuple[int, int]]:
    """Return from where to where consecutive layers are of one kind, small, and more than one."""
    found: list[tuple[int, int]] = []
    start = 0
    for end in range(1, len(layers) + 1):
        first = layers[start]
        if end < len(layers):
            both_small = max(first.size_bytes, layers[end].size_bytes) < small_bytes
            if both_small and layers[end].kind == first.kind:
                continue
        if end - start > 1:
            found.append((start, end))
        start = end
    return found


async def merge_layers(
    store: Store,
    layers: Sequence[Layer],
    work: Path,
    bounds: Bounds | None = None,
    description: str = "",
) -> Layer:
    """Merge consecutive layers of one kind into one, and add that to the store.

    Args:
        store: has them, and takes the result.
        layers: top first.
        work: a directory with room for all of them; left as it was.
        bounds: of the merged tree.
        description: of the result; empty: says how many were merged.

    Raises:
        NotFound: a layer is not in the store.
        Conflict: the tree has more than it may, or an attribute that cannot be merged.
        Broken: a layer is damaged.
        Unreachable: the store does not answer.
        OSError: the disk is full, or the kernel cannot mount layers so.
    """
    place = work / f"merge-{new_ulid()}"
    place.mkdir(parents=True, mode=0o700)
    try:
        files = [
            await _at_hand(store, layer.digest, place / str(number))
            for number, layer in enumerate(layers)
        ]
        await asyncio.to_thread(merge, files, place / "tree", bounds)
        folder = place / "image"
        folder.mkdir()
        await asyncio.to_thread(pack, place / "tree", folder)
        return await store.add(
            folder, layers[0].kind, created_at=time.time(),
            description=description or f"{len(layers)} layers, merged", notes=notes_of(layers),
        )  # fmt: skip
    finally:
        await asyncio.to_thread(shutil.rmtree, place)


def notes_of(layers: Sequence[Layer]) -> dict[str, str]:
    """Return the notes of layers that were merged: what they have, and what they stand on.

    Args:
        layers: top first.
    """
    has: dict[str, str] = {}
    needs: dict[str, str] = {}
    for layer in reversed(layers):
        for name, value in layer.notes.items():
            if not name.startswith(BUILT_ON):
                continue
            if name.removeprefix(BUILT_ON) not in has:  # else those below bring it along
                needs.setdefault(name, value)
        has.update({n: v for n, v in layer.notes.items() if not n.startswith(BUILT_ON)})
    return dict(list({**needs, **has}.items())[:64])


async def _at_hand(store: Store, digest: str, folder: Path) -> LayerFiles:
    """Return a layer's files where they lie, or else copied, verified, into a folder."""
    files = store.files(digest)
    if files is not None:
        return files
    index = parse(await store.index(digest), digest)
    await asyncio.to_thread(folder.mkdir)
    meta, data = folder / "meta", folder / "data"
    content = await store.read(digest, "meta", 0, index.meta_bytes)
    if not index.is_meta(content):
        raise Broken(f"meta of layer {digest[:20]} is damaged")
    await asyncio.to_thread(meta.write_bytes, content)
    with data.open("wb") as file:
        for first in range(0, index.chunks, _PIECE_CHUNKS):
            at = first * CHUNK_BYTES
            length = min(_PIECE_CHUNKS * CHUNK_BYTES, index.data_bytes - at)
            content = await store.read(digest, "data", at, length)
            for number in range(first, min(first + _PIECE_CHUNKS, index.chunks)):
                start = (number - first) * CHUNK_BYTES
                if not index.is_chunk(number, content[start : start + CHUNK_BYTES]):
                    raise Broken(f"data of layer {digest[:20]} is damaged")
            await asyncio.to_thread(file.write, content)
    return LayerFiles(meta, data)


async def merge_environment(
    store: Store,
    catalog: Catalog,
    reference: str,
    work: Path,
    tell: Callable[[str], None],
    small_bytes: int = SMALL_BYTES,
) -> EnvironmentInfo:
    """Publish a version of an environment in which small consecutive layers are merged.

    Returns the environment as it was when there is nothing to merge.

    Raises:
        SandfleetError: see `merge_layers` and `Environments.publish`.
        OSError: see `merge_layers`.
    """
    environments = Environments(store, catalog)
    info = await environments.get(reference)
    layers = list(info.layers)
    for start, end in reversed(runs(layers, small_bytes)):
        size = sum(layer.size_bytes for layer in layers[start:end])
        tell(f"merging {end - start} {layers[start].kind} layers of {size // MIB} MiB")
        layers[start:end] = [await merge_layers(store, layers[start:end], work)]
    if len(layers) == len(info.layers):
        tell("no two consecutive layers are small and of one kind")
        return info
    return await environments.publish(
        EnvironmentPublish(
            **info.model_dump(include={"name", "env", "user", "workdir", "notes"}),
            layers=[layer.digest for layer in layers],
            source=f"{info.name}:{info.version}, merged",
        )
    )
