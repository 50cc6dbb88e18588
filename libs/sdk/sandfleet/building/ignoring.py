"""The rules of a .dockerignore. Pure."""

from __future__ import annotations

import functools
import posixpath
import re
from dataclasses import dataclass

from sandfleet_common.errors import BadRequest

MOST_RULES = 5000
LONGEST = 4096
MOST_DEEP = 8
"""Of `**` in one pattern."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One line: a pattern, and whether it takes back what others left out."""

    pattern: re.Pattern[str]
    is_exception: bool


@dataclass(frozen=True, slots=True)
class Ignored:
    """What is left out of a context."""

    rules: tuple[Rule, ...] = ()

    def leaves_out(self, path: str) -> bool:
        """Return whether `path`, relative to the context, is left out; the last rule decides."""
        verdict = False
        for rule in self.rules:
            if verdict == rule.is_exception and rule.pattern.match(path):
                verdict = not rule.is_exception
        return verdict

    def may_hold_exceptions(self) -> bool:
        """Return whether something below a directory that is left out may still be wanted."""
        return any(rule.is_exception for rule in self.rules)


def parse(text: str, file: str = ".dockerignore") -> Ignored:
    """Return the rules of a .dockerignore.

    Raises:
        BadRequest: a pattern cannot be read; names file and line.
    """
    rules: list[Rule] = []
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), 1):
        pattern = line.strip()
        if not pattern or line.startswith("#"):
            continue
        if len(rules) >= MOST_RULES or len(pattern) > LONGEST:
            raise BadRequest(f"{file}:{number}: too many or too long patterns")
        is_exception = pattern.startswith("!")
        pattern = pattern[is_exception:].strip()
        cleaned = posixpath.normpath("/" + pattern).lstrip("/")
        if not cleaned:
            continue
        try:
            rules.append(Rule(glob(cleaned, below=True), is_exception))
        except BadRequest as problem:
            raise BadRequest(f"{file}:{number}: {problem.message}") from None
    return Ignored(tuple(rules))


@functools.lru_cache(maxsize=1024)
def glob(pattern: str, *, below: bool = False) -> re.Pattern[str]:
    """Return what matches paths as Go's filepath.Match does, and `**` any number of names.

    With `below` everything below what matches does, too.

    Raises:
        BadRequest: a bracket is not closed.
    """
    if pattern.count("**") > MOST_DEEP:
        raise BadRequest(f"{pattern[:80]!r}: ** stands in it more than {MOST_DEEP} times")
    names = pattern.split("/")
    made = ""
    for number, name in enumerate(names):
        is_last = number == len(names) - 1
        if name == "**":
            made += ".*" if is_last else "(?:[^/]+/)*"
        else:
            made += _name(name) + ("" if is_last else "/")
    try:
        return re.compile(made + (r"(?:/.*)?\Z" if below else r"\Z"), re.DOTALL)
    except re.error:
        raise BadRequest(f"{pattern[:80]!r} is no pattern of file names") from None


def is_glob(path: str) -> bool:
    """Return whether a path is a pattern."""
    return any(letter in path for letter in "*?[")


def _name(name: str) -> str:
    """Return the expression for one name of a path.

    What a star is followed by is looked for once, as the first place where it stands is as
    good as any (`(?>...)`): however many stars, matching does not take ages.
    """
    parts: list[str] = [""]
    stars: list[str] = []
    at = 0
    while at < len(name):
        if name[at] == "*":
            deep = name.startswith("**", at)
            stars.append(".*?" if deep else "[^/]*?")
            parts.append("")
            at += 2 if deep else 1
        else:
            piece, at = _letter(name, at)
            parts[-1] += piece
    made = parts[0]
    for number, star in enumerate(stars, 1):
        if number == len(stars) or star == ".*?":
            made += star + parts[number]
        else:
            made += f"(?>{star}{parts[number]})"
    return made


def _letter(name: str, at: int) -> tuple[str, int]:
    letter = name[at]
    if letter == "?":
        return "[^/]", at + 1
    if letter == "[":
        return _bracket(name, at)
    if letter == "\\" and at + 1 < len(name):
        return re.escape(name[at + 1]), at + 2
    return re.escape(letter), at + 1


def _bracket(pattern: str, at: int) -> tuple[str, int]:
    end = pattern.find("]", at + 2)
    if end < 0:
        raise BadRequest(f"{pattern[:80]!r}: a [ is not closed")
    inner = pattern[at + 1 : end]
    negated = inner.startswith("^")
    letters = re.sub(r"([\\\[\]^&~|])", r"\\\1", inner[negated:])
    return f"(?!/)[{'^' if negated else ''}{letters}]", end + 1
