"""The two ways to the platform: as a trainer over NATS, and through a real gateway."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import httpx
from servers import Servers, free_port


def trainer_address(servers: Servers) -> str:
    """Return how a trainer reaches the bus."""
    nats = servers.nats
    return f"nats://trainer:{nats.passwords['trainer']}@127.0.0.1:{nats.port}"


@contextlib.contextmanager
def gateway(servers: Servers, log: Path) -> Generator[str]:
    """Run a real gateway in front of the bus, open to this machine; gives its address."""
    port = free_port()
    environment = servers.environment(
        "gateway", port=str(port), open_to_loopback="true", drain_seconds="1"
    )
    with log.open("wb") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "sandfleet_gateway"], env=environment, stdout=out, stderr=out
        )
    try:
        address = f"http://127.0.0.1:{port}"
        ends = time.monotonic() + 20
        while True:
            if process.poll() is not None or time.monotonic() > ends:
                raise RuntimeError(f"the gateway did not start:\n{log.read_text()[-2000:]}")
            with contextlib.suppress(httpx.TransportError):
                if httpx.get(f"{address}/readyz").is_success:
                    break
            time.sleep(0.05)
        yield address
    finally:
        process.terminate()
        process.wait()
