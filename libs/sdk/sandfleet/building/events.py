"""What a build says while it goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

StepState = Literal["started", "cached", "packing", "done", "failed"]


@dataclass(frozen=True, slots=True)
class Step:
    """How far one step is."""

    number: int
    total: int
    title: str
    state: StepState
    seconds: float = 0.0
    """Since it was started."""
    size_bytes: int = 0
    """Of its layer."""
    digest: str = ""
    stage: str = ""

    def data(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"event": "step", **asdict(self)}


@dataclass(frozen=True, slots=True)
class Output:
    """A piece of what a command prints."""

    stream: Literal["stdout", "stderr"]
    text: bytes

    def data(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        text = self.text.decode(errors="replace")
        return {"event": "output", "stream": self.stream, "text": text}


@dataclass(frozen=True, slots=True)
class Said:
    """A warning, or where something is."""

    level: Literal["info", "warning"]
    text: str

    def data(self) -> dict[str, Any]:
        """Return it as a JSON object."""
        return {"event": self.level, "text": self.text}


Event = Step | Output | Said
Report = Callable[[Event], None]


def unheard(_: Event) -> None:
    """Take an event and do nothing."""
