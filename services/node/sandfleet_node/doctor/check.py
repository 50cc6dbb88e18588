"""One line of the doctor's report."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from . import trial

Status = Literal["ok", "warn", "fail"]


@dataclass(frozen=True, slots=True)
class Check:
    """What was looked at and how it is."""

    id: str
    """Stable: errors and tests refer to it."""
    status: Status
    """fail: sandboxes cannot run; warn: something is slower, weaker or missing."""
    found: str
    why: str
    """What Sandfleet needs it for."""
    mend: str = ""
    """One command where one is enough; empty when all is well."""


@dataclass(slots=True)
class Host:
    """What the checks look at. Roots can be moved, so that tests show them other hosts."""

    state: Path
    proc: Path = Path("/proc")
    sys: Path = Path("/sys")
    _tried: trial.Outcome | None = field(default=None, init=False)

    def text(self, path: str) -> str:
        """Return a file below proc ("proc/...") or sys ("sys/..."), empty if it cannot be read."""
        root, _, rest = path.partition("/")
        try:
            return ((self.proc if root == "proc" else self.sys) / rest).read_text().strip()
        except OSError:
            return ""

    def number(self, path: str) -> int | None:
        """Return a file's number, None if there is none."""
        text = self.text(path)
        return int(text) if text.lstrip("-").isdigit() else None

    def tried(self) -> trial.Outcome:
        """Return how mounting like a sandbox does went; tried once."""
        if self._tried is None:
            self._tried = trial.run(self.state)
        return self._tried

    def folder(self) -> Path:
        """Return the state directory, or the nearest directory above it that exists."""
        folder = self.state.absolute()
        while not folder.is_dir():
            folder = folder.parent
        return folder
