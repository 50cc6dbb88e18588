"""What the deployment files say, read once for the tests about them."""

from __future__ import annotations

import functools
import importlib
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate  # pyright: ignore[reportMissingTypeStubs]
import pytest
import yaml

from sandfleet_common.lifecycle import Health
from sandfleet_common.metrics import HealthMetrics, Metrics
from sandfleet_common.settings import ServiceSettings

REPOSITORY = Path(__file__).resolve().parents[1]
GRAFANA = REPOSITORY / "grafana"
DASHBOARD = GRAFANA / "dashboards" / "fleet.json"
RULES = GRAFANA / "rules" / "sandfleet.yaml"
OVERLAYS = ("base", "overlays/dev", "overlays/production")
KUBERNETES = "1.34"
"""The version whose schemas manifests must fit."""
SERVICES = ("scheduler", "gateway", "node", "sensor", "monitor")
PACKAGES = ("scheduler", "gateway", "node", "security")
Tree = dict[str, Any]


def tool(name: str) -> str:
    """Return where a command is: beside the interpreter, or in PATH; without it, skip."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"doctor line `{name}`: {name} is not installed; run scripts/install.sh")
    return found


def run(*command: str | Path) -> str:
    """Run a command and return what it says; fail with that when it fails."""
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, (
        f"{command} ended with {done.returncode}:\n{done.stdout}{done.stderr}"
    )
    return done.stdout + done.stderr


@functools.cache
def compose() -> Tree:
    """Return the compose file with its anchors and merges resolved."""
    return yaml.safe_load((REPOSITORY / "docker-compose.yml").read_text())


@functools.cache
def manifests(overlay: str) -> tuple[Tree, ...]:
    """Return what kustomize builds from an overlay."""
    text = run(tool("kubectl"), "kustomize", REPOSITORY / "k8s" / overlay)
    return tuple(yaml.safe_load_all(text))


def workloads(overlay: str) -> Iterator[tuple[str, Tree]]:
    """Return the pods that an overlay runs, as (name, pod spec)."""
    for manifest in manifests(overlay):
        if manifest["kind"] in ("Deployment", "StatefulSet", "DaemonSet", "Job"):
            yield manifest["metadata"]["name"], manifest["spec"]["template"]["spec"]


def validate_manifest(manifest: Tree) -> None:
    """Fail unless a manifest fits the strict schema of its kind."""
    kubernetes_validate.validate(manifest, KUBERNETES, strict=True)  # pyright: ignore[reportUnknownMemberType]


def settings_class(service: str) -> type[ServiceSettings]:
    """Return the class that reads a service's settings."""
    package = "security" if service in ("sensor", "monitor") else service
    module = importlib.import_module(f"sandfleet_{package}.config")
    return getattr(module, f"{service.capitalize()}Settings")


@functools.cache
def dashboard() -> Tree:
    """Return the fleet dashboard."""
    return json.loads(DASHBOARD.read_text())


def panels() -> Iterator[Tree]:
    """Return the dashboard's panels that show data."""
    for panel in dashboard()["panels"]:
        if panel["type"] != "row":
            yield panel


def panel_queries() -> list[tuple[str, str]]:
    """Return every query of the dashboard as (panel title, expression)."""
    return [(p["title"], t["expr"]) for p in panels() for t in p["targets"]]


@functools.cache
def rules() -> tuple[Tree, ...]:
    """Return every alerting and recording rule."""
    groups = yaml.safe_load(RULES.read_text())["groups"]
    return tuple(rule for group in groups for rule in group["rules"])


_GROUPING = re.compile(r"\b(by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)")
_WORDS = {"and", "or", "unless", "bool", "offset", "inf", "nan", "group_left", "group_right"}


def _unquoted(expression: str) -> str:
    return re.sub(r'"(?:[^"\\]|\\.)*"', '""', expression)


def metric_names(expression: str) -> set[str]:
    """Return the metrics that a PromQL expression reads."""
    text = _GROUPING.sub(" ", re.sub(r"\{[^}]*\}|\[[^\]]*\]", " ", _unquoted(expression)))
    words = re.findall(r"(?<![\w:.$])([a-zA-Z_:][\w:]*)\b(?!\s*\()", text)
    return {word for word in words if word.lower() not in _WORDS}


def selected_labels(expression: str) -> set[str]:
    """Return the labels that a PromQL expression selects, joins or groups by."""
    text = _unquoted(expression)
    grouped = {
        label.strip()
        for _, labels in _GROUPING.findall(text)
        for label in labels.split(",")
        if label.strip()
    }
    matched = {
        label
        for braces in re.findall(r"\{([^}]*)\}", text)
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", braces)
    }
    return grouped | matched


def variable_queries() -> list[str]:
    """Return what the dashboard's variables are filled from."""
    found: list[str] = []
    for variable in dashboard()["templating"]["list"]:
        match = re.fullmatch(r"label_values\((.+), *(\w+)\)", variable["query"]["query"])
        assert match is not None, variable["name"]
        found.append(f"count by ({match[2]}) ({match[1]})")
    return found


@functools.cache
def declared_metrics() -> dict[str, set[str]]:
    """Return every series that the services can show, with its labels."""
    found: dict[str, set[str]] = {"up": set()}
    for collector in _collectors():
        for family in collector.describe():
            labels = set(map(str, collector._labelnames))
            for ending in _ENDINGS[family.type]:
                found[family.name + ending] = labels
    health = Health()
    health.checks["any"] = lambda: None
    for family in HealthMetrics(health).collect():
        found[family.name] = {label for sample in family.samples for label in sample.labels}
    return found


_ENDINGS = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


def _collectors() -> Iterator[Any]:
    for package in PACKAGES:
        module = importlib.import_module(f"sandfleet_{package}.metrics")
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == module.__name__:
                made = kind()
                metrics = made if isinstance(made, Metrics) else made.metrics
                yield from metrics.registry._collector_to_names  # pyright: ignore[reportPrivateUsage]
