"""One table of subjects, and nothing beside it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest
from sandfleet_common.subjects import ACCESS, SANDBOX_OPS, STREAMS, TABLE

REPOSITORY = Path(__file__).resolve().parents[3]
SPELLED = re.compile(r"""["'](?:sf\.v1\.|_INBOX\.|\$JS\.)""")


def test_no_subject_is_spelled_outside_the_table() -> None:
    found = [
        f"{path.relative_to(REPOSITORY)}:{number}: {line.strip()}"
        for root in ("services", "libs", "bench", "examples")
        for path in sorted((REPOSITORY / root).rglob("*.py"))
        if path.name != "subjects.py"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if SPELLED.search(line) and not _is_own_inbox(path, line)
    ]
    assert found == []


def _is_own_inbox(path: Path, line: str) -> bool:
    """The bus names its inbox, and the server's configuration repeats that name."""
    return "_INBOX." in line and (path.name == "access.py" or path.parent.name == "bus")


def test_subjects_are_unique_and_holes_are_whole_tokens() -> None:
    assert len({subject.pattern for subject in TABLE}) == len(TABLE)
    for subject in TABLE:
        for token in subject.pattern.split("."):
            assert re.fullmatch(r"[a-z0-9-]+|\{[a-z]+\}", token), subject.pattern


def test_a_hole_is_filled_and_read_back() -> None:
    assert s.NODE_CREATE.at(node="n1") == "sf.v1.node.n1.create"
    assert s.NODE_CREATE.parse("sf.v1.node.n1.create") == {"node": "n1"}
    assert s.NODE_CREATE.wildcard() == "sf.v1.node.*.create"


@pytest.mark.parametrize("value", ["*", ">", "a.b", "", "a b"])
def test_a_hole_takes_one_safe_token_only(value: str) -> None:
    with pytest.raises(BadRequest):
        s.NODE_CREATE.at(node=value)
    with pytest.raises(BadRequest):
        s.NODE_CREATE.wildcard(node=value)
    with pytest.raises(BadRequest):
        s.io_subject(value, "x")


def test_every_operation_names_the_sandbox_it_is_for() -> None:
    assert SANDBOX_OPS
    for subject in SANDBOX_OPS:
        assert "sandbox_id" in subject.body.model_fields, subject.pattern


def matches(pattern: str, subject: str) -> bool:
    """Whether a NATS pattern matches a subject or a narrower pattern."""
    wide, narrow = pattern.split("."), subject.split(".")
    for position, token in enumerate(wide):
        if token == ">":
            return len(narrow) > position
        if position >= len(narrow) or token not in ("*", narrow[position]):
            return False
    return len(wide) == len(narrow)


def may(kind: str, user: str, subject: str) -> bool:
    access = ACCESS[user]
    return any(matches(p, subject) for p in (access.publish if kind == "say" else access.subscribe))


def test_every_subject_has_one_who_says_it_and_one_who_hears_it() -> None:
    services = [user for user in ACCESS if user != "admin"]
    heard_by_stream = {subject for stream in STREAMS for subject in stream.subjects}
    for subject in TABLE:
        if subject is s.NODE_DRAIN:
            continue  # the administrator's
        wildcard = subject.wildcard()
        assert any(may("say", user, wildcard) for user in services), wildcard
        assert wildcard in heard_by_stream or any(
            may("hear", user, wildcard) for user in services
        ), wildcard


@pytest.mark.parametrize("user", ["trainer", "gateway", "sensor", "monitor"])
def test_only_schedulers_create_on_nodes_and_only_nodes_beat(user: str) -> None:
    assert not may("say", user, s.NODE_CREATE.wildcard())
    assert not may("say", user, s.NODE_BEAT.wildcard())
    assert not may("say", user, s.JOB_EVENTS.wildcard())
    assert not may("say", user, s.SANDBOX_EVENT.wildcard())


@pytest.mark.parametrize("user", [user for user in ACCESS if user != "admin"])
def test_nobody_reads_the_inboxes_of_others(user: str) -> None:
    assert not any(pattern.startswith("_INBOX") for pattern in ACCESS[user].subscribe)
    assert not any(pattern.startswith((">", "*")) for pattern in ACCESS[user].subscribe)


@pytest.mark.parametrize("user", ["trainer", "gateway", "sensor"])
def test_clients_and_sensors_write_to_no_inbox(user: str) -> None:
    assert not any(pattern.startswith(("_INBOX", "$JS")) for pattern in ACCESS[user].publish)


def test_a_trainer_cannot_hear_what_others_ask() -> None:
    for subject in TABLE:
        told = subject in (s.JOB_EVENTS, s.SANDBOX_EVENT, s.SECURITY_ALERT)
        assert may("hear", "trainer", subject.wildcard()) == told


def test_every_stream_has_an_owner_that_may_make_it() -> None:
    for stream in STREAMS:
        assert may("say", stream.owner, f"$JS.API.STREAM.CREATE.{stream.name}")
        others = [user for user in ACCESS if user not in (stream.owner, "admin")]
        for user in others:
            assert not may("say", user, f"$JS.API.STREAM.DELETE.{stream.name}")
