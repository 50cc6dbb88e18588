"""docs/OPERATIONS.md names commands, settings and files that exist."""

from __future__ import annotations

import re

import pytest
from click.testing import CliRunner
from deployment import REPOSITORY, SERVICES, manifests, settings_class

from sandfleet.cli.app import cli

PAGE = (REPOSITORY / "docs" / "OPERATIONS.md").read_text()
COMMANDS = sorted(set(re.findall(r"(?:`|^)sandfleet ([a-z][^`\n]*)", PAGE, re.MULTILINE)))


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_exists_with_the_options_given(command: str) -> None:
    verb, *words = command.partition(" -- ")[0].split()
    answer = CliRunner().invoke(cli, [verb, "--help"])
    assert answer.exit_code == 0, answer.output
    for word in words:
        if word.startswith("-"):
            assert word in answer.output, command


def test_a_setting_exists() -> None:
    named = re.findall(r"`(SANDFLEET_(\w+?)_[A-Z_]+)`", PAGE)
    for variable, service in named:
        if variable == "SANDFLEET_API_KEY":
            continue
        assert service.lower() in SERVICES, variable
        name = variable.removeprefix(f"SANDFLEET_{service}_").lower()
        assert name in settings_class(service.lower()).model_fields, variable
    assert named


def test_a_file_exists() -> None:
    named = re.findall(r"(?:`|\]\(\.\./|-k )((?:grafana|k8s|tests|docs)/[\w./*-]+)", PAGE)
    assert named
    for path in named:
        assert list(REPOSITORY.glob(path)), path


def test_labels_and_annotations_are_those_of_the_manifests() -> None:
    everything = str(manifests("overlays/production"))
    named = set(re.findall(r"(?:sandfleet|prometheus)\.io/\w+", PAGE))
    assert {name for name in named if name not in everything} == set()
