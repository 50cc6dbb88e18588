"""Run a scheduler: `python -m sandfleet_scheduler`."""

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

from .config import SchedulerSettings
from .metrics import SchedulerMetrics
from .service import Scheduler


async def run(settings: SchedulerSettings) -> int:
    """Open bus and store, and serve."""
    log = Logger("scheduler", level=settings.level(), replica=settings.name)
    metrics, health = SchedulerMetrics(), Health()
    at = exposed(metrics, health, host=settings.metrics_host, port=settings.metrics_port)
    try:
        async with (
            Bus.connect(settings.bus("scheduler", settings.name), log) as bus,
            Store.connect(settings.store(), log) as store,
            at as port,
        ):
            log.info("metrics.served", port=port)
            scheduler = Scheduler(settings, bus, store, metrics, health, log)
            return await serve(scheduler, log, health, drain_seconds=settings.drain_seconds)
    except (SandfleetError, OSError) as problem:
        log.error("service.cannot_start", error=str(problem))
        return 1


def main() -> None:
    """Run until a signal."""
    sys.exit(asyncio.run(run(load(SchedulerSettings, "scheduler"))))


if __name__ == "__main__":
    main()
