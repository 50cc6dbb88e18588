"""One JSON line per event: its name, then fields.

    log = Logger("node", node="n1")
    log.info("sandbox.ready", sandbox=sandbox_id, start_ms=3.1)

Values of fields whose names say that they are secret never appear.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from enum import IntEnum
from typing import Any, TextIO

_SECRET = ("password", "secret", "token", "authorization", "api_key")


class Level(IntEnum):
    """How much an event matters."""

    DEBUG = 10
    INFO = 20
    WARNING = 30
    ERROR = 40


class Logger:
    """Writes events with a set of fields that all of them carry."""

    def __init__(
        self, service: str, *, level: Level = Level.INFO, out: TextIO | None = None, **fields: Any
    ) -> None:
        self._service = service
        self._level = level
        self._out = out if out is not None else sys.stderr
        self._fields = fields

    def bind(self, **fields: Any) -> Logger:
        """Return a logger that adds `fields` to every event."""
        bound = Logger(self._service, level=self._level, out=self._out)
        bound._fields = self._fields | fields
        return bound

    def debug(self, event: str, **fields: Any) -> None:
        """Say something that only a developer wants to know."""
        self._write(Level.DEBUG, event, fields)

    def info(self, event: str, **fields: Any) -> None:
        """Say that something expected happened."""
        self._write(Level.INFO, event, fields)

    def warning(self, event: str, **fields: Any) -> None:
        """Say that something went wrong and was dealt with."""
        self._write(Level.WARNING, event, fields)

    def error(self, event: str, **fields: Any) -> None:
        """Say that something went wrong and somebody should look."""
        self._write(Level.ERROR, event, fields)

    def _write(self, level: Level, event: str, fields: dict[str, Any]) -> None:
        if level < self._level:
            return
        record: dict[str, Any] = {
            "at": round(time.time(), 4),
            "level": level.name.lower(),
            "service": self._service,
            "event": event,
        }
        record.update(self._fields)
        record.update(fields)
        line = json.dumps({k: _shown(k, v) for k, v in record.items()}, default=str)
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except (OSError, ValueError):
            # Nobody reads the log any more; that must not end a service.
            return


def _shown(name: str, value: Any) -> Any:
    if any(part in name.lower() for part in _SECRET):
        return "***"
    if isinstance(value, BaseException):
        trace = traceback.format_exception(value)
        return {"type": type(value).__name__, "text": str(value), "trace": "".join(trace)[-4000:]}
    return value
