"""Whether layers fit on each other: judged by their notes, told as warnings, never refused.

A layer's note says what is there from this layer on (`python: 3.11.2`). A note that begins with
`built_on.` says what lay below when it was built (`built_on.python: 3.11.2`): programs and
extensions in it were made for that. Known notes are compared in their own way, all others letter
for letter:

    distribution   name and release        debian bookworm; debian trixie does not fit
    libc           same kind, not older    what was built on glibc 2.36 runs on 2.41
    python         major and minor number  3.11.2 and 3.11.9 fit, 3.12.0 does not
    node, ruby, perl, java   major number (perl: and minor)
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from sandfleet_common.messages import Layer

BUILT_ON = "built_on."
WARNINGS_MAX = 32
_LETTERS = 80


def warnings(layers: Sequence[Layer]) -> list[str]:
    """Return what does not fit in a stack, a sentence each, at most WARNINGS_MAX.

    Args:
        layers: top first.
    """
    found: list[str] = []
    there: dict[str, str] = {}
    for layer in reversed(layers):
        for note, wanted in sorted(layer.notes.items()):
            if not note.startswith(BUILT_ON):
                continue
            name = note.removeprefix(BUILT_ON)
            problem = _problem(name, wanted, there.get(name))
            if problem is not None:
                found.append(f"{_named(layer)} was built on {problem}")
        there.update({n: v for n, v in layer.notes.items() if not n.startswith(BUILT_ON)})
    return found[:WARNINGS_MAX]


def _problem(name: str, wanted: str, found: str | None) -> str | None:
    told = f"{name} {wanted[:_LETTERS]}"
    if found is None:
        return f"{told}; nothing below it says that it has {name}"
    if _COMPARED.get(name, _is_equal)(wanted, found):
        return None
    return f"{told}; below it is {found[:_LETTERS]}"


def _named(layer: Layer) -> str:
    name = layer.description[:_LETTERS] or layer.digest[:19]
    return f"{layer.kind} layer {name!r}"


def _numbers(text: str) -> tuple[int, ...]:
    """Return the first version number in a text: `glibc 2.36` gives (2, 36)."""
    match = re.search(r"[0-9]{1,9}(?:\.[0-9]{1,9}){0,3}", text)
    return () if match is None else tuple(int(part) for part in match[0].split("."))


def _is_equal(wanted: str, found: str) -> bool:
    return wanted.split() == found.split()


def _fits_libc(wanted: str, found: str) -> bool:
    if _kind(wanted) != _kind(found):
        return False
    needed, there = _numbers(wanted), _numbers(found)
    return not needed or not there or there >= needed


def _kind(text: str) -> str:
    match = re.match(r"[a-z]+", text.strip().lower())
    return "" if match is None else match[0]


def _same_numbers(count: int) -> Callable[[str, str], bool]:
    def fits(wanted: str, found: str) -> bool:
        return _numbers(wanted)[:count] == _numbers(found)[:count]

    return fits


_COMPARED: dict[str, Callable[[str, str], bool]] = {
    "libc": _fits_libc,
    "python": _same_numbers(2),
    "perl": _same_numbers(2),
    "node": _same_numbers(1),
    "ruby": _same_numbers(1),
    "java": _same_numbers(1),
}
