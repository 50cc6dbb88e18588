"""How a build shows itself: as lines, as a bar above its output, as JSON, or not at all."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Protocol, Self

import click
from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from sandfleet.building.events import Event, Output, Said, Step

from . import terminal, text

_TITLE_LETTERS = 60
_HELD_LETTERS = 4096


class Progress(Protocol):
    """What shows a build; used as a block."""

    def report(self, event: Event) -> None:
        """Show an event."""
        ...

    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


def view(kind: str, *, as_json: bool) -> Progress:
    """Return what shows a build."""
    if as_json:
        return _Json()
    if kind == "quiet":
        return _Lines(lambda event: isinstance(event, Said))
    if kind == "auto" and terminal.is_terminal(2):
        return _Screen()
    return _Lines(lambda event: True)


def line_of(step: Step) -> str:
    """Return a step in one line."""
    head = f"[{step.number}/{step.total}] {step.title}"
    if step.state == "started":
        return head
    tail = f"{step.state}, {step.seconds:.1f} s" if step.seconds else step.state
    if step.size_bytes:
        tail += f", {text.size(step.size_bytes)}"
    return f"{head[:_TITLE_LETTERS]}: {tail}"


class _Json:
    """One object a line on stdout."""

    def report(self, event: Event) -> None:
        click.echo(json.dumps(event.data()))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return


class _Lines:
    """Lines on stderr; what commands print as it is, but unable to steer a terminal."""

    def __init__(self, wanted: Callable[[Event], bool]) -> None:
        self._wanted = wanted
        self._text = {"stdout": text.SafeText(), "stderr": text.SafeText()}
        self._is_within_line = False

    def report(self, event: Event) -> None:
        if not self._wanted(event):
            return
        if isinstance(event, Output):
            shown = self._text[event.stream].add(event.text)
            self._is_within_line = bool(shown) and not shown.endswith("\n")
            self._write(shown)
            return
        if self._is_within_line:
            self._write("\n")
            self._is_within_line = False
        if isinstance(event, Said):
            self._write(f"{event.level}: {text.safe_line(event.text)}\n")
        elif event.state != "packing":
            self._write(text.safe_line(line_of(event)) + "\n")

    def _write(self, shown: str) -> None:
        click.echo(shown, nl=False, err=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for held in self._text.values():
            self._write(held.end())


class _Screen(_Lines):
    """A bar that stays below the lines."""

    def __init__(self) -> None:
        super().__init__(lambda event: True)
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("{task.completed:.0f}/{task.total:.0f}"),
            TimeElapsedColumn(),
        )
        self._bar = Bar(*columns, console=Console(file=sys.stderr), transient=True)
        self._task = self._bar.add_task("", total=1)
        self._held = ""
        """A line that is not whole yet: the bar would stand behind it."""

    def report(self, event: Event) -> None:
        if isinstance(event, Step):
            is_over = event.state in ("done", "cached", "failed")
            self._bar.update(
                self._task,
                description=text.safe_line(f"{event.state} {event.title}")[:_TITLE_LETTERS],
                total=max(event.total, 1),
                completed=event.number - (0 if is_over else 1),
            )
        super().report(event)

    def _write(self, shown: str) -> None:
        whole, end, self._held = (self._held + shown).rpartition("\n")
        if len(self._held) > _HELD_LETTERS:
            whole, end, self._held = whole + end + self._held, "\n", ""
        if end:
            self._bar.console.print(
                whole, markup=False, highlight=False, soft_wrap=True, emoji=False
            )

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(self, *raised: object) -> None:
        super().__exit__(*raised)
        if self._held:
            self._write("\n")
        self._bar.stop()
