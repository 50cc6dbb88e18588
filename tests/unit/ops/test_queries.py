"""Dashboards and rules ask for metrics that some service declares, by labels that they have."""

from __future__ import annotations

import re

import pytest
import yaml
from deployment import (
    REPOSITORY,
    RULES,
    Tree,
    dashboard,
    declared_metrics,
    metric_names,
    panel_queries,
    panels,
    rules,
    run,
    selected_labels,
    tool,
    variable_queries,
)

EXPRESSIONS = [
    *((f"panel {title}", text) for title, text in panel_queries()),
    *((f"rule {rule.get('alert', rule.get('record'))}", rule["expr"]) for rule in rules()),
    *(("variable", text) for text in variable_queries()),
]
ALERTS = [rule for rule in rules() if "alert" in rule]
TESTS = sorted((RULES.parent / "tests").glob("*.yaml"))


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_a_query_names_declared_metrics(where: str, expression: str) -> None:
    names = metric_names(expression)
    assert names, where
    assert names <= set(declared_metrics()), where


@pytest.mark.parametrize(("where", "expression"), EXPRESSIONS)
def test_a_query_names_labels_that_its_metrics_have(where: str, expression: str) -> None:
    declared = declared_metrics()
    known = {"instance", "job", "le"}.union(*(declared[n] for n in metric_names(expression)))
    assert selected_labels(expression) <= known, where


def test_the_parser_of_queries_sees_names_and_labels() -> None:
    text = 'sum by (node, le) (rate(a_bucket{job=~"x|y", state!="z"}[5m])) / on (node) b unless c'
    assert metric_names(text) == {"a_bucket", "b", "c"}
    assert selected_labels(text) == {"node", "le", "job", "state"}


def test_promtool_accepts_the_rules() -> None:
    run(tool("promtool"), "check", "rules", RULES)


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.stem)
def test_the_rules_fire_when_they_should_and_only_then(file: str) -> None:
    run(tool("promtool"), "test", "rules", file)


def _cases() -> dict[str, set[bool]]:
    """Return for each alert whether there are cases in which it fires and in which not."""
    found: dict[str, set[bool]] = {}
    for file in TESTS:
        for group in yaml.safe_load(file.read_text())["tests"]:
            for case in group["alert_rule_test"]:
                found.setdefault(case["alertname"], set()).add(bool(case.get("exp_alerts")))
    return found


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_has_a_case_that_fires_and_one_that_does_not(rule: Tree) -> None:
    assert _cases()[rule["alert"]] == {True, False}


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_what_to_do(rule: Tree) -> None:
    assert rule["labels"]["severity"] in ("warning", "critical")
    assert rule["annotations"]["summary"].endswith(".")
    file, _, anchor = rule["annotations"]["runbook_url"].partition("#")
    headings = re.findall(r"^### (\w+)$", (REPOSITORY / file).read_text(), re.MULTILINE)
    assert anchor == rule["alert"].lower()
    assert rule["alert"] in headings


def test_every_runbook_belongs_to_an_alert() -> None:
    text = (REPOSITORY / "docs" / "OPERATIONS.md").read_text()
    assert set(re.findall(r"^### (\w+)$", text, re.MULTILINE)) == {r["alert"] for r in ALERTS}


def test_panels_lie_side_by_side_and_know_their_source() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        place = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert place["x"] + place["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells
    ids = [panel["id"] for panel in dashboard()["panels"]]
    assert len(set(ids)) == len(ids)
    for panel in panels():
        assert panel["datasource"] == {"type": "prometheus", "uid": "prometheus"}
        assert panel["description"]
        letters = [target["refId"] for target in panel["targets"]]
        assert len(set(letters)) == len(letters)


def test_the_dashboard_uses_only_variables_that_it_has() -> None:
    own = {variable["name"] for variable in dashboard()["templating"]["list"]}
    used = {name for _, text in panel_queries() for name in re.findall(r"\$\{?(\w+)", text)}
    assert used - {"__rate_interval"} <= own
    assert own <= used
