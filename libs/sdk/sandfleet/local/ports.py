"""Loopback ports: free ones, and the same ones next time."""

from __future__ import annotations

import json
import secrets
import socket
from collections.abc import Callable, Iterable
from pathlib import Path

from sandfleet_common.errors import Busy

from .layout import write_private

HOST = "127.0.0.1"
FIRST, LAST = 20_000, 29_999
"""Below the range from which the kernel gives ports to outgoing connections: nobody takes
a port by chance while its server restarts."""
TRIES = 200


def is_free(port: int) -> bool:
    """Whether a server could listen there now."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def choose(
    names: Iterable[str], saved: dict[str, int], usable: Callable[[str, int], bool]
) -> dict[str, int]:
    """Return a port for each name: its saved one if that is usable, else a new one.

    Raises:
        Busy: no free port was found.
    """
    chosen = {n: saved[n] for n in names if n in saved and usable(n, saved[n])}
    for name in names:
        tries = 0
        while name not in chosen:
            port = FIRST + secrets.randbelow(LAST - FIRST + 1)
            if port not in chosen.values() and usable(name, port):
                chosen[name] = port
            elif (tries := tries + 1) > TRIES:
                raise Busy(f"no free port on {HOST} between {FIRST} and {LAST}")
    return chosen


def assign(path: Path, names: Iterable[str], running: set[str]) -> dict[str, int]:
    """Return everybody's port and remember it in `path`; those who run keep theirs."""
    try:
        saved: dict[str, int] = json.loads(path.read_text())
    except (OSError, ValueError):
        saved = {}
    held = {saved[name] for name in running if name in saved}

    def usable(name: str, port: int) -> bool:
        return saved.get(name) == port if port in held else is_free(port)

    chosen = choose(tuple(names), saved, usable)
    if chosen != saved:
        write_private(path, json.dumps(chosen, indent=2) + "\n")
    return chosen
