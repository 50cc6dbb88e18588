"""Errors over HTTP: status, body, when to come again."""

from __future__ import annotations

import json

import pytest

from sandfleet_common.errors import CODES, BadRequest, Busy, SandfleetError, from_code
from sandfleet_common.messages import Failure, JobEvent
from sandfleet_common.routes import STATUS
from sandfleet_gateway.answers import TooLarge, Unauthorized, failure_answer
from sandfleet_gateway.content import WriteQuery, parse_range
from sandfleet_gateway.events import Told


@pytest.mark.parametrize("code", CODES)
def test_every_code_has_its_status_and_comes_back_as_it_was(code: str) -> None:
    error = from_code(code, "why", {"node": "n1"})
    answer = failure_answer(error)
    assert answer.status_code == STATUS[code]
    back = Failure.decode(bytes(answer.body)).to_error()
    assert (type(back), back.message, back.fields) == (type(error), "why", {"node": "n1"})


@pytest.mark.parametrize(
    ("error", "seconds"),
    [
        (Busy("full", retry_after_seconds=7.1), "8"),
        (Busy("full", retry_after_seconds=7.0), "7"),
        (Busy("full", retry_after_seconds=float("inf")), "1"),
        (from_code("no_capacity", "none", {"retry_after_seconds": 2.5}), "3"),
        (from_code("quota_exceeded", "all", {"retry_after_seconds": 60}), "60"),
        (from_code("quota_exceeded", "all"), None),
        (from_code("timeout", "late", {"retry_after_seconds": 2.5}), None),
        (Busy("full", retry_after_seconds=0.1), "1"),
        (Busy("full", retry_after_seconds="soon"), "1"),
        (from_code("no_capacity", "none"), "1"),
        (from_code("timeout", "late"), None),
        (BadRequest("no"), None),
    ],
)
def test_it_says_when_to_come_again_where_that_helps(
    error: SandfleetError, seconds: str | None
) -> None:
    assert failure_answer(error).headers.get("retry-after") == seconds


def test_a_missing_key_and_a_large_body_have_a_status_of_their_own() -> None:
    assert failure_answer(Unauthorized("who?")).status_code == 401
    assert failure_answer(TooLarge("too much")).status_code == 413
    assert Failure.decode(bytes(failure_answer(TooLarge("x")).body)).code == "bad_request"
    assert Failure.decode(bytes(failure_answer(Unauthorized("x")).body)).code == "denied"


def test_fields_that_are_not_json_are_shown_as_text() -> None:
    body = json.loads(bytes(failure_answer(BadRequest("no", where=object())).body))
    assert "object" in body["fields"]["where"]


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("bytes=0-9", (0, 10)),
        ("bytes=90-", (90, 10)),
        ("bytes=90-200", (90, 10)),
        ("bytes=-5", (95, 5)),
        ("bytes=-500", (0, 100)),
        ("bytes=100-", (100, 0)),
        ("bytes=-0", (100, 0)),
        ("bytes=9-0", None),
        ("bytes=-", None),
        ("bytes=0-1,3-4", None),
        ("lines=0-1", None),
        (None, None),
    ],
)
def test_a_range_is_a_part_or_the_whole(
    header: str | None, expected: tuple[int, int] | None
) -> None:
    assert parse_range(header, 100) == expected


@pytest.mark.parametrize(("text", "mode"), [("0644", 0o644), ("0o755", 0o755), ("493", 0o755)])
def test_a_mode_is_octal_with_a_leading_zero(text: str, mode: int) -> None:
    assert WriteQuery.of(path="/x", mode=text).mode == mode


def test_a_slot_is_told_once() -> None:
    from_record = {"job_id": "j", "state": "placing", "count": 2, "ready": 0, "failed": 1}
    failed = {"slot": 1, "code": "no_capacity", "message": "full"}
    told = Told()
    event = JobEvent.of(job=from_record | {"submitted_at": 1.0}, failed=[failed])
    assert len(told.new_in(event).failed) == 1
    assert told.new_in(event).failed == []
