"""Pulling layers whole before anything starts, as image pulls do: the peer of reading on demand.

It is a good puller: four large reads at a time, nothing is unpacked, and what comes is mounted
as it is. All that want an environment wait for one pull of it.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from pathlib import Path

from sandfleet_common.logs import Logger
from sandfleet_node.layers import Catalog, DirectoryStore, Store
from sandfleet_node.layers.index import parse

_READ_BYTES = 8 * 1024**2
_READS_AT_ONCE = 4


class Puller:
    """Copies layers from a store to where a node looks for them first."""

    def __init__(self, source: Store, target: DirectoryStore) -> None:
        self._source = source
        self._target = target
        self._catalog = Catalog(source, Logger("bench"))
        self._pulls: dict[str, asyncio.Task[None]] = {}
        self._gate = asyncio.Semaphore(_READS_AT_ONCE)

    async def pull(self, environment: str) -> None:
        """Wait until all layers of an environment are here, whole and verified."""
        found = await self._catalog.resolve(environment)
        await asyncio.gather(*(self._once(digest) for digest in found.layers))

    async def _once(self, digest: str) -> None:
        task = self._pulls.get(digest)
        if task is None:
            task = self._pulls[digest] = asyncio.create_task(self._pull(digest))
        await asyncio.shield(task)

    async def _pull(self, digest: str) -> None:
        layer = await self._source.layer(digest)
        index = parse(await self._source.index(digest), digest)
        self._target.make()
        folder = Path(tempfile.mkdtemp(dir=self._target.root / "tmp"))
        meta = await self._source.read(digest, "meta", 0, index.meta_bytes)
        (folder / "meta").write_bytes(meta)
        handle = os.open(folder / "data", os.O_WRONLY | os.O_CREAT)
        try:
            starts = range(0, index.data_bytes, _READ_BYTES)
            await asyncio.gather(*(self._copy(digest, handle, at) for at in starts))
        finally:
            os.close(handle)
        added = await self._target.add(folder, layer.kind, created_at=layer.created_at)
        shutil.rmtree(folder)
        if added.digest != digest:
            raise RuntimeError(f"{digest} came as {added.digest}")

    async def _copy(self, digest: str, handle: int, at: int) -> None:
        async with self._gate:
            content = await self._source.read(digest, "data", at, _READ_BYTES)
            await asyncio.to_thread(os.pwrite, handle, content, at)
