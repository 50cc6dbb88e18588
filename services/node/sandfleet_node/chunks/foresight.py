"""What of a layer will be read: lists of what earlier sandboxes read first, kept in the store."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable

from sandfleet_common.errors import SandfleetError
from sandfleet_common.logs import Logger
from sandfleet_node.layers.store import Store, hex_of

from .cache import CachedLayer
from .fetching import Fetcher

WATCHED_SECONDS = 60.0
"""What is read so long after a layer was opened makes its list."""
CHUNKS_MAX = 2048
"""In one list: half a GiB. What was read first stays."""
_KIND = "prefetch"


class Foresight:
    """Notes what is read, and fetches ahead what was read before. Off: does neither."""

    def __init__(self, store: Store, fetcher: Fetcher, log: Logger, *, is_on: bool) -> None:
        self._store = store
        self._fetcher = fetcher
        self._log = log
        self._is_on = is_on
        self._read: dict[str, dict[int, None]] = {}
        self._until: dict[str, float] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def note(self, layer: CachedLayer, numbers: Iterable[int]) -> None:
        """Chunks are being read."""
        until = self._until.get(layer.digest)
        if until is not None and time.monotonic() < until:
            self._read[layer.digest].update(dict.fromkeys(numbers))

    def opened(self, layer: CachedLayer) -> None:
        """Fetch what the list of a layer says, which was opened, and make the list anew."""
        if not self._is_on or layer.digest in self._until:
            return
        self._until[layer.digest] = time.monotonic() + WATCHED_SECONDS
        self._read[layer.digest] = {}
        task = asyncio.create_task(self._follow(layer), name=f"foresight {layer.digest[:20]}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _follow(self, layer: CachedLayer) -> None:
        known: list[int] = []
        try:
            known = parse_list(await self._store.record(_KIND, hex_of(layer.digest)))
            if known:
                self._fetcher.begin_ahead(layer, known)
            await asyncio.sleep(WATCHED_SECONDS)
            seen = list(self._read.pop(layer.digest, {}))
            merged = list(dict.fromkeys([*known, *seen]))[:CHUNKS_MAX]
            if merged != known:
                content = json.dumps(merged, separators=(",", ":")).encode()
                await self._store.put_record(_KIND, hex_of(layer.digest), content)
        except SandfleetError as problem:
            self._log.warning("chunks.no_foresight", layer=layer.digest, error=problem.message)


def parse_list(content: bytes | None) -> list[int]:
    """Return the chunks of a list; one that is damaged names none."""
    try:
        found = json.loads(content or b"[]")
    except ValueError:
        return []
    if not isinstance(found, list):
        return []
    numbers: list[object] = found[:CHUNKS_MAX]  # pyright: ignore[reportUnknownVariableType]
    return [n for n in numbers if isinstance(n, int) and not isinstance(n, bool) and n >= 0]
