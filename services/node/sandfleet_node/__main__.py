"""`python -m sandfleet_node` runs a node; with `clean` it removes what one left."""

from __future__ import annotations

import asyncio
import sys

from sandfleet_common.bus import Bus
from sandfleet_common.errors import SandfleetError
from sandfleet_common.lifecycle import Health, serve
from sandfleet_common.logs import Logger
from sandfleet_common.metrics import exposed
from sandfleet_common.settings import load
from sandfleet_common.store import Store

from .clean import clean
from .config import NodeSettings
from .hierarchies import CgroupError
from .metrics import NodeMetrics
from .places import Places
from .service import AlreadyRunning, NodeService


async def _run(settings: NodeSettings, log: Logger) -> int:
    metrics, health = NodeMetrics(), Health()
    async with (
        Bus.connect(settings.bus("node", f"node-{settings.name}"), log) as bus,
        Store.connect(settings.store(), log) as store,
        exposed(metrics, health, host=settings.metrics_host, port=settings.metrics_port) as port,
    ):
        log.info("node.starting", metrics_port=port)
        service = NodeService(settings, bus, store, metrics, health, log)
        return await serve(service, log, health, drain_seconds=settings.drain_seconds)


def main() -> None:
    """Run the node that the settings describe."""
    settings = load(NodeSettings, "node")
    log = Logger("node", level=settings.level(), node=settings.name)
    try:
        if sys.argv[1:] == ["clean"]:
            clean(Places(settings.state_dir, settings.name), settings.name, log)
        elif sys.argv[1:]:
            sys.exit("usage: python -m sandfleet_node [clean]")
        else:
            sys.exit(asyncio.run(_run(settings, log)))
    except (SandfleetError, AlreadyRunning, CgroupError, OSError) as problem:
        sys.exit(f"node: {problem}")


if __name__ == "__main__":
    main()
