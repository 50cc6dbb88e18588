"""The images' recipes name what exists."""

from __future__ import annotations

import fnmatch
import importlib.util
import json
import re
import tomllib
from pathlib import Path

import pytest
from deployment import PACKAGES, REPOSITORY, run, tool

IGNORED = [
    line
    for line in (REPOSITORY / ".dockerignore").read_text().splitlines()
    if line and not line.startswith("#")
]


def _recipe(package: str) -> str:
    text = (REPOSITORY / "services" / package / "Dockerfile").read_text()
    return text.replace("\\\n", " ")


def _copied(text: str) -> list[str]:
    lines = [line.split()[1:] for line in text.splitlines() if line.startswith("COPY ")]
    return [
        word
        for words in lines
        if not any(w.startswith("--from=") for w in words)
        for word in words[:-1]
        if not word.startswith("--")
    ]


def _is_sent(path: str) -> bool:
    """Whether .dockerignore lets a path into the build context: the last match decides."""
    sent = True
    for pattern in IGNORED:
        wanted = pattern.removeprefix("!")
        parts = Path(path).parts
        heads = ["/".join(parts[: i + 1]) for i in range(len(parts))]
        if any(fnmatch.fnmatch(head, wanted) for head in heads):
            sent = pattern.startswith("!")
    return sent


@pytest.mark.parametrize("package", PACKAGES)
def test_what_an_image_copies_exists_and_is_sent(package: str) -> None:
    sources = _copied(_recipe(package))
    assert sources
    for source in sources:
        assert (REPOSITORY / source).exists(), source
        assert _is_sent(source), source


@pytest.mark.parametrize("package", PACKAGES)
def test_an_image_installs_an_extra_that_exists(package: str) -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = re.findall(r'pip install [^"]*"\.\[(\w+)\]"', _recipe(package))
    assert extras == [package]
    assert package in project["optional-dependencies"]


@pytest.mark.parametrize("package", PACKAGES)
def test_an_image_starts_its_own_service(package: str) -> None:
    entry = re.search(r"^ENTRYPOINT (.*)$", _recipe(package), re.MULTILINE)
    assert entry is not None
    words = json.loads(entry.group(1))
    assert words[-3:] == ["python", "-m", f"sandfleet_{package}"]
    assert importlib.util.find_spec(f"sandfleet_{package}.__main__") is not None


@pytest.mark.parametrize("package", PACKAGES)
def test_the_linter_finds_nothing(package: str) -> None:
    recipe = REPOSITORY / "services" / package / "Dockerfile"
    # Packages of the distribution take the version that the base image's release has.
    run(tool("hadolint"), "--ignore", "DL3008", recipe)


def test_nothing_of_git_or_of_a_state_directory_is_sent() -> None:
    for path in (".git", ".sandfleet/config", ".venv", "native/build", "tests"):
        assert not _is_sent(path), path
