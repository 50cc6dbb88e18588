"""One JSON line per event."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from sandfleet_common.logs import Level, Logger


def lines(out: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_an_event_is_one_line_with_its_fields() -> None:
    out = io.StringIO()
    Logger("node", out=out, node="n1").info("sandbox.ready", sandbox="sb", text="two\nlines")
    (record,) = lines(out)
    assert record["event"] == "sandbox.ready"
    assert (record["service"], record["level"], record["node"]) == ("node", "info", "n1")
    assert (record["sandbox"], record["text"]) == ("sb", "two\nlines")


@pytest.mark.parametrize("name", ["password", "nats_password", "API_KEY", "Authorization", "token"])
def test_secrets_never_appear(name: str) -> None:
    out = io.StringIO()
    Logger("x", out=out).info("event", **{name: "hunter2"})
    assert "hunter2" not in out.getvalue()


def test_a_level_hides_what_is_below_it() -> None:
    out = io.StringIO()
    log = Logger("x", level=Level.WARNING, out=out)
    log.debug("a")
    log.info("b")
    log.warning("c")
    log.error("d")
    assert [record["event"] for record in lines(out)] == ["c", "d"]


def test_a_bound_field_may_be_bound_again() -> None:
    out = io.StringIO()
    log = Logger("x", out=out, job="a")
    log.bind(job="b", slot=1).info("event")
    log.info("event")
    first, second = lines(out)
    assert (first["job"], first["slot"]) == ("b", 1)
    assert second["job"] == "a" and "slot" not in second


def test_an_error_is_shown_with_its_trace() -> None:
    out = io.StringIO()
    try:
        raise ValueError("odd")
    except ValueError as problem:
        Logger("x", out=out).error("event", error=problem)
    (record,) = lines(out)
    assert (record["error"]["type"], record["error"]["text"]) == ("ValueError", "odd")
    assert "test_logs" in record["error"]["trace"]


def test_what_is_no_json_is_shown_as_text() -> None:
    out = io.StringIO()
    Logger("x", out=out).info("event", what={1, 2}, raw=b"x")
    assert lines(out)[0]["raw"] == "b'x'"


def test_a_closed_log_ends_nobody() -> None:
    out = io.StringIO()
    out.close()
    Logger("x", out=out).info("event")
