"""What the command line shows of snapshots and environments."""

from __future__ import annotations

import io

from rich.console import Console

from sandfleet.cli.snapshots import grown
from sandfleet_common import messages as m

STATE = m.SnapshotState.READY


def snapshot(number: int, parent: int | None = None, **fields: object) -> m.SnapshotInfo:
    given = {"sandbox_id": "sb-n-1", "node": "n", "state": STATE, "created_at": float(number)}
    above = None if parent is None else identity(parent)
    return m.SnapshotInfo.of(snapshot_id=identity(number), parent=above, **(given | fields))


def identity(number: int) -> str:
    return f"sn-n-{number:026}"


def lines(*infos: m.SnapshotInfo) -> list[str]:
    out = io.StringIO()
    console = Console(file=out, width=120, highlight=False, markup=False)
    for tree in grown(infos):
        console.print(tree)
    return [line.rstrip() for line in out.getvalue().splitlines()]


def test_snapshots_hang_below_what_they_were_made_from_oldest_first() -> None:
    infos = (snapshot(4, 1), snapshot(3, 2), snapshot(2, 1), snapshot(1), snapshot(5))
    shown = [line.replace(identity(0)[:-1], "") for line in lines(*infos)]
    assert shown == ["1", "├── 2", "│   └── 3", "└── 4", "5"]


def test_one_whose_parent_was_removed_is_a_root() -> None:
    assert lines(snapshot(2, 1)) == [identity(2)]


def test_a_name_and_an_environment_stand_behind_the_id() -> None:
    (line,) = lines(snapshot(1, name="before", environment="debian:12.1"))
    assert line.split() == [identity(1), "before", "debian:12.1"]


def test_one_that_is_not_ready_says_so_and_none_steers_the_terminal() -> None:
    failed = snapshot(1, state=m.SnapshotState.FAILED, environment="a\x1b[2J[red]")
    assert lines(failed) == [f"{identity(1)}  a\\x1b[2J[red]  (failed)"]


def test_a_circle_of_parents_does_not_hang() -> None:
    # Nobody can make one; a damaged store must not stop the listing of the others.
    assert lines(snapshot(1, 2), snapshot(2, 1), snapshot(3)) == [identity(3)]


def test_a_long_line_is_no_deep_recursion_of_ours() -> None:
    infos = [snapshot(0), *(snapshot(number, number - 1) for number in range(1, 3000))]
    tree = grown(infos)[0]
    depth = 0
    while tree.children:
        (tree,) = tree.children
        depth += 1
    assert depth == 2999
