"""`python -m sandfleet_node.chunks JSON`: the chunk server. The node starts it."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from sandfleet_common.logs import Logger
from sandfleet_node.layers import open_store

from .cache import Cache
from .fetching import Fetcher
from .foresight import Foresight
from .server import Server
from .settings import ChunkSettings


async def _serve(settings: ChunkSettings) -> None:
    log = Logger("chunks")
    store = open_store(settings.store_url, settings.store_endpoint, settings.store_timeout_seconds)
    cache = Cache(Path(settings.cache), settings.cache_bytes)
    fetcher = Fetcher(store, cache, settings.wait_seconds, log)
    foresight = Foresight(store, fetcher, log, is_on=settings.foresight)
    server = Server(settings.device, cache, fetcher, foresight, log)
    server.identity = settings.identity
    async with await server.listen(Path(settings.socket)):
        await server.run()


def main() -> int:
    """Serve until the file system is unmounted: nobody uses it any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's Ctrl-C is for the platform
    asyncio.run(_serve(ChunkSettings.model_validate_json(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
