"""What the README shows works as it stands there."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import indent

import pytest
from requirements import REPOSITORY

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(120)]


def blocks(language: str) -> list[str]:
    """Return the README's code blocks of one language."""
    text = (REPOSITORY / "README.md").read_text()
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def test_the_first_example_runs(platform: Path) -> None:
    example = blocks("python")[0]
    assert len(example.strip().splitlines()) <= 10
    done = subprocess.run(
        [sys.executable, "-c", example],
        env={**os.environ, "SANDFLEET_STATE_DIR": str(platform)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "45"


def test_the_examples_of_pausing_and_calling_run(platform: Path) -> None:
    opening = """from sandfleet import Client
with Client() as client, client.create() as sandbox:
"""
    example = opening + indent(blocks("python")[1] + blocks("python")[2], "    ")
    done = subprocess.run(
        [sys.executable, "-c", example],
        env={**os.environ, "SANDFLEET_STATE_DIR": str(platform)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_commands_it_names_exist() -> None:
    shown = subprocess.run(
        [Path(sys.executable).with_name("sandfleet"), "--help"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    named = set(re.findall(r"^sandfleet (\w+)", blocks("sh")[1], re.MULTILINE))
    assert named
    assert [name for name in sorted(named) if not re.search(rf"\b{name}\b", shown)] == []


def test_the_make_targets_it_names_exist() -> None:
    text = (REPOSITORY / "README.md").read_text()
    makefile = (REPOSITORY / "Makefile").read_text()
    for target in set(re.findall(r"`?make ([a-z-]+)", text)):
        pattern = "bench-%" if target.startswith("bench-") else target
        assert re.search(rf"^{re.escape(pattern)}:", makefile, re.MULTILINE), target
