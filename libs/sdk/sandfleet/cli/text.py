"""Text for people, and text from people: sizes, durations, safe output. Pure."""

from __future__ import annotations

import codecs
import re

from sandfleet_common.errors import BadRequest

SHORT_LETTERS = 8
"""Of an id's random end; enough to tell a fleet's sandboxes apart at a glance."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "k": 1024, "m": 1024**2, "g": 1024**3, "t": 1024**4}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)", re.IGNORECASE)
_DURATION_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}

_ALLOWED = "\t\n\r"
_STEERING = (
    {chr(n) for n in (*range(0x20), *range(0x7F, 0xA0))}
    | {chr(n) for n in (0x200E, 0x200F, 0x061C, 0x2028, 0x2029)}
    | {chr(n) for n in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))}
) - set(_ALLOWED)
_SHOWN = str.maketrans(
    {c: f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}" for c in _STEERING}
)
_ONE_LINE = _SHOWN | {ord("\n"): "\\n", ord("\r"): "\\r", ord("\t"): "\\t"}


def parse_size(text: str) -> int:
    """Return bytes: `512m`, `1.5g`, `2GiB`, `4096`.

    Raises:
        BadRequest: it is not a size.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise BadRequest(f"{text!r} is not a size: write 512m, 1.5g or a number of bytes")
    return int(float(found[1]) * _SIZE_UNITS[found[2].lower()])


def parse_duration(text: str) -> float:
    """Return seconds: `90`, `90s`, `15m`, `2h`, `1d`.

    Raises:
        BadRequest: it is not a duration.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise BadRequest(f"{text!r} is not a duration: write 90, 90s, 15m, 2h or 1d")
    return float(found[1]) * _DURATION_UNITS[found[2].lower()]


def parse_assignment(text: str) -> tuple[str, str]:
    """Return name and value of `NAME=value`.

    Raises:
        BadRequest: it is not an assignment.
    """
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise BadRequest(f"{text!r} is not NAME=value")
    return name, value


def size(count: float) -> str:
    """Return bytes for people: `1.5 GiB`."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def brief_size(count: float) -> str:
    """Return bytes in at most five letters: `0`, `512B`, `1.5M`, `24G`."""
    if count < 1:
        return "0"
    units = iter("BKMGTP")
    unit = next(units)
    while count >= 999.5 and unit != "P":
        count, unit = count / 1024, next(units)
    return f"{count:.0f}{unit}" if unit == "B" or count >= 9.95 else f"{count:.1f}{unit}"


def brief_duration(seconds: float) -> str:
    """Return seconds in at most six letters: `42s`, `5m10s`, `3h2m`, `2d4h`."""
    return duration(seconds).replace(" ", "")


def duration(seconds: float) -> str:
    """Return seconds for people: `42s`, `5m 10s`, `3h 2m`, `2d 4h`."""
    left = int(max(0, seconds))
    days, left = divmod(left, 86400)
    hours, left = divmod(left, 3600)
    minutes, left = divmod(left, 60)
    parts = [(days, "d"), (hours, "h"), (minutes, "m"), (left, "s")]
    while len(parts) > 1 and parts[0][0] == 0:
        parts.pop(0)
    shown = [parts[0], *(part for part in parts[1:2] if part[0])]
    return " ".join(f"{count}{unit}" for count, unit in shown)


def short_id(sandbox_id: str) -> str:
    """Return the end of an id, by which a person may name the sandbox."""
    return sandbox_id[-SHORT_LETTERS:]


def matches(sandbox_id: str, reference: str) -> bool:
    """Return whether a person may mean this sandbox by `reference`.

    It is the beginning of the id, of its random part, or of the short form, or a
    longer end than the short form is.
    """
    if not reference:
        return False
    ulid = sandbox_id.rpartition("-")[2]
    return any(name.startswith(reference) for name in (sandbox_id, ulid, short_id(sandbox_id))) or (
        len(reference) > SHORT_LETTERS and ulid.endswith(reference)
    )


def safe_line(text: str) -> str:
    """Return text that takes one line of a terminal and cannot steer it."""
    return text.translate(_ONE_LINE)


class SafeText:
    """Turns a stream of bytes into text that cannot steer a terminal.

    Escape sequences, control characters and direction overrides are shown as
    escapes; tabs and line ends stay. A character split between pieces is kept whole.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def add(self, data: bytes) -> str:
        """Return what can be shown of `data` and what was held back before."""
        return self._decoder.decode(data).translate(_SHOWN)

    def end(self) -> str:
        """Return what was held back."""
        return self._decoder.decode(b"", final=True).translate(_SHOWN)
