"""What a build looks like on the command line."""

from __future__ import annotations

import json

import pytest

from sandfleet.building.events import Event, Output, Said, Step
from sandfleet.cli.buildview import line_of, view

EVENTS: list[Event] = [
    Step(1, 2, "RUN make", "started"),
    Output("stdout", b"line\npart \x1b[2J"),
    Step(1, 2, "RUN make", "packing", seconds=1),
    Step(1, 2, "RUN make", "done", seconds=1.26, size_bytes=2048),
    Said("warning", "VOLUME has no\neffect"),
    Step(2, 2, "COPY . .", "cached", size_bytes=1),
]


def shown(kind: str, *, as_json: bool = False) -> None:
    with view(kind, as_json=as_json) as it:
        for event in EVENTS:
            it.report(event)


def test_lines_are_whole_and_cannot_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    shown("plain")
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "[1/2] RUN make",
        "line",
        "part \\x1b[2J",
        "[1/2] RUN make: done, 1.3 s, 2.0 KiB",
        "warning: VOLUME has no\\neffect",
        "[2/2] COPY . .: cached, 1 B",
    ]


def test_a_quiet_build_says_only_what_matters(capsys: pytest.CaptureFixture[str]) -> None:
    shown("quiet")
    assert capsys.readouterr() == ("", "warning: VOLUME has no\\neffect\n")


def test_json_has_every_event_on_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    shown("auto", as_json=True)
    out, err = capsys.readouterr()
    assert err == ""
    events = [json.loads(line) for line in out.splitlines()]
    assert [event["event"] for event in events] == [
        "step", "output", "step", "step", "warning", "step",
    ]  # fmt: skip
    assert events[1]["text"] == "line\npart \x1b[2J"
    assert events[3]["size_bytes"] == 2048


def test_a_long_title_is_cut_where_it_ends() -> None:
    assert line_of(Step(1, 1, "x" * 200, "failed")).endswith("x: failed")
