"""What `sandfleet top` shows, and what its keys are."""

from __future__ import annotations

import io

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from sandfleet import FleetUsage, NodeBeat, NodeUsage, SandboxUsage, State
from sandfleet.cli import text, topview
from sandfleet.cli.top import split_keys
from sandfleet_common.messages import GIB, MIB, NodeCapacity, NodeState, Pressure

ID = "sb-node-a-01k5g4h8q2m6v0x3z7b9c1d2"


def used(last: str = "e3", **fields: object) -> SandboxUsage:
    given = {"state": State.RUNNING, "at": 0.0, **fields}
    return SandboxUsage.of(sandbox_id=ID + last, **given)


def beat(name: str = "node-a", **fields: object) -> NodeBeat:
    amounts = NodeCapacity(sandboxes=4000, cpu=2, memory_bytes=24 * GIB, disk_bytes=GIB)
    return NodeBeat.of(
        **{
            "node": name,
            "boot": "b",
            "sequence": 1,
            "at": 0.0,
            "state": NodeState.READY,
            "runtimes": ["native"],
            "environments": [],
            "capacity": amounts,
            "requested": amounts,
            "starting": 0,
            "starting_limit": 1,
            "memory_available_bytes": 20 * GIB,
            "load_per_core": 0.25,
            "disk_free_bytes": 30 * GIB,
            **fields,
        }
    )


def node(name: str = "node-a", **fields: object) -> NodeUsage:
    return NodeUsage.of(**{"node": name, "at": 0.0, "sandboxes": [], "count": 0, **fields})


def shown(
    fleet: FleetUsage, view: topview.View | None = None, width: int = 80, height: int | None = None
) -> list[str]:
    """Return the lines on a terminal of this size."""
    out = io.StringIO()
    console = Console(file=out, width=width, force_terminal=True, color_system=None)
    console.print(topview.screen(fleet, view or topview.View(), width=width, height=height))
    return out.getvalue().splitlines()


BUSY = FleetUsage(
    sandboxes=[
        used(
            cpu_cores=15.999,
            cpu_seconds=35_999,
            memory_bytes=999 * MIB,
            memory_peak_bytes=1023 * MIB,
            swap_bytes=10 * MIB,
            disk_bytes=4000 * GIB,
            egress_bytes=999,
            processes=65535,
            idle_seconds=86_399,
            labels={"run": "7", "model": "x" * 60},
            job_id="job-1",
        )
    ],
    nodes=[node(count=3200, paused=100, cpu_cores=1.234, memory_bytes=3 * GIB, swap_bytes=MIB)],
    beats=[beat(pressure=Pressure(cpu_some=1.5, memory_some=0, io_some=100))],
)


def test_everything_fits_into_80_columns() -> None:
    lines = shown(BUSY)
    assert max(map(cell_len, lines)) <= 80
    text = "\n".join(lines)
    for word in ("1599.9", "9h59m", "999M", "1.0G", "10M", "3.9T", "999B", "65535", "23h59m"):
        assert word in text, word
    assert "3200 sandboxes: 3100 running, 100 paused, 1.23 cores, 3.0G on 1 node" in text
    assert "1.5/0.0/100" in text
    assert "…" not in text


@pytest.mark.parametrize("width", [20, 32, 40, 55, 64, 79])
def test_a_narrow_terminal_does_without_columns_and_cuts_none(width: int) -> None:
    lines = shown(BUSY, topview.View(order="memory"), width=width)
    assert max(map(cell_len, lines)) <= width
    *_, titles, row = lines
    assert titles.split()[0] == "SANDBOX"
    assert "MEM" in titles.split(), "what is sorted by stays"
    assert "999M" in row.split()
    assert row.startswith(text.short_id(BUSY.sandboxes[0].sandbox_id))
    assert "…" not in "\n".join(lines[1:])


def test_the_least_wanted_column_goes_first() -> None:
    titles = [shown(BUSY, width=width)[-2].split() for width in (80, 72, 66)]
    assert [w for w in titles[0] if w not in titles[1]] == ["SWAP"]
    assert [w for w in titles[0] if w not in titles[2]] == ["PEAK", "SWAP"]


def test_a_wide_terminal_has_room_for_nodes_and_labels() -> None:
    lines = shown(BUSY, width=160)
    assert "node-a" in lines[-1]
    assert "job-1 model=" in lines[-1]
    assert max(map(cell_len, lines)) <= 160


def test_the_screen_is_not_higher_than_the_terminal() -> None:
    many = [used(f"{number:02x}") for number in range(100)]
    fleet = FleetUsage(many, [node(f"n{i}") for i in range(9)], [beat(f"n{i}") for i in range(9)])
    view = topview.View(help=topview.HELP)
    lines = shown(fleet, view, height=24)
    assert len(lines) == 24
    assert "and 3 more nodes" in "\n".join(lines)
    assert lines[-1].startswith(text.short_id(many[11].sandbox_id))


def test_scrolling_shows_what_is_further_down() -> None:
    many = [used(f"{number:02x}") for number in range(100)]
    lines = shown(FleetUsage(many), topview.View(offset=90), height=10)
    assert text.short_id(many[90].sandbox_id) in "\n".join(lines)
    assert text.short_id(many[89].sandbox_id) not in "\n".join(lines)


def test_the_name_of_a_machine_of_ones_own_is_whole() -> None:
    lines = shown(FleetUsage([], [node("local-17b8c0", count=1)], [beat("local-17b8c0")]))
    assert lines[0].startswith("1 sandbox: 1 running")
    assert any(line.startswith("local-17b8c0 ") for line in lines)


def test_what_is_not_measured_is_a_dash() -> None:
    assert "-/-/-" in "\n".join(shown(FleetUsage([], [node()], [beat()])))


def test_a_node_that_does_not_answer_is_named() -> None:
    lines = shown(FleetUsage([], [], [beat("gone")], silent=["gone"]))
    assert lines[1] == "no answer: gone"


def test_nothing_that_a_user_wrote_steers_the_terminal() -> None:
    hostile = {"a\x1b[2J": "[red]b\r\n\u202e"}
    fleet = FleetUsage([used(labels=hostile)], [node()], [beat()])
    lines = shown(fleet, topview.View(note="bad\x1b]0;x\x07"), width=160)
    assert not set("\n".join(lines)) & set("\x1b\x07\r\u202e")
    assert "a\\x1b[2J=[red]b\\r\\n\\u202e" in lines[-1]


def test_the_name_of_a_node_is_read_from_an_id() -> None:
    assert topview.node_name(ID) == "node-a"


@pytest.mark.parametrize(
    ("count", "brief"),
    [
        (0, "0"),
        (1, "1B"),
        (999, "999B"),
        (1000, "1.0K"),
        (1536, "1.5K"),
        (10 * 1024, "10K"),
        (1023 * 1024, "1.0M"),
        (24 * GIB, "24G"),
        (2**62, "4096P"),
    ],
)
def test_a_brief_size_has_one_unit(count: int, brief: str) -> None:
    assert text.brief_size(count) == brief


@given(st.integers(min_value=0, max_value=2**60), st.floats(min_value=0, max_value=86400 * 99))
def test_brief_texts_fit_their_columns(count: int, seconds: float) -> None:
    assert len(text.brief_size(count)) <= 5
    assert len(text.brief_duration(seconds)) <= 6


def test_keys_are_told_apart_however_they_arrive() -> None:
    assert split_keys(b"m\x1b[A\x1b[6~q") == [b"m", b"\x1b[A", b"\x1b[6~", b"q"]
    assert split_keys(b"") == []
    assert b"".join(split_keys(b"\x1b[Z\xffx")) == b"\x1b[Z\xffx"


def test_every_order_has_a_key_and_every_key_is_told() -> None:
    assert len(set(topview.KEYS.values())) == len(topview.KEYS) == 7
    assert all(f" {key} " in topview.HELP for key in topview.KEYS)
