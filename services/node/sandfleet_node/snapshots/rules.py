"""Which files a snapshot leaves out: rules, one a line, read from a file.

    <kind> <pattern>  # <reason>

`kind` is `secret`, `residue` or `platform`. A pattern is a path without its leading slash:
`*` and `?` stand for anything but a slash, `**/` for any directories or none. What lies below
a directory that matches goes with it; a pattern that ends in `/*` or `/**` keeps the directory.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from pathlib import Path
from typing import Literal, cast, get_args

from sandfleet_common.errors import BadRequest

Kind = Literal["secret", "residue", "platform"]
_LINE = re.compile(r"(\S+)\s+(\S+)\s+#\s*(\S.*)")


@dataclass(frozen=True, slots=True)
class Rule:
    """One pattern, and why what matches it is left out."""

    kind: Kind
    pattern: str
    reason: str


@dataclass(frozen=True)
class Rules:
    """Rules, and what they say of a path."""

    rules: tuple[Rule, ...]

    @classmethod
    def parse(cls, text: str, source: str) -> Rules:
        """Read rules.

        Raises:
            BadRequest: a line is none; names the line and, as `source`, the file.
        """
        found: list[Rule] = []
        for number, line in enumerate(text.splitlines(), 1):
            if not line.strip() or line.lstrip().startswith("#"):
                continue
            match = _LINE.fullmatch(line.strip())
            if match is None or match[1] not in get_args(Kind) or match[2].startswith("/"):
                raise BadRequest(
                    f"{source}, line {number}: a rule is `secret|residue|platform PATTERN "
                    "# REASON`, its pattern without a leading slash"
                )
            found.append(Rule(cast(Kind, match[1]), match[2], match[3].strip()))
        return cls(tuple(found))

    def of_kinds(self, kinds: Iterable[Kind]) -> Rules:
        """Return the rules of some kinds."""
        wanted = set(kinds)
        return Rules(tuple(rule for rule in self.rules if rule.kind in wanted))

    @cached_property
    def _any(self) -> re.Pattern[bytes]:
        # One expression for all: a large tree is asked about every one of its files.
        return re.compile(
            b"|".join(translate(rule.pattern) for rule in self.rules) or b"(?!)", re.DOTALL
        )

    def matches(self, path: bytes) -> bool:
        """Return whether a file at `path`, without leading slash, is left out."""
        return self._any.fullmatch(path) is not None

    def reason(self, path: bytes) -> str | None:
        """Return why a file is left out; None: it is not."""
        for rule in self.rules:
            if re.fullmatch(translate(rule.pattern), path, re.DOTALL):
                return rule.reason
        return None


def read_rules(path: str) -> Rules:
    """Read the rules in a file; an empty path stands for those that come with the node.

    Raises:
        BadRequest: the file cannot be read, or a line of it is no rule.
    """
    if not path:
        text = (files(__package__ or "") / "scrub.txt").read_text()
        return Rules.parse(text, "scrub.txt")
    try:
        return Rules.parse(Path(path).read_text(), path)
    except (OSError, UnicodeDecodeError) as problem:
        raise BadRequest(f"snapshot_rules cannot be read: {problem}") from None


def translate(pattern: str) -> bytes:
    """Return a pattern as a regular expression for whole paths of bytes."""
    out: list[str] = []
    at = 0
    while at < len(pattern):
        if pattern.startswith("**/", at):
            out.append("(?:.*/)?")
            at += 3
        elif pattern.startswith("**", at):
            out.append(".*")
            at += 2
        elif pattern[at] in "*?":
            out.append("[^/]*" if pattern[at] == "*" else "[^/]")
            at += 1
        else:
            out.append(re.escape(pattern[at]))
            at += 1
    return "(?:{})".format("".join(out)).encode()
