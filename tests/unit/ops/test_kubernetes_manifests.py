"""What kustomize builds is valid, and everything a manifest refers to is there."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest
from deployment import OVERLAYS, SERVICES, manifests, settings_class, validate_manifest, workloads

from sandfleet_common import access
from sandfleet_common.ids import check_node

UNPRIVILEGED = ("nats", "redis", "scheduler", "gateway", "monitor")


@pytest.fixture(params=OVERLAYS)
def overlay(request: pytest.FixtureRequest) -> str:
    return request.param


def _names(overlay: str, kind: str) -> set[str]:
    return {m["metadata"]["name"] for m in manifests(overlay) if m["kind"] == kind}


def _container(overlay: str, name: str) -> dict[str, Any]:
    (container,) = dict(workloads(overlay))[name]["containers"]
    return container


def test_every_manifest_fits_the_strict_schema_of_its_kind(overlay: str) -> None:
    for manifest in manifests(overlay):
        validate_manifest(manifest)


def test_every_service_runs(overlay: str) -> None:
    assert {name for name, _ in workloads(overlay)} == {*SERVICES, "nats", "redis"}


def test_secrets_are_those_that_the_access_command_prints(
    overlay: str, capsys: pytest.CaptureFixture[str]
) -> None:
    access.main(["--secrets", "sandfleet"])
    printed = json.loads(capsys.readouterr().out)["items"]
    assert {s["metadata"]["namespace"] for s in printed} == _names(overlay, "Namespace")
    known = {s["metadata"]["name"] for s in printed}
    for name, pod in workloads(overlay):
        used = {v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v}
        assert used == {f"sandfleet-{name}"}
        assert used <= known


def test_accounts_exist_and_nobody_gets_a_token(overlay: str) -> None:
    accounts = _names(overlay, "ServiceAccount")
    for name, pod in workloads(overlay):
        assert pod["serviceAccountName"] == name
        assert name in accounts
        assert pod["automountServiceAccountToken"] is False


def test_mounts_name_volumes_and_probes_name_ports(overlay: str) -> None:
    claims = {
        m["metadata"]["name"]: {c["metadata"]["name"] for c in m["spec"]["volumeClaimTemplates"]}
        for m in manifests(overlay)
        if m["kind"] == "StatefulSet"
    }
    for name, pod in workloads(overlay):
        volumes = {v["name"] for v in pod["volumes"]} | claims.get(name, set())
        for container in pod["containers"]:
            assert {m["name"] for m in container["volumeMounts"]} == volumes
            ports = {p["name"] for p in container["ports"]}
            assert "readinessProbe" in container
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                get = container.get(probe, {}).get("httpGet")
                assert get is None or get["port"] in ports


def test_selectors_services_and_budgets_find_pods(overlay: str) -> None:
    labels = {
        m["metadata"]["name"]: m["spec"]["template"]["metadata"]["labels"]
        for m in manifests(overlay)
        if m["kind"] in ("Deployment", "StatefulSet", "DaemonSet")
    }
    for manifest in manifests(overlay):
        kind, name, spec = manifest["kind"], manifest["metadata"]["name"], manifest.get("spec", {})
        if kind == "Service":
            assert spec["selector"].items() <= labels[name].items()
            ports = {p["name"] for p in _container(overlay, name)["ports"]}
            assert {p["targetPort"] for p in spec["ports"]} <= ports
        elif kind in ("PodDisruptionBudget", "Deployment", "StatefulSet", "DaemonSet"):
            assert spec["selector"]["matchLabels"].items() <= labels[name].items()
        elif kind == "HorizontalPodAutoscaler":
            assert spec["scaleTargetRef"]["name"] in labels


def _matches(selector: dict[str, Any], name: str) -> bool:
    wanted = selector.get("matchLabels", {}).get("app.kubernetes.io/name")
    listed = [v for e in selector.get("matchExpressions", []) for v in e["values"]]
    return name in listed if listed else wanted in (None, name)


def _allowed(overlay: str, side: str, name: str) -> list[tuple[dict[str, Any], str | int]]:
    """Return (peer, port) pairs that policies allow a pod, one entry for no peer at all."""
    key = "from" if side == "ingress" else "to"
    return [
        (peer, port["port"])
        for m in manifests(overlay)
        if m["kind"] == "NetworkPolicy" and _matches(m["spec"]["podSelector"], name)
        for rule in m["spec"].get(side, [])
        for peer in rule.get(key, [{}])
        for port in rule["ports"]
    ]


@pytest.mark.parametrize("server", ["nats", "redis"])
def test_exactly_those_who_need_a_server_reach_it(overlay: str, server: str) -> None:
    port = {"nats": "client", "redis": "redis"}[server]
    needy = set(SERVICES) if server == "nats" else set(access.REDIS_USERS)

    def _can(name: str) -> bool:
        out = any(
            p == port and _matches(peer["podSelector"], server)
            for peer, p in _allowed(overlay, "egress", name)
            if "podSelector" in peer
        )
        into = any(
            p == port and _matches(peer["podSelector"], name)
            for peer, p in _allowed(overlay, "ingress", server)
            if "podSelector" in peer
        )
        return out and into

    assert {name for name, _ in workloads(overlay) if _can(name)} == needy


def test_policies_name_ports_that_exist(overlay: str) -> None:
    ports = {
        p["name"] for _, pod in workloads(overlay) for c in pod["containers"] for p in c["ports"]
    }
    for name, _ in workloads(overlay):
        for side in ("ingress", "egress"):
            named = {p for _, p in _allowed(overlay, side, name) if isinstance(p, str)}
            assert named <= ports


def test_everything_is_closed_by_default(overlay: str) -> None:
    closed = [m for m in manifests(overlay) if m["metadata"]["name"] == "closed"]
    assert [m["spec"] for m in closed] == [
        {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    ]


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_takes_all_settings_it_is_given(overlay: str, service: str) -> None:
    kind = settings_class(service)
    prefix = f"SANDFLEET_{service.upper()}_"
    container = _container(overlay, service)
    settings = {
        e["name"].removeprefix(prefix).lower(): e["value"]
        for e in container["env"]
        if e["name"].startswith("SANDFLEET_") and e["name"] != "SANDFLEET_CONFIG"
    }
    assert set(settings) <= set(kind.model_fields), f"{service} has no such setting"
    taken = kind.model_validate(settings)
    metrics = {p["name"]: p["containerPort"] for p in container["ports"]}["metrics"]
    assert taken.metrics_port == metrics


def test_no_pod_gets_settings_from_kubernetes_service_links(overlay: str) -> None:
    for name, pod in workloads(overlay):
        assert pod["enableServiceLinks"] is False, name


@pytest.mark.parametrize("name", UNPRIVILEGED)
def test_a_pod_that_needs_no_privilege_is_restricted(overlay: str, name: str) -> None:
    pod = dict(workloads(overlay))[name]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (container,) = pod["containers"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    assert not any("hostPath" in v for v in pod["volumes"])


def test_a_nodes_container_is_never_restarted_by_a_probe(overlay: str) -> None:
    assert "livenessProbe" not in _container(overlay, "node")
    (daemons,) = (m for m in manifests(overlay) if m["metadata"]["name"] == "node" and "spec" in m)
    assert daemons["spec"]["updateStrategy"] == {"type": "OnDelete"}


@pytest.mark.parametrize(
    "machine",
    [
        "worker-1",
        "ip-10-0-0-1.us-west-2.compute.internal",
        "n" * 63,
        "a.b.",
        "x" * 22 + "." + "y" * 39,
    ],
)
def test_any_machines_name_becomes_a_nodes_and_the_sensor_says_the_same(machine: str) -> None:
    names = {
        check_node(_named_by(_container("base", service)["command"][2], variable, machine))
        for service, variable in (
            ("node", "SANDFLEET_NODE_NAME"),
            ("sensor", "SANDFLEET_SENSOR_NODE"),
        )
    }
    assert len(names) == 1


def _named_by(script: str, variable: str, machine: str) -> str:
    head, found, _ = script.partition("exec ")
    assert found
    done = subprocess.run(
        ["sh", "-c", f'{head}printf %s "${variable}"'],
        env={"MACHINE": machine, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout
