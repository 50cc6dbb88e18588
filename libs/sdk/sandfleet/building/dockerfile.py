"""The lines of a Dockerfile: comments, directives, continued lines, here-documents. Pure.

What comes out are instructions as they stand, not yet checked or expanded; `instructions`
gives them their meaning.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from sandfleet_common.errors import BadRequest

LONGEST_BYTES = 1024 * 1024
MOST_INSTRUCTIONS = 2000
_DIRECTIVE = re.compile(r"#\s*([a-zA-Z][a-zA-Z0-9]*)\s*=\s*(.*?)\s*")
_HINT = re.compile(r"#\s*sandfleet:\s*(.*?)\s*")
_HEREDOC = re.compile(r"(?<![<\S])(\d*)<<(-?)(['\"]?)([A-Za-z_][A-Za-z0-9_]*)\3")
_HEREDOC_KEYWORDS = ("RUN", "COPY", "ADD")
_WORD = re.compile(r"[A-Za-z]+")


@dataclass(frozen=True, slots=True)
class Heredoc:
    """A here-document."""

    name: str
    body: str
    is_literal: bool
    """Its word was quoted: no variable in it is filled in."""


@dataclass(frozen=True, slots=True)
class Line:
    """One instruction, its continued lines joined."""

    file: str
    number: int
    """Of its first line, from 1."""
    keyword: str
    """In capitals."""
    rest: str
    heredocs: tuple[Heredoc, ...] = ()
    hint: str = ""
    """What a comment `# sandfleet: ...` right above it says."""
    escape: str = "\\"

    def problem(self, text: str) -> BadRequest:
        """Return the error that names this line."""
        return BadRequest(f"{self.file}:{self.number}: {text}", line=self.number)


def parse(text: str, file: str = "Dockerfile") -> list[Line]:
    """Return the instructions of a Dockerfile.

    Raises:
        BadRequest: it cannot be read; names file and line.
    """
    if len(text) > LONGEST_BYTES:
        raise BadRequest(f"{file}: it is longer than {LONGEST_BYTES} letters")
    if "\0" in text:
        raise BadRequest(f"{file}: it holds a NUL byte, so it is no text")
    return _Parser(file, text.removeprefix("\ufeff").splitlines()).all()


@dataclass(slots=True)
class _Parser:
    file: str
    lines: list[str]
    at: int = 0
    escape: str = "\\"
    hint: str = ""
    found: list[Line] = field(default_factory=list[Line])

    def all(self) -> list[Line]:
        self._directives()
        while self.at < len(self.lines):
            line = self.lines[self.at].strip()
            if line.startswith("#"):
                hint = _HINT.fullmatch(line)
                self.hint = hint[1] if hint else self.hint
                self.at += 1
            elif not line:
                self.at += 1
            else:
                self._instruction()
        return self.found

    def _directives(self) -> None:
        seen: set[str] = set()
        while self.at < len(self.lines):
            directive = _DIRECTIVE.fullmatch(self.lines[self.at].strip())
            if directive is None or (name := directive[1].lower()) not in (
                "syntax",
                "escape",
                "check",
            ):
                return
            if name in seen:
                raise self._problem(f"the directive {name} stands here twice: remove one")
            seen.add(name)
            if name == "escape":
                if directive[2] not in ("\\", "`"):
                    raise self._problem(f"escape={directive[2]}: it may be \\ or `")
                self.escape = directive[2]
            self.at += 1

    def _problem(self, text: str) -> BadRequest:
        return BadRequest(f"{self.file}:{self.at + 1}: {text}", line=self.at + 1)

    def _instruction(self) -> None:
        if len(self.found) >= MOST_INSTRUCTIONS:
            raise self._problem(f"there are more than {MOST_INSTRUCTIONS} instructions")
        number = self.at + 1
        text = self._joined()
        word = _WORD.match(text)
        keyword = word[0].upper() if word else ""
        if word is None or (text[word.end() :] and not text[word.end()].isspace()):
            raise BadRequest(
                f"{self.file}:{number}: {text[:40]!r} does not begin with an instruction, "
                "such as FROM, RUN or COPY",
                line=number,
            )
        rest = text[word.end() :].strip()
        heredocs = self._heredocs(rest) if keyword in _HEREDOC_KEYWORDS else ()
        self.found.append(Line(self.file, number, keyword, rest, heredocs, self.hint, self.escape))
        self.hint = ""

    def _joined(self) -> str:
        """Return the instruction that begins here, and go behind it."""
        made = ""
        continued = re.compile(re.escape(self.escape) + r"[ \t]*$")
        while self.at < len(self.lines):
            line = self.lines[self.at]
            self.at += 1
            if made and (line.lstrip().startswith("#") or not line.strip()):
                continue
            line = line if made else line.lstrip()
            more = continued.search(line)
            if more is None:
                return (made + line).strip()
            made += line[: more.start()] or " "
        return made.strip()

    def _heredocs(self, rest: str) -> tuple[Heredoc, ...]:
        if rest.startswith("["):
            return ()
        return tuple(
            self._heredoc(found[4], strip=bool(found[2]), literal=bool(found[3]))
            for found in _HEREDOC.finditer(rest)
        )

    def _heredoc(self, name: str, *, strip: bool, literal: bool) -> Heredoc:
        begins = self.at
        body: list[str] = []
        while self.at < len(self.lines):
            line = self.lines[self.at].lstrip("\t") if strip else self.lines[self.at]
            self.at += 1
            if line == name:
                return Heredoc(name, "".join(f"{part}\n" for part in body), literal)
            body.append(line)
        self.at = begins
        raise self._problem(f"the here-document has no end: a line {name!r} is missing")


HEREDOC = _HEREDOC
"""Matches the words that begin here-documents: descriptor, dash, quote, name."""
