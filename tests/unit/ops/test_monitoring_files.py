"""Prometheus's and Grafana's own files fit each other, the compose file and the manifests."""

from __future__ import annotations

from pathlib import Path

import yaml
from deployment import GRAFANA, SERVICES, compose, dashboard, manifests, run, tool, workloads

PROMETHEUS = compose()["services"]["prometheus"]
GRAFANA_SERVICE = compose()["services"]["grafana"]


def _mounts(volumes: list[str]) -> dict[str, str]:
    return {m.split(":")[0]: m.split(":")[1] for m in volumes}


def test_promtool_accepts_the_configuration_for_compose() -> None:
    run(tool("promtool"), "check", "config", GRAFANA / "prometheus.yml")


def test_promtool_accepts_the_configuration_for_kubernetes(tmp_path: Path) -> None:
    config = yaml.safe_load((GRAFANA / "prometheus-kubernetes.yml").read_text())
    # Debian builds Prometheus without Kubernetes discovery; what it discovers, another test checks.
    del config["scrape_configs"][0]["kubernetes_sd_configs"]
    config["rule_files"] = [str(GRAFANA / "rules" / "*.yaml")]
    (tmp_path / "prometheus.yml").write_text(yaml.safe_dump(config))
    run(tool("promtool"), "check", "config", tmp_path / "prometheus.yml")


def test_the_annotations_and_labels_that_discovery_needs_are_on_every_service() -> None:
    for name, _ in workloads("base"):
        (pod,) = (m for m in _templates() if m["labels"]["app.kubernetes.io/name"] == name)
        wants = pod.get("annotations", {}).get("prometheus.io/scrape") == "true"
        assert wants == (name in SERVICES)


def _templates() -> list[dict[str, dict[str, str]]]:
    return [
        m["spec"]["template"]["metadata"]
        for m in manifests("base")
        if "template" in m.get("spec", {})
    ]


def test_rules_are_mounted_where_prometheus_looks_for_them() -> None:
    mounts = _mounts(PROMETHEUS["volumes"])
    config = Path(mounts["./grafana/prometheus.yml"])
    assert f"--config.file={config}" in PROMETHEUS["command"]
    assert mounts["./grafana/rules"] == str(config.parent / "rules")
    patterns = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())["rule_files"]
    assert [list(GRAFANA.glob(pattern)) != [] for pattern in patterns] == [True]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    place = GRAFANA / "provisioning"
    (source,) = yaml.safe_load((place / "datasources" / "prometheus.yaml").read_text())[
        "datasources"
    ]
    (provider,) = yaml.safe_load((place / "dashboards" / "sandfleet.yaml").read_text())["providers"]
    assert source["url"] == "http://prometheus:9090"
    assert set(PROMETHEUS["networks"]) & set(GRAFANA_SERVICE["networks"])
    mounts = _mounts(GRAFANA_SERVICE["volumes"])
    assert mounts["./grafana/provisioning"] == "/etc/grafana/provisioning"
    assert mounts["./grafana/dashboards"] == provider["options"]["path"]
    assert {
        panel["datasource"]["uid"] for panel in dashboard()["panels"] if "datasource" in panel
    } == {source["uid"]}


def test_nobody_looks_at_grafana_without_a_password() -> None:
    given = GRAFANA_SERVICE["environment"]
    assert given["GF_AUTH_ANONYMOUS_ENABLED"] == "false"
    assert given["GF_SECURITY_ADMIN_PASSWORD__FILE"] == "/etc/sandfleet/password"
    assert "GF_SECURITY_ADMIN_PASSWORD" not in given
