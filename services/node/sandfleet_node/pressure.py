"""Whether the machine can take more sandboxes, as measured. Pure.

What is promised to sandboxes may be far more than there is, so what protects the
node is how the machine really is:

    memory    refused below a floor of available memory, and while memory is tight
              and work stands still for it. Both: a single sandbox that thrashes at its
              own cap makes the whole machine's stall time rise, and says nothing of it.
    disk      refused below a floor of free bytes, and of free inodes.
    CPU, I/O  never refused, only slowed: fewer sandboxes are set up at once. Both can
              be waited for, the scheduler prefers nodes that are less busy, and where
              all are busy a late sandbox is better than none. What does not get its
              turn waits in the queue of starting ones, whose end is bounded and says
              when to come back.

Every limit has a margin: what fell below a floor must rise a quarter above it before
sandboxes are taken again, so that admission does not flap.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sandfleet_common.messages import MIB, Pressure

TIGHT_PART = 0.1
"""Memory is tight while less than this part of it is available."""


@dataclass(frozen=True, slots=True)
class Reading:
    """One look at the machine."""

    memory_total_bytes: int
    memory_available_bytes: int
    disk_total_bytes: int
    disk_free_bytes: int
    load_per_core: float
    cores: int
    pressure: Pressure = field(default_factory=Pressure)
    swap_free_bytes: int = 0
    inodes_free: int | None = None
    """None: the file system makes them as it needs them."""


@dataclass(frozen=True, slots=True)
class Thresholds:
    """From where on a node refuses or slows down; see NodeSettings for what each means."""

    memory_floor_bytes: int
    disk_floor_bytes: int
    inodes_floor: int
    memory_stall_percent: float
    cpu_slow_percent: float
    io_slow_percent: float
    load_slow_per_core: float
    margin: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One measured value and its limit."""

    setting: str
    value: float
    limit: float
    is_floor: bool
    """The value must not fall below the limit; otherwise not reach it."""
    slows: bool
    """It slows starting down instead of stopping it."""
    what: str
    """What a sentence says was measured; {} stands for an amount with its unit."""
    unit: str
    """MiB, percent, or empty for a plain number."""

    def opens_at(self, margin: float) -> float:
        """Return from where on it is no hindrance any more."""
        return self.limit * (1 + margin if self.is_floor else 1 - margin)

    def is_bad(self, margin: float, *, was_bad: bool) -> bool:
        """Return whether it is a hindrance, given that it was one or not."""
        edge = self.opens_at(margin) if was_bad else self.limit
        return self.value < edge if self.is_floor else self.value >= edge

    def sentence(self, margin: float) -> str:
        """Say what was measured, what the limit is and which setting made it."""
        said = self.what.format(self._amount(self.value))
        limit = self._amount(self.limit)
        if (self.value < self.limit) is self.is_floor:
            kind = "below its floor of" if self.is_floor else "not below its limit of"
            return f"{said}, {kind} {limit} ({self.setting})"
        again = self._amount(self.opens_at(margin))
        word = "from" if self.is_floor else "below"
        return f"{said}; it crossed {limit} ({self.setting}) and goes on {word} {again}"

    def _amount(self, value: float) -> str:
        if self.unit == "MiB":
            return f"{value / MIB:.0f} MiB"
        number = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
        return f"{number} {self.unit}" if self.unit else number


def bars(reading: Reading, limits: Thresholds) -> list[Bar]:
    """Return what can be judged of a reading; what the kernel does not measure is left out."""
    stalls = reading.pressure
    is_tight = reading.memory_available_bytes < TIGHT_PART * reading.memory_total_bytes
    found = [
        Bar("memory_floor_bytes", reading.memory_available_bytes, limits.memory_floor_bytes,
            True, False, "the node has only {} of memory available", "MiB"),
        Bar("disk_floor_bytes", reading.disk_free_bytes, limits.disk_floor_bytes,
            True, False, "the node has only {} of disk free", "MiB"),
    ]  # fmt: skip
    if reading.inodes_free is not None:
        found.append(
            Bar("inodes_floor", reading.inodes_free, limits.inodes_floor,
                True, False, "the node's disk has only {} inodes free", "")
        )  # fmt: skip
    if stalls.memory_full is not None:
        found.append(
            Bar("memory_stall_percent", stalls.memory_full if is_tight else 0.0,
                limits.memory_stall_percent, False, False,
                "all work of the node stands still {} of the time for want of memory", "percent")
        )  # fmt: skip
    if stalls.cpu_some is not None:
        found.append(
            Bar("cpu_slow_percent", stalls.cpu_some, limits.cpu_slow_percent, False, True,
                "work of the node waits {} of the time for a core", "percent")
        )  # fmt: skip
    else:
        found.append(
            Bar("load_slow_per_core", reading.load_per_core, limits.load_slow_per_core,
                False, True, "the node has {} running tasks for each core", "")
        )  # fmt: skip
    if stalls.io_full is not None:
        found.append(
            Bar("io_slow_percent", stalls.io_full, limits.io_slow_percent, False, True,
                "all work of the node stands still {} of the time for its disk", "percent")
        )  # fmt: skip
    return found


class Gate:
    """Judges one reading after another, and remembers which limits were crossed."""

    def __init__(self, limits: Thresholds) -> None:
        self._limits = limits
        self._crossed: frozenset[str] = frozenset()
        self.refusing: str | None = None
        """Why no sandbox is taken, or None."""
        self.slowing: str | None = None
        """Why fewer are set up at once, or None."""

    def look(self, reading: Reading) -> None:
        """Judge a reading."""
        margin = self._limits.margin
        bad = [
            bar
            for bar in bars(reading, self._limits)
            if bar.is_bad(margin, was_bad=bar.setting in self._crossed)
        ]
        self._crossed = frozenset(bar.setting for bar in bad)
        self.refusing = _joined([bar.sentence(margin) for bar in bad if not bar.slows])
        self.slowing = _joined([bar.sentence(margin) for bar in bad if bar.slows])


def _joined(sentences: list[str]) -> str | None:
    return "; ".join(sentences) if sentences else None


def parse_psi(text: str) -> tuple[float | None, float | None]:
    """Return from a file of /proc/pressure the ten-second averages of "some" and "full"."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        kind, _, rest = line.partition(" ")
        for word in rest.split():
            name, _, value = word.partition("=")
            if name == "avg10":
                found[kind] = float(value)
    return found.get("some"), found.get("full")
