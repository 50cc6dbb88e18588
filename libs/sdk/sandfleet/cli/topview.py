"""What `sandfleet top` shows: sums of each node, then the sandboxes that use most. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from sandfleet.usage import FleetUsage
from sandfleet_common.messages import NodeBeat, NodeUsage, SandboxUsage, UsageOrder

from . import text

KEYS: dict[str, UsageOrder] = {
    "c": "cpu",
    "t": "cpu_seconds",
    "m": "memory",
    "d": "disk",
    "e": "egress",
    "p": "processes",
    "i": "idle",
}
"""What each key sorts by."""
HELP = "q quit  sort: c cpu  t time  m memory  d disk  e sent  p processes  i idle"
NODES_SHOWN = 6
WIDE = 104
"""From this width on there is room for nodes, and for labels."""
SPARED = ("SWAP", "PEAK", "SENT", "PROCS", "TIME", "DISK", "IDLE", "STATE", "MEM", "CPU%")
"""Columns that a narrow terminal does without, these first; never the one that is sorted by."""
NODES_SPARED = (
    "STALL% c/m/io", "SWAP", "DISK", "LOAD", "PAUSED", "FREE", "CORES", "MEM", "LIVE",
)  # fmt: skip
_NONE = "-"


@dataclass(slots=True)
class View:
    """How it is looked at."""

    order: UsageOrder = "cpu"
    offset: int = 0
    note: str = ""
    """What went wrong at the last look."""
    help: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """One column of the table of sandboxes."""

    title: str
    width: int
    cell: Callable[[SandboxUsage], str]
    order: UsageOrder | None = None
    """The order in which this column is what counts."""
    is_text: bool = False


def _time(seconds: float) -> str:
    return f"{seconds:.1f}s" if seconds < 100 else text.brief_duration(seconds)


COLUMNS = (
    Column("SANDBOX", 8, lambda u: text.short_id(u.sandbox_id), is_text=True),
    Column("STATE", 8, lambda u: u.state, is_text=True),
    Column("CPU%", 6, lambda u: f"{u.cpu_cores * 100:.1f}", "cpu"),
    Column("TIME", 6, lambda u: _time(u.cpu_seconds), "cpu_seconds"),
    Column("MEM", 5, lambda u: text.brief_size(u.memory_bytes), "memory"),
    Column("PEAK", 5, lambda u: text.brief_size(u.memory_peak_bytes)),
    Column("SWAP", 5, lambda u: text.brief_size(u.swap_bytes)),
    Column("DISK", 5, lambda u: text.brief_size(u.disk_bytes), "disk"),
    Column("SENT", 5, lambda u: text.brief_size(u.egress_bytes), "egress"),
    Column("PROCS", 5, lambda u: str(u.processes), "processes"),
    Column("IDLE", 6, lambda u: text.brief_duration(u.idle_seconds), "idle"),
)
_MORE = (
    Column("NODE", 14, lambda u: node_name(u.sandbox_id), is_text=True),
    Column("LABELS", 24, lambda u: labels(u), is_text=True),
)


def node_name(sandbox_id: str) -> str:
    """Return the node's name that stands in a sandbox's id."""
    return sandbox_id.partition("-")[2].rpartition("-")[0]


def labels(used: SandboxUsage) -> str:
    """Return the job and the labels of a sandbox on one line."""
    words = [f"{name}={value}" for name, value in sorted(used.labels.items())]
    return " ".join(([used.job_id] if used.job_id else []) + words)


def screen(
    fleet: FleetUsage, view: View, *, width: int, height: int | None = None
) -> RenderableType:
    """Return what is to be seen, at most `height` lines of it."""
    nodes = nodes_table(fleet, width)
    parts: list[RenderableType] = [headline(fleet, view), *troubles(fleet, view), nodes]
    hidden = len(fleet.beats) - NODES_SHOWN
    if hidden > 0:
        parts.append(Text(f"and {hidden} more nodes", style="dim"))
    if view.help:
        parts.append(_cut(view.help, "dim"))
    parts.append(Text())
    room = None
    if height is not None:
        used = nodes.row_count + 1 + sum(1 for part in parts if isinstance(part, Text))
        room = max(1, height - used - 1)
    shown = fleet.sandboxes[view.offset : None if room is None else view.offset + room]
    return Group(*parts, sandboxes_table(shown, view.order, width))


def headline(fleet: FleetUsage, view: View) -> Text:
    """Return the sums over everything, in one line."""
    count, paused = (sum(values) for values in _counts(fleet.nodes))
    nodes = len(fleet.nodes)
    line = Text(no_wrap=True, overflow="ellipsis")
    line.append("1 sandbox" if count == 1 else f"{count} sandboxes", style="bold")
    line.append(f": {count - paused} running, {paused} paused, ")
    line.append(f"{sum(n.cpu_cores for n in fleet.nodes):.2f} cores, ")
    line.append(f"{text.brief_size(sum(n.memory_bytes for n in fleet.nodes))} on ")
    line.append("1 node" if nodes == 1 else f"{nodes} nodes")
    line.append(f", by {view.order.replace('_', ' ')}")
    return line


def troubles(fleet: FleetUsage, view: View) -> list[Text]:
    """Return what went wrong, a line each."""
    silent = f"no answer: {', '.join(fleet.silent)}" if fleet.silent else ""
    return [_cut(text.safe_line(told), "bold red") for told in (silent, view.note) if told]


def _counts(nodes: Sequence[NodeUsage]) -> tuple[list[int], list[int]]:
    return [n.count for n in nodes], [n.paused for n in nodes]


_NODE_COLUMNS = (
    ("NODE", 15), ("LIVE", 5), ("PAUSED", 6), ("CORES", 6), ("LOAD", 5), ("MEM", 5), ("FREE", 5),
    ("SWAP", 5), ("DISK", 5), ("STALL% c/m/io", 14),
)  # fmt: skip


def fitting(widths: dict[str, int], spared: Iterable[str], width: int) -> list[str]:
    """Return the titles of the columns that fit into `width` when those in `spared` go first."""
    shown = dict(widths)
    for title in spared:
        if sum(shown.values()) + len(shown) - 1 <= width:
            break
        del shown[title]
    return list(shown)


def nodes_table(fleet: FleetUsage, width: int) -> Table:
    """Return the sums of each node: what sandboxes use, what is left, how long work stood still.

    DISK is what is free there; STALL% is in percent of the last ten seconds. Columns that do
    not fit into `width` are left out.
    """
    made = _table()
    widths = dict(_NODE_COLUMNS)
    titles = fitting(widths, NODES_SPARED, width)
    for title in titles:
        side = "left" if title == "NODE" else "right"
        made.add_column(title, width=widths[title], no_wrap=True, justify=side)
    told = {node.node: node for node in fleet.nodes}
    for beat in fleet.beats[:NODES_SHOWN]:
        cells = dict(zip(widths, _node_cells(beat, told.get(beat.node)), strict=True))
        made.add_row(*_row(cells[title] for title in titles))
    return made


def _node_cells(beat: NodeBeat, node: NodeUsage | None) -> list[str]:
    stalled = (beat.pressure.cpu_some, beat.pressure.memory_some, beat.pressure.io_some)
    return [
        beat.node,
        _NONE if node is None else str(node.count),
        _NONE if node is None else str(node.paused),
        _NONE if node is None else f"{node.cpu_cores:.2f}",
        f"{beat.load_per_core:.2f}",
        _NONE if node is None else text.brief_size(node.memory_bytes),
        text.brief_size(beat.memory_available_bytes),
        _NONE if node is None else text.brief_size(node.swap_bytes),
        text.brief_size(beat.disk_free_bytes),
        "/".join(_percent(share) for share in stalled),
    ]


def _percent(share: float | None) -> str:
    """Return a share in at most four letters: `0.4`, `12`, `100`."""
    if share is None:
        return _NONE
    return f"{share:.1f}" if share < 9.95 else f"{share:.0f}"


def sandboxes_table(shown: Sequence[SandboxUsage], order: UsageOrder, width: int) -> Table:
    """Return the table of sandboxes, with as many columns as fit into `width`."""
    widths = {column.title: column.width for column in COLUMNS}
    sorted_by = {column.title for column in COLUMNS if column.order == order}
    titles = fitting(widths, (title for title in SPARED if title not in sorted_by), width)
    columns = [column for column in COLUMNS if column.title in titles]
    columns += _MORE if width >= WIDE else ()
    made = _table()
    for column in columns:
        made.add_column(
            column.title,
            width=None if column.title == "LABELS" else column.width,
            no_wrap=True,
            justify="left" if column.is_text else "right",
            style="bold" if column.order == order else "",
        )
    for used in shown:
        cells = _row(column.cell(used) for column in columns)
        made.add_row(*cells, style="dim" if used.state == "paused" else "")
    return made


def _table() -> Table:
    return Table(box=None, padding=(0, 1, 0, 0), pad_edge=False, header_style="reverse")


def _row(cells: Iterable[str]) -> list[Text]:
    """Return cells that cannot steer the terminal or be taken for markup."""
    return [Text(text.safe_line(cell), no_wrap=True) for cell in cells]


def _cut(line: str, style: str) -> Text:
    return Text(line, style=style, no_wrap=True, overflow="ellipsis")
