"""Where a layer comes from when a sandbox needs it: this node's files, the store's, or chunks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from sandfleet_common.errors import NotFound

from .chunks import Chunks
from .keeper import Keeper
from .layers import DirectoryStore, Store


class LayerMounts:
    """Has layers mounted, each once for all sandboxes."""

    def __init__(self, keeper: Keeper, store: Store, local: DirectoryStore, chunks: Chunks) -> None:
        self._keeper = keeper
        self._store = store
        self._local = local
        self._chunks = chunks

    async def ensure(self, digests: Sequence[str]) -> None:
        """Make sure that layers are mounted, all that are not at the same time.

        Raises:
            NotFound: one is nowhere.
            SandfleetError: one cannot be mounted.
        """
        missing = [digest for digest in digests if not self._keeper.has_layer(digest)]
        if len(missing) == 1:
            await self._mount(missing[0])
        elif missing:
            await asyncio.gather(*(self._mount(digest) for digest in missing))

    async def _mount(self, digest: str) -> None:
        files = self._local.files(digest) or self._store.files(digest)
        if files is not None:
            await self._keeper.mount(digest, files)
        elif isinstance(self._store, DirectoryStore):
            raise NotFound(f"layer {digest} is not in the store")
        else:
            await self._keeper.mount_by(digest, lambda: self._chunks.mount(digest))
