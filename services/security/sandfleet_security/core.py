"""From facts to alerts, and what a sandbox's alerts add up to. Pure.

A sandbox's standing is its score, which fades by half in every half-life, and for
each rule that fired of late until when it is quiet and how often it fitted since.
Monitors share standings through Redis, so any of them may judge any batch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from pydantic import Field

from sandfleet_common.messages import Alert, Fact, Message

from .rules import Rule
from .wording import describe

FACTS_EACH = 8
"""Facts that an alert shows at most."""


class Quiet(Message):
    """A rule that fired lately."""

    until: float
    repeats: int = 0
    """How many facts fitted since."""


class Standing(Message):
    """What the monitors keep of one sandbox."""

    score: float = 0
    """As of `at`."""
    at: float = 0
    quiet: dict[str, Quiet] = Field(default_factory=dict[str, Quiet])

    def score_at(self, now: float, half_life_seconds: float) -> float:
        """Return the score, faded until now."""
        return self.score * 0.5 ** (max(0.0, now - self.at) / half_life_seconds)


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A rule, and the facts of one sandbox that fit it."""

    rule: Rule
    facts: tuple[Fact, ...]

    @property
    def count(self) -> int:
        """How many things the facts stand for."""
        return sum(fact.count for fact in self.facts)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What came of the suspicions about one sandbox."""

    standing: Standing
    alerts: tuple[Alert, ...]
    repeated: dict[str, int]
    """Facts that were only counted, by rule."""


def suspect(rules: Sequence[Rule], facts: Iterable[Fact]) -> dict[str, list[Suspicion]]:
    """Return the suspicions that facts give rise to, by sandbox."""
    found: dict[str, dict[str, list[Fact]]] = {}
    for fact in facts:
        for rule in rules:
            if rule.fits(fact):
                found.setdefault(fact.sandbox_id, {}).setdefault(rule.id, []).append(fact)
    by_id = {rule.id: rule for rule in rules}
    return {
        sandbox: [Suspicion(by_id[name], tuple(fitting)) for name, fitting in named.items()]
        for sandbox, named in found.items()
    }


def judge(
    standing: Standing,
    sandbox_id: str,
    suspicions: Sequence[Suspicion],
    *,
    now: float,
    half_life_seconds: float,
) -> Judgement:
    """Return the alerts about one sandbox, and its standing after them.

    A rule fires once in its window. What fits it until then is counted, and told with its
    next alert.
    """
    score = standing.score_at(now, half_life_seconds)
    quiet = {name: q for name, q in standing.quiet.items() if q.until > now or q.repeats}
    alerts: list[Alert] = []
    repeated: dict[str, int] = {}
    for suspicion in suspicions:
        rule, before = suspicion.rule, quiet.get(suspicion.rule.id)
        if before is not None and before.until > now:
            repeated[rule.id] = suspicion.count
            quiet[rule.id] = Quiet(until=before.until, repeats=before.repeats + suspicion.count)
            continue
        score += rule.score
        quiet[rule.id] = Quiet(until=now + rule.window_seconds)
        repeats = before.repeats if before is not None else 0
        alerts.append(_alert(suspicion, sandbox_id, score=score, repeats=repeats, now=now))
    return Judgement(Standing(score=round(score, 3), at=now, quiet=quiet), tuple(alerts), repeated)


def _alert(
    suspicion: Suspicion, sandbox_id: str, *, score: float, repeats: int, now: float
) -> Alert:
    rule = suspicion.rule
    more = suspicion.count - 1
    said = [f"{rule.title}: {describe(suspicion.facts[0])}"]
    if more:
        said.append(f"and {more} more like it")
    if repeats:
        said.append(f"{repeats} more since the alert before")
    name = f"{sandbox_id} {rule.id} {now!r}".encode()
    return Alert(
        alert_id=f"al-{hashlib.sha256(name).hexdigest()[:26]}",
        sandbox_id=sandbox_id,
        rule=rule.id,
        severity=rule.severity,
        message=", ".join(said),
        score=round(score, 3),
        at=suspicion.facts[0].at,
        attck=rule.attck,
        facts=list(suspicion.facts[:FACTS_EACH]),
    )
