"""Run the gateway, or print the description of its API: `openapi`."""

from __future__ import annotations

import asyncio
import sys

from sandfleet_common.lifecycle import Health, serve
from sandfleet_common.logs import Logger
from sandfleet_common.settings import load

from .config import GatewaySettings
from .openapi import text
from .service import Gateway


async def run(settings: GatewaySettings) -> int:
    """Run the service and return the exit status."""
    log = Logger("gateway", level=settings.level())
    health = Health()
    gateway = Gateway(settings, log, health)
    return await serve(gateway, log, health, drain_seconds=settings.drain_seconds)


def main() -> None:
    """Read the settings and run."""
    if sys.argv[1:] == ["openapi"]:
        sys.stdout.write(text())
        return
    if sys.argv[1:]:
        sys.exit("usage: python -m sandfleet_gateway [openapi]")
    sys.exit(asyncio.run(run(load(GatewaySettings, "gateway"))))


if __name__ == "__main__":
    main()
