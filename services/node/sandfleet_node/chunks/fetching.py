"""Getting chunks from the store: each once for all who wait, verified, tried again and again."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from sandfleet_common.errors import Broken, SandfleetError, Unreachable
from sandfleet_common.logs import Logger
from sandfleet_node.layers.index import parse
from sandfleet_node.layers.store import Store

from .cache import Cache, CachedLayer

ResultT = TypeVar("ResultT")
RUN_CHUNKS = 16
"""Neighbouring chunks that one request to the store may bring: 4 MiB."""
_DEMAND_AT_ONCE, _AHEAD_AT_ONCE = 24, 4
_FIRST_DELAY_SECONDS, _LONGEST_DELAY_SECONDS = 0.1, 2.0
_CORRUPT_TRIES = 4


@dataclass(slots=True)
class Counts:
    """What was done so far."""

    hits: int = 0
    misses: int = 0
    fetched_bytes: int = 0
    fetches: int = 0
    fetch_seconds: float = 0.0
    failures: int = 0
    corrupt: int = 0
    given_up: int = 0
    """Reads that ended with an error."""
    waiting: int = 0
    ahead_bytes: int = 0
    """Of `fetched_bytes`, what a list of an earlier run said would be read."""
    failing_since: float | None = field(default=None)
    """Since when the store does not answer; seconds since 1970."""


class Fetcher:
    """Brings chunks into the cache."""

    def __init__(self, store: Store, cache: Cache, wait_seconds: float, log: Logger) -> None:
        self._store = store
        self._cache = cache
        self._wait_seconds = wait_seconds
        self._log = log
        self._under_way: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._opening: dict[str, asyncio.Task[CachedLayer]] = {}
        self._demand = asyncio.Semaphore(_DEMAND_AT_ONCE)
        self._ahead = asyncio.Semaphore(_AHEAD_AT_ONCE)
        self.counts = Counts()

    async def open(self, digest: str) -> CachedLayer:
        """Make sure of a layer's index and meta.

        Raises:
            NotFound: the store has no such layer.
            Unreachable: it does not answer.
            Broken: what it has is damaged.
        """
        known = self._cache.find(digest)
        if known is not None:
            return known
        task = self._opening.get(digest)
        if task is None:
            task = self._opening[digest] = asyncio.create_task(self._open(digest), name="open")
            task.add_done_callback(lambda _: self._opening.pop(digest, None))
        return await asyncio.shield(task)

    async def _open(self, digest: str) -> CachedLayer:
        content = await self._ask(self._store.index(digest))
        index = parse(content, digest)
        meta = b""
        for _ in range(_CORRUPT_TRIES):
            meta = await self._ask(self._store.read(digest, "meta", 0, index.meta_bytes))
            self.counts.fetched_bytes += len(meta)
            if index.is_meta(meta):
                return self._cache.add(digest, index, content, meta)
            self.counts.corrupt += 1
        raise Broken(f"the meta of layer {digest} is damaged in the store")

    async def need(self, layer: CachedLayer, numbers: Sequence[int]) -> None:
        """Wait until chunks are in the cache.

        Raises:
            SandfleetError: one could not be had in time.
        """
        missing = [n for n in numbers if not self._cache.get(layer, n)]
        missing = [n for n in missing if self._cache.held(layer, n) is None]
        self.counts.hits += len(numbers) - len(missing)
        self.counts.misses += len(missing)
        if not missing:
            return
        self.counts.waiting += 1
        try:
            await asyncio.gather(*(asyncio.shield(t) for t in self._begin(layer, missing)))
        except SandfleetError:
            self.counts.given_up += 1
            raise
        finally:
            self.counts.waiting -= 1

    def begin_ahead(self, layer: CachedLayer, numbers: Iterable[int]) -> list[asyncio.Task[None]]:
        """Begin to fetch chunks that will be needed, after those that are."""
        known = sorted(n for n in set(numbers) if 0 <= n < layer.index.chunks)
        return self._begin(layer, [n for n in known if not layer.present[n]], is_ahead=True)

    def _begin(
        self, layer: CachedLayer, numbers: Sequence[int], *, is_ahead: bool = False
    ) -> list[asyncio.Task[None]]:
        """Start fetching what nobody fetches yet; return what to wait for."""
        tasks: dict[asyncio.Task[None], None] = {}
        fresh: list[int] = []
        for number in numbers:
            task = self._under_way.get((layer.digest, number))
            if task is not None and not (task.get_name() == "ahead" and not is_ahead):
                tasks[task] = None
            else:
                fresh.append(number)
        for run in runs(fresh):
            name = "ahead" if is_ahead else "demand"
            task = asyncio.create_task(self._fetch(layer, run, is_ahead=is_ahead), name=name)
            for number in run:
                self._under_way[layer.digest, number] = task
            task.add_done_callback(lambda done, run=run: self._ended(layer, run, done))
            tasks[task] = None
        return list(tasks)

    def _ended(self, layer: CachedLayer, run: Sequence[int], task: asyncio.Task[None]) -> None:
        for number in run:
            if self._under_way.get((layer.digest, number)) is task:
                del self._under_way[layer.digest, number]
        if not task.cancelled():
            task.exception()  # those who wait have it

    async def _fetch(self, layer: CachedLayer, run: Sequence[int], *, is_ahead: bool) -> None:
        # Whoever waited through an outage has had his time; the next ones need not wait as long.
        since = self.counts.failing_since
        is_away = since is not None and time.time() - since > self._wait_seconds
        deadline = time.monotonic() + (0 if is_away else self._wait_seconds)
        delay, damaged = _FIRST_DELAY_SECONDS, 0
        while True:
            try:
                async with self._ahead if is_ahead else self._demand:
                    wanted = [n for n in run if not layer.present[n]] if is_ahead else run
                    if not wanted or await self._try(layer, wanted[0], wanted[-1], is_ahead):
                        return
                damaged += 1
                problem: SandfleetError = Broken(f"layer {layer.digest} is damaged in the store")
                if damaged >= _CORRUPT_TRIES:
                    raise problem
            except (Unreachable, TimeoutError) as unreachable:
                problem = Unreachable(str(unreachable))
                if time.monotonic() + delay > deadline:
                    raise problem from None
            await asyncio.sleep(delay * (0.5 + random.random()))
            delay = min(2 * delay, _LONGEST_DELAY_SECONDS)

    async def _try(self, layer: CachedLayer, first: int, last: int, is_ahead: bool) -> bool:
        """Fetch a run once; return whether all of it was as the index says."""
        index = layer.index
        offset = first * index.chunk_bytes
        length = min((last + 1) * index.chunk_bytes, index.data_bytes) - offset
        began = time.monotonic()
        content = memoryview(
            await self._ask(self._store.read(layer.digest, "data", offset, length))
        )
        counts = self.counts
        counts.fetches += 1
        counts.fetch_seconds += time.monotonic() - began
        counts.fetched_bytes += len(content)
        counts.ahead_bytes += len(content) if is_ahead else 0
        is_good = True
        for number in range(first, last + 1):
            at = number * index.chunk_bytes - offset
            chunk = content[at : at + index.chunk_size(number)]
            if index.is_chunk(number, chunk):
                self._cache.put(layer, number, bytes(chunk))
            else:
                counts.corrupt += 1
                self._log.warning("chunks.corrupt", layer=layer.digest, chunk=number)
                is_good = False
        return is_good

    async def _ask(self, answer: Awaitable[ResultT]) -> ResultT:
        try:
            found = await answer
        except Unreachable as problem:
            self.counts.failures += 1
            if self.counts.failing_since is None:
                self.counts.failing_since = time.time()
                self._log.error("chunks.store_failing", error=problem.message)
            raise
        if self.counts.failing_since is not None:
            seconds = round(time.time() - self.counts.failing_since)
            self._log.info("chunks.store_back", seconds=seconds)
            self.counts.failing_since = None
        return found


def runs(numbers: Sequence[int]) -> list[list[int]]:
    """Split ascending numbers into runs of neighbours, each at most RUN_CHUNKS long."""
    found: list[list[int]] = []
    for number in numbers:
        if found and found[-1][-1] == number - 1 and len(found[-1]) < RUN_CHUNKS:
            found[-1].append(number)
        else:
            found.append([number])
    return found
