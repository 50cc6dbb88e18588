"""Words of a Dockerfile: quotes, escapes and variables, as Docker reads them. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from sandfleet_common.errors import BadRequest

LONGEST = 1024 * 1024
"""Of what a word may grow to; defaults nested in defaults multiply."""
DEEPEST = 16
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*|[0-9]")
_SPACE = " \t\n\r"


def expand(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Return `text` without its quotes and with its variables filled in.

    `$X` and `${X}`; `${X:-d}` and `${X-d}` are `d` where there is no value, `${X:+a}` and
    `${X+a}` are `a` where there is one, `${X:?why}` fails without. A variable that is not
    set is empty. Nothing is filled in between single quotes or behind `escape`.

    Raises:
        BadRequest: a quote or brace is not closed, or a modifier is not known.
    """
    return _Reader(text, variables, escape).all()


def fill(text: str, variables: Mapping[str, str], escape: str = "\\") -> str:
    """Return a here-document with its variables filled in; quotes in it are letters.

    Raises:
        BadRequest: a brace is not closed, or a modifier is not known.
    """
    return _Reader(text, variables, escape).all(quoted=True)


def split(text: str, escape: str = "\\") -> list[str]:
    """Return the words between white space, with their quotes and escapes still in them.

    Raises:
        BadRequest: a quote is not closed.
    """
    words: list[str] = []
    word = ""
    at = 0
    while at < len(text):
        letter = text[at]
        if letter in _SPACE:
            if word:
                words.append(word)
            word = ""
            at += 1
            continue
        end = _piece_end(text, at, escape)
        word += text[at:end]
        at = end
    return [*words, word] if word else words


def _piece_end(text: str, at: int, escape: str) -> int:
    """Return where the letter, the escaped letter or the quoted part at `at` ends."""
    letter = text[at]
    if letter == escape:
        return min(at + 2, len(text))
    if letter not in "'\"":
        return at + 1
    end = at + 1
    while end < len(text) and text[end] != letter:
        end += 2 if text[end] == escape and letter == '"' else 1
    if end >= len(text):
        raise BadRequest(f"the quote {letter} is not closed in {text[at : at + 40]!r}")
    return end + 1


@dataclass(slots=True)
class _Reader:
    text: str
    variables: Mapping[str, str]
    escape: str
    at: int = 0
    depth: int = 0

    def all(self, *, quoted: bool = False) -> str:
        return self._until("", quoted=quoted)

    def _until(self, end: str, *, quoted: bool) -> str:
        """Read up to the letter `end`, which is taken, too; without one, all."""
        made: list[str] = []
        size = 0
        while self.at < len(self.text):
            letter = self.text[self.at]
            if end and letter == end:
                self.at += 1
                return "".join(made)
            piece = self._piece(letter, quoted=quoted)
            size += len(piece)
            if size > LONGEST:
                raise BadRequest(f"a word grows beyond {LONGEST} letters: shorten its variables")
            made.append(piece)
        if end:
            raise BadRequest(f"{end} is missing at the end of {self.text[-40:]!r}")
        return "".join(made)

    def _piece(self, letter: str, *, quoted: bool) -> str:
        self.at += 1
        if letter == self.escape:
            return self._escaped(quoted=quoted)
        if letter == "$":
            return self._variable()
        if letter == '"' and not quoted:
            return self._until('"', quoted=True)
        if letter == "'" and not quoted:
            return self._literal()
        return letter

    def _escaped(self, *, quoted: bool) -> str:
        if self.at >= len(self.text):
            return self.escape
        letter = self.text[self.at]
        self.at += 1
        if quoted and letter not in f'"${self.escape}':
            return self.escape + letter
        return letter

    def _literal(self) -> str:
        end = self.text.find("'", self.at)
        if end < 0:
            raise BadRequest(f"the quote ' is not closed in {self.text[self.at - 1 :][:40]!r}")
        found, self.at = self.text[self.at : end], end + 1
        return found

    def _variable(self) -> str:
        if self.text.startswith("{", self.at):
            self.at += 1
            return self._braced()
        found = _NAME.match(self.text, self.at)
        if found is None:
            return "$"
        self.at = found.end()
        return self.variables.get(found[0], "")

    def _braced(self) -> str:
        found = _NAME.match(self.text, self.at)
        if found is None:
            raise BadRequest(f"a variable's name is missing in {self.text[self.at - 2 :][:40]!r}")
        self.at = found.end()
        value = self.variables.get(found[0])
        if self.text.startswith("}", self.at):
            self.at += 1
            return value or ""
        colon = self.text.startswith(":", self.at)
        self.at += colon
        modifier = self.text[self.at : self.at + 1]
        self.at += 1
        if modifier not in ("-", "+", "?"):
            raise BadRequest(
                f"${{{found[0]}...}}: only :-, :+, :?, -, + and ? may follow a variable's name"
            )
        return self._modified(
            found[0], value, modifier, bool(value) if colon else value is not None
        )

    def _modified(self, name: str, value: str | None, modifier: str, is_set: bool) -> str:
        self.depth += 1
        if self.depth > DEEPEST:
            raise BadRequest(f"variables are nested more than {DEEPEST} deep")
        word = self._until("}", quoted=False)
        self.depth -= 1
        if modifier == "-":
            return (value or "") if is_set else word
        if modifier == "+":
            return word if is_set else ""
        if not is_set:
            raise BadRequest(f"{name} is not set: {word or 'give it a value'}")
        return value or ""
