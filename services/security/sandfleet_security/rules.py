"""What the monitor looks for: rules, read from YAML files. Pure but for reading them.

A file is a list of rules. A fact fits a rule when it meets every condition under
`match` and not all conditions of any item under `except`. A mistake stops the
start and is named by file, rule and field.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    TypeAdapter,
    ValidationError,
    model_validator,
)

from sandfleet_common.errors import BadRequest
from sandfleet_common.messages import Fact, Severity

from .calls import KINDS

NOTES = frozenset({"i386", "x32", "at-init", "shares-parent", "unlinked"})


def _known_kind(value: str) -> str:
    if value not in KINDS:
        raise ValueError(f"no fact is of the kind {value!r}")
    return value


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ArgumentMatch(_Strict):
    """What one argument of a call must be."""

    equals: tuple[int, ...] = ()
    """One of these, in its low 32 bits."""
    bits: int = Field(default=0, ge=0)
    """Any of these bits is set."""

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if bool(self.equals) == bool(self.bits):
            raise ValueError("give either `equals` or `bits`")
        return self

    def fits(self, value: int) -> bool:
        """Return whether an argument is so. The kernel reads ints and flags in 32 bits."""
        if self.bits:
            return bool(value & self.bits)
        return value & 0xFFFFFFFF in self.equals


class Match(_Strict):
    """Conditions that a fact meets together; those not given are met by every fact."""

    kinds: tuple[Annotated[str, AfterValidator(_known_kind)], ...] = ()
    """One of these."""
    programs: tuple[str, ...] = ()
    """The task's name fits one of these patterns (`*`, `?`, `[...]`)."""
    paths: tuple[str, ...] = ()
    """The path of an exec fits one of these patterns."""
    result: Literal["any", "succeeded", "refused"] = "any"
    """Whether the call returned an error."""
    arguments: dict[Annotated[int, Field(ge=0, le=5)], ArgumentMatch] = Field(
        default_factory=dict[int, ArgumentMatch]
    )
    """By position, from 0; a fact without such an argument does not fit."""
    notes: tuple[str, ...] = ()
    """All of these. Of `held-back`: the kind that was held back."""
    count_at_least: int = Field(default=1, ge=1)

    @model_validator(mode="after")
    def _asks_something(self) -> Self:
        if self == type(self).model_construct():
            raise ValueError("it has no condition and would fit every fact")
        for note in self.notes:
            if note not in NOTES | KINDS | {"foreign"}:
                raise ValueError(f"no fact has the note {note!r}")
        return self

    def fits(self, fact: Fact) -> bool:
        """Return whether a fact meets every condition."""
        return (
            (not self.kinds or fact.kind in self.kinds)
            and fact.count >= self.count_at_least
            and (self.result == "any" or (self.result == "refused") == (fact.result < 0))
            and all(note in fact.notes for note in self.notes)
            and all(self._argument_fits(fact, index) for index in self.arguments)
            and _any_fits(self.programs, fact.program)
            and _any_fits(self.paths, fact.path)
        )

    def _argument_fits(self, fact: Fact, index: int) -> bool:
        return index < len(fact.arguments) and self.arguments[index].fits(fact.arguments[index])


class Rule(_Strict):
    """One thing to look for, and what it means."""

    id: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=64)
    title: str = Field(min_length=10, max_length=200)
    """What happened, as the alert says it."""
    severity: Severity
    attck: str | None = Field(default=None, pattern=r"^T\d{4}(\.\d{3})?$")
    """MITRE ATT&CK technique."""
    score: float = Field(ge=0, le=1000)
    """What an alert adds to its sandbox's score."""
    window_seconds: float = Field(gt=0, le=86_400)
    """So long after an alert further facts that fit are only counted."""
    match: Match
    excepted: tuple[Match, ...] = Field(default=(), alias="except")
    """Benign lookalikes."""

    def fits(self, fact: Fact) -> bool:
        """Return whether a fact is what this rule looks for."""
        return self.match.fits(fact) and not any(match.fits(fact) for match in self.excepted)


_FILE = TypeAdapter(list[Rule])


def parse_rules(name: str, text: str) -> list[Rule]:
    """Return the rules of one file.

    Raises:
        BadRequest: it is not YAML, or a rule is wrong; names file, rule and field.
    """
    try:
        found: Any = yaml.safe_load(text)
    except yaml.YAMLError as problem:
        raise BadRequest(f"{name} is not YAML: {' '.join(str(problem).split())}") from None
    try:
        return _FILE.validate_python(found)
    except ValidationError as problem:
        first = problem.errors(include_url=False, include_input=False)[0]
        where, *field = (str(part) for part in first["loc"] or ("file",))
        rule = _name_of(found, where)
        reason = first["msg"].removeprefix("Value error, ")
        place = f"{rule}, field {'.'.join(field)}" if field else rule
        raise BadRequest(f"{name}: {place}: {reason}") from None


def load_rules(directory: Path) -> list[Rule]:
    """Return the rules of every `*.yaml` in a directory.

    Raises:
        BadRequest: a file or rule is wrong, two rules have one id, or there is none.
    """
    rules: list[Rule] = []
    seen: dict[str, str] = {}
    try:
        texts = [(path.name, path.read_text()) for path in sorted(directory.glob("*.yaml"))]
    except (OSError, UnicodeDecodeError) as problem:
        raise BadRequest(f"cannot read the rules in {directory}: {problem}") from None
    for name, text in texts:
        for rule in parse_rules(name, text):
            if rule.id in seen:
                raise BadRequest(f"{name}: rule {rule.id}, field id: {seen[rule.id]} has it too")
            seen[rule.id] = name
            rules.append(rule)
    if not rules:
        raise BadRequest(f"there are no rules (*.yaml) in {directory}")
    return rules


def _any_fits(patterns: Sequence[str], value: str | None) -> bool:
    return not patterns or (
        value is not None and any(fnmatchcase(value, pattern) for pattern in patterns)
    )


def _name_of(found: Any, where: str) -> str:
    if isinstance(found, list) and where.isdecimal():
        rule = cast(list[Any], found)[int(where)]
        name = cast(dict[str, Any], rule).get("id") if isinstance(rule, dict) else None
        return f"rule {name}" if isinstance(name, str) else f"rule number {int(where) + 1}"
    return where
