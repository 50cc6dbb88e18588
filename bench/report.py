"""What all benchmarks share: percentiles, a table, and the JSON result."""

from __future__ import annotations

import json
import os
import platform
import time
from pathlib import Path
from statistics import quantiles

from rich.console import Console
from rich.table import Table

RESULTS = Path(__file__).parent / "results"


def percentile(values: list[float], percent: int) -> float:
    """Return a percentile of at least two values."""
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def ratio(ours: float, theirs: float) -> float:
    """Return how many times `theirs` goes into `ours`."""
    return round(ours / theirs, 2) if theirs else 0.0


def write(name: str, figures: dict[str, float | int | str | None], notes: list[str]) -> None:
    """Print a benchmark's figures and write bench/results/<name>.json."""
    console = Console()
    table = Table(title=f"bench {name}", show_header=False)
    for key, value in figures.items():
        table.add_row(key, "not measured" if value is None else str(value))
    console.print(table)
    for note in notes:
        console.print(f"  {note}", markup=False)
    RESULTS.mkdir(exist_ok=True)
    record = {
        **figures,
        "notes": notes,
        "host": {"kernel": platform.release(), "cores": os.cpu_count()},
        "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(record, indent=2) + "\n")
