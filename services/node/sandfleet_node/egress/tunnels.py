"""What goes through a CONNECT request: TLS to the host it was made for, unopened."""

from __future__ import annotations

import asyncio
import time

from .clienthello import NotTls, server_name
from .policy import NAME
from .streams import Stream, copy
from .upstreams import Refusal


async def greeting(client: Stream, early: bytes, host: str) -> bytes:
    """Return the first bytes of a tunnel, once they say whom they are for.

    Args:
        client: who opened the tunnel.
        early: what came behind the request.
        host: to which the tunnel goes.

    Raises:
        Refusal: they are no TLS, or for another host.
        OSError: the client has gone.
    """
    data = early
    try:
        while (name := server_name(data)) is None:
            more = await client.receive()
            if not more:
                raise NotTls("it ends too early")
            data += more
    except NotTls as problem:
        raise Refusal(
            403, "tunnel", f"the policy `{NAME}` allows only TLS in a tunnel to {host}: {problem}"
        ) from None
    is_address = ":" in host or host.rpartition(".")[2].isdigit()
    if name != host and not (is_address and not name):
        raise Refusal(
            403,
            "tunnel",
            f"the policy `{NAME}` allows a tunnel to {host} for that host only, "
            f"not for {name[:100] or 'one that is not named'}",
        )
    return data


async def carry(client: Stream, upstream: Stream, idle_seconds: float) -> None:
    """Pass bytes both ways until both sides have ended, or both are silent for too long.

    Raises:
        OSError: one of them broke off.
    """
    try:
        async with asyncio.TaskGroup() as group:
            ways = [
                group.create_task(copy(client, upstream)),
                group.create_task(copy(upstream, client)),
            ]
            await _until_idle(client, upstream, idle_seconds, ways)
            for way in ways:
                way.cancel()
    except* (OSError, TimeoutError):
        raise ConnectionError("the tunnel broke off") from None


async def _until_idle(
    client: Stream, upstream: Stream, idle_seconds: float, ways: list[asyncio.Task[None]]
) -> None:
    """Wait until both ways are done, or until neither stream was used for so long."""
    while True:
        left = max(client.used_at, upstream.used_at) + idle_seconds - time.monotonic()
        if left <= 0:
            return
        _, pending = await asyncio.wait(ways, timeout=left)
        if not pending:
            return
