"""Tables of the command line: whole in a pipe, and readable on a narrow terminal. Pure."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len

GAP = "  "
LEAST = 16
"""A last column narrower than this is not worth breaking lines for."""


@dataclass(slots=True)
class Listing:
    """Rows of text under titles.

    In a pipe every cell is whole and every column there. On a terminal too narrow for that,
    columns without content are left out, then those in `spare`, one by one; what is left
    of the last column's text goes on below. No other cell is ever cut: an id is of no use
    without its end.
    """

    columns: Sequence[str]
    spare: Sequence[str] = ()
    rows: list[Sequence[str]] = field(default_factory=list[Sequence[str]])

    def lines(self, width: int | None) -> list[str]:
        """Return the header and the rows for a terminal of `width` letters; None: a pipe."""
        shown = list(range(len(self.columns)))
        if width is not None:
            shown = self._fitting(shown, width)
        widths = [self._width(column) for column in shown]
        titles = [self.columns[column] for column in shown]
        rows = [[row[column] for column in shown] for row in self.rows]
        return [line for row in (titles, *rows) for line in _written(row, widths, width)]

    def _fitting(self, shown: list[int], width: int) -> list[int]:
        empty = [c for c in shown if self.rows and not any(row[c] for row in self.rows)]
        spare = [self.columns.index(name) for name in self.spare]
        for unwanted in (*empty, *spare):
            if self._needed(shown) <= width:
                break
            if unwanted in shown and len(shown) > 1:
                shown.remove(unwanted)
        return shown

    def _needed(self, shown: Sequence[int]) -> int:
        """Return the letters of the widest line, of which the last cell may be broken."""
        *fixed, last = (self._width(column) for column in shown)
        return sum(fixed) + len(GAP) * len(fixed) + min(last, 2 * LEAST)

    def _width(self, column: int) -> int:
        return max(cell_len(cell[column]) for cell in (self.columns, *self.rows))


def _written(row: Sequence[str], widths: Sequence[int], width: int | None) -> list[str]:
    """Return one row as a line, or as several where its last cell has to be broken."""
    *cells, last = row
    start = "".join(
        cell + " " * (full - cell_len(cell)) + GAP
        for cell, full in zip(cells, widths, strict=False)
    )
    room = 0 if width is None else width - cell_len(start)
    pieces = _broken(last, room) if LEAST <= room < cell_len(last) else [last]
    blank = " " * cell_len(start)
    return [((blank if number else start) + piece).rstrip() for number, piece in enumerate(pieces)]


def _broken(text: str, room: int) -> list[str]:
    """Return text in lines of `room` letters; a word that is longer stays whole."""
    return textwrap.wrap(text, room, break_long_words=False, break_on_hyphens=False)
