"""Waiting until a part of the platform answers, and saying why it does not."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from typing import cast

from sandfleet_common.access import REDIS_PROBE
from sandfleet_common.bus import Bus, BusSettings
from sandfleet_common.errors import SandfleetError, Unreachable
from sandfleet_common.logs import Level, Logger

from .layout import Layout
from .parts import NATS, REDIS, Part
from .ports import HOST
from .processes import Process, last_lines

POLL_SECONDS = 0.03
ANSWER_SECONDS = 2.0
LINE_MAX = 400
"""Letters of a log line that are shown."""


def is_ready(part: Part, port: int) -> bool:
    """Whether a part can do its work now."""
    try:
        if part is NATS:
            return _greeting(port, b"").startswith(b"INFO")
        if part is REDIS:
            return b"+PONG" in _greeting(port, b"AUTH %s none\r\nPING\r\n" % REDIS_PROBE.encode())
        return _status(port) == 200
    except (OSError, http.client.HTTPException):
        return False


def _greeting(port: int, said: bytes) -> bytes:
    with socket.create_connection((HOST, port), timeout=ANSWER_SECONDS) as connection:
        connection.sendall(said)
        heard = b""
        while heard.count(b"\r\n") < max(1, said.count(b"\r\n")):
            if not (more := connection.recv(64)):
                break
            heard += more
        return heard


def _status(port: int) -> int:
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS)
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status
    finally:
        connection.close()


def wait_ready(part: Part, process: Process, port: int, layout: Layout) -> None:
    """Return once a part is ready.

    Raises:
        Unreachable: it died or took too long; the message has the end of its log.
    """
    until = time.monotonic() + part.start_seconds
    while not is_ready(part, port):
        if not process.is_alive():
            raise Unreachable(_complaint(part, "ended at once", layout))
        if time.monotonic() > until:
            what = f"was not ready within {part.start_seconds:g} s"
            raise Unreachable(_complaint(part, what, layout))
        time.sleep(POLL_SECONDS)


def _complaint(part: Part, what: str, layout: Layout) -> str:
    log = layout.log_of(part.name)
    said = "\n".join(f"    {line_text(line)}" for line in last_lines(log)) or "    (nothing)"
    lines = ", ".join(f"`{line}`" for line in part.doctor)
    return f"{part.name} {what}; see doctor lines {lines}. The end of {log}:\n{said}"


def line_text(line: str) -> str:
    """Return a log line for people: of a JSON event its name and fields."""
    try:
        event = json.loads(line)
    except ValueError:
        return line[:LINE_MAX]
    if not isinstance(event, dict):
        return line[:LINE_MAX]
    fields = cast(dict[str, object], event)
    level, name = fields.pop("level", ""), fields.pop("event", "")
    rest = [f"{k}={_plain(v)}" for k, v in fields.items() if k not in ("at", "service")]
    return " ".join([str(level), str(name), *rest]).strip()[:LINE_MAX]


def _plain(value: object) -> object:
    """Return an error of a log line without its trace, anything else as it is."""
    if not isinstance(value, dict):
        return value
    error = cast(dict[str, object], value)
    return f"{error.get('type')}: {error.get('text')}" if "trace" in error else error


def make_streams(layout: Layout, port: int, password: str) -> None:
    """Create JetStream's streams as the administrator.

    Raises:
        Unreachable: JetStream does not answer.
    """
    settings = BusSettings(
        servers=(f"nats://{HOST}:{port}",), user="admin", password=password, name="sandfleet up"
    )

    async def make() -> None:
        log = Logger("up", level=Level.ERROR, out=sys.stderr)
        async with Bus.connect(settings, log) as bus:
            await bus.ensure_streams()

    try:
        # A thread of its own: the caller may have an event loop running in this one.
        with ThreadPoolExecutor(max_workers=1) as thread:
            thread.submit(lambda: asyncio.run(make())).result()
    except SandfleetError as problem:
        raise Unreachable(_complaint(NATS, f"is up, but {problem.message}", layout)) from problem
