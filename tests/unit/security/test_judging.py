"""Judging: facts in, alerts and scores out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandfleet_common.messages import Fact, Severity
from sandfleet_security.core import Judgement, Standing, judge, suspect
from sandfleet_security.rules import Match, Rule
from sandfleet_security.wording import describe

SANDBOX = "sb-n1-01h00000000000000000000000"
OTHER = "sb-n1-01h00000000000000000000001"


def rule(name: str, kind: str, score: float = 10, window_seconds: float = 60) -> Rule:
    return Rule(
        id=name,
        title="Something happened",
        severity=Severity.HIGH,
        attck="T1611",
        score=score,
        window_seconds=window_seconds,
        match=Match(kinds=(kind,)),
    )


MOUNT, BPF = rule("mount", "mount"), rule("bpf", "bpf", score=50)


def fact(kind: str = "mount", *, sandbox: str = SANDBOX, **fields: Any) -> Fact:
    values: dict[str, Any] = {"at": 5.0, "pid": 7, "uid": 3, "program": "evil", "result": -1}
    return Fact(sandbox_id=sandbox, kind=kind, **values | fields)


def judged(*facts: Fact, standing: Standing | None = None, now: float = 100.0) -> Judgement:
    suspicions = suspect([MOUNT, BPF], facts).get(SANDBOX, [])
    return judge(standing or Standing(), SANDBOX, suspicions, now=now, half_life_seconds=600)


def test_a_fact_that_fits_a_rule_raises_an_alert_that_says_what_happened() -> None:
    (alert,) = judged(fact(arguments=[0, 1, 2, 3])).alerts
    assert (alert.rule, alert.severity, alert.attck) == ("mount", Severity.HIGH, "T1611")
    assert (alert.sandbox_id, alert.at, alert.score) == (SANDBOX, 5.0, 10)
    assert alert.message == (
        "Something happened: evil (pid 7, uid 3) called mount(0, 1, 2), "
        "which was refused: Operation not permitted (EPERM)"
    )


def test_facts_that_fit_no_rule_raise_nothing() -> None:
    assert suspect([MOUNT], [fact("exec"), fact("ptrace")]) == {}


def test_facts_of_several_sandboxes_are_kept_apart() -> None:
    found = suspect([MOUNT, BPF], [fact(), fact(sandbox=OTHER), fact("bpf", sandbox=OTHER)])
    assert {s: sorted(x.rule.id for x in xs) for s, xs in found.items()} == {
        SANDBOX: ["mount"],
        OTHER: ["bpf", "mount"],
    }


def test_facts_alike_in_one_batch_are_one_alert_that_shows_eight() -> None:
    (alert,) = judged(*(fact(pid=n, count=2) for n in range(20))).alerts
    assert len(alert.facts) == 8
    assert alert.message.endswith("and 39 more like it")
    assert alert.score == 10


def test_within_the_window_a_rule_only_counts() -> None:
    first = judged(fact())
    second = judged(fact(count=3), standing=first.standing, now=130)
    assert second.alerts == ()
    assert second.repeated == {"mount": 3}


def test_after_the_window_the_next_alert_tells_what_was_counted() -> None:
    first = judged(fact())
    second = judged(fact(count=3), standing=first.standing, now=130)
    third = judged(fact(), standing=second.standing, now=161)
    (alert,) = third.alerts
    assert alert.message.endswith("3 more since the alert before")
    assert third.standing.quiet["mount"].repeats == 0


def test_alerts_add_up() -> None:
    first = judged(fact())
    second = judged(fact("bpf"), standing=first.standing)
    assert second.alerts[0].score == 60


def test_a_score_falls_to_a_half_in_a_half_life() -> None:
    first = judged(fact("bpf"), now=0)
    second = judged(fact("mount"), standing=first.standing, now=600)
    assert second.alerts[0].score == 35


def test_a_clock_that_goes_back_does_not_raise_the_score() -> None:
    first = judged(fact("bpf"), now=1000)
    assert judged(fact(), standing=first.standing, now=0).alerts[0].score == 60


def test_two_alerts_of_one_rule_have_different_ids() -> None:
    first = judged(fact(), now=0)
    second = judged(fact(), standing=first.standing, now=100)
    assert first.alerts[0].alert_id != second.alerts[0].alert_id


def test_a_standing_survives_being_written_and_read() -> None:
    standing = judged(fact(), fact("bpf")).standing
    assert Standing.decode(standing.encode()) == standing


@given(st.lists(st.tuples(st.sampled_from(["mount", "bpf", "exec"]), st.floats(0, 500))))
def test_a_standing_stays_small_and_every_suspicion_is_alerted_or_counted(
    steps: list[tuple[str, float]],
) -> None:
    standing, now, alerts, repeated = Standing(), 0.0, 0, 0
    for kind, pause in steps:
        now += pause
        result = judged(fact(kind), standing=standing, now=now)
        standing = result.standing
        alerts += len(result.alerts)
        repeated += sum(result.repeated.values())
        assert set(standing.quiet) <= {"mount", "bpf"}
        assert 0 <= standing.score <= 60 * len(steps)
    assert alerts + repeated == sum(kind != "exec" for kind, _ in steps)


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (fact("exec", path="/bin/x", result=0), "evil (pid 7, uid 3) started /bin/x"),
        (
            fact("setns", arguments=[2**64 - 1, 0x10000000], result=0),
            "evil (pid 7, uid 3) called setns(-1, 0x10000000), which succeeded",
        ),
        (fact("held-back", count=9, notes=["bpf"]), "9 facts of the kind bpf were held back"),
        (
            fact("bpf", result=-99999),
            "evil (pid 7, uid 3) called bpf(), "
            "which was refused: Unknown error 99999 (error 99999)",
        ),
    ],
)
def test_a_fact_is_told_in_words(found: Fact, said: str) -> None:
    assert describe(found) == said
