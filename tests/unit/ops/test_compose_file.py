"""docker-compose.yml fits the Compose specification and our own settings."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import compose_spec
import pytest
import yaml
from deployment import GRAFANA, REPOSITORY, SERVICES, compose, settings_class

from sandfleet_common import access

COMPOSE_SERVICES: dict[str, dict[str, Any]] = compose()["services"]


def test_it_fits_the_compose_specification() -> None:
    parsed = compose_spec.PyCompose.from_json(json.dumps(compose()))
    assert set(parsed.service_names()) == set(COMPOSE_SERVICES)


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_takes_all_settings_it_is_given(service: str, tmp_path: Path) -> None:
    access.main(["--out", str(tmp_path)])
    kind = settings_class(service)
    prefix = f"SANDFLEET_{service.upper()}_"
    given = COMPOSE_SERVICES[service]["environment"]
    settings = {
        k.removeprefix(prefix).lower(): v for k, v in given.items() if k != "SANDFLEET_CONFIG"
    }
    assert set(settings) <= set(kind.model_fields), f"{service} has no such setting"
    secret = tomllib.loads((tmp_path / service / "settings.toml").read_text())[service]
    taken = kind.model_validate(secret | settings)
    assert taken.metrics_port == 9400
    assert taken.nats_servers == "nats://nats:4222"


@pytest.mark.parametrize("service", SERVICES)
def test_a_service_mounts_its_own_secrets_and_nobody_elses(service: str) -> None:
    mounts = _volumes(service)
    assert mounts[f"{service}-access"] == "/etc/sandfleet"
    assert [name for name in mounts if name.endswith("-access")] == [f"{service}-access"]
    assert COMPOSE_SERVICES[service]["environment"]["SANDFLEET_CONFIG"] == (
        "/etc/sandfleet/settings.toml"
    )


def _volumes(service: str) -> dict[str, str]:
    mounts = [m.split(":") for m in COMPOSE_SERVICES[service].get("volumes", [])]
    return {m[0]: m[1] for m in mounts}


def test_init_fills_the_volume_of_every_user(tmp_path: Path) -> None:
    access.main(["--out", str(tmp_path)])
    written = {f"{place.name}-access": f"/access/{place.name}" for place in tmp_path.iterdir()}
    assert _volumes("init") == written


def test_init_runs_the_real_command_with_arguments_it_takes(tmp_path: Path) -> None:
    init = COMPOSE_SERVICES["init"]
    assert init["entrypoint"] == ["python", "-m", access.__name__]
    words = [str(tmp_path) if word == "/access" else word for word in init["command"]]
    assert access.main(words) == 0
    config = json.loads((tmp_path / "nats" / "nats.conf").read_text())
    assert config["listen"].endswith(":4222")
    assert config["jetstream"]["store_dir"].startswith(_volumes("nats")["nats-data"] + "/")


def test_every_volume_and_network_is_declared_and_used() -> None:
    named = {
        source
        for service in COMPOSE_SERVICES
        for source in _volumes(service)
        if source[0] not in "./"
    }
    assert named == set(compose()["volumes"])
    joined = {n for s in COMPOSE_SERVICES.values() for n in s.get("networks", [])}
    assert joined == set(compose()["networks"])


def test_files_mounted_from_the_repository_exist() -> None:
    for service in COMPOSE_SERVICES:
        for source in _volumes(service):
            if source.startswith("./"):
                assert (REPOSITORY / source).exists(), source


@pytest.mark.parametrize("service", sorted(COMPOSE_SERVICES))
def test_what_a_service_waits_for_can_become_so(service: str) -> None:
    for other, wait in COMPOSE_SERVICES[service].get("depends_on", {}).items():
        needed = COMPOSE_SERVICES[other]
        if wait["condition"] == "service_healthy":
            assert "healthcheck" in needed
        else:
            assert wait["condition"] == "service_completed_successfully"
            assert needed["restart"] == "no"


def test_only_gateway_and_grafana_are_published_and_only_on_loopback() -> None:
    published = {name: s["ports"] for name, s in COMPOSE_SERVICES.items() if "ports" in s}
    assert set(published) == {"gateway", "grafana"}
    for ports in published.values():
        assert all(port.startswith("127.0.0.1:") for port in ports)


def test_no_secret_is_in_an_environment_or_a_command() -> None:
    for name, service in COMPOSE_SERVICES.items():
        for key in service.get("environment", {}):
            secret = any(word in key.lower() for word in ("password", "secret", "token", "api_key"))
            assert not secret or key.lower().endswith("_file"), f"{name}: {key}"
        assert not any("requirepass" in str(word) for word in service.get("command", []))


@pytest.mark.parametrize("service", sorted(set(COMPOSE_SERVICES) - {"node", "sensor", "layers"}))
def test_a_service_that_needs_no_privilege_has_none(service: str) -> None:
    found = COMPOSE_SERVICES[service]
    assert found["cap_drop"] == ["ALL"]
    assert found["read_only"] is True
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert not found.get("privileged", False)
    assert {"mem_limit", "cpus", "pids_limit"} <= set(found)


def test_prometheus_scrapes_every_service_where_it_listens() -> None:
    config = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
    scraped = {
        job["job_name"]: (found["names"], found["port"])
        for job in config["scrape_configs"]
        for found in job["dns_sd_configs"]
    }
    assert scraped == {service: ([service], 9400) for service in SERVICES}
    for service in SERVICES:
        assert set(COMPOSE_SERVICES[service]["networks"]) >= {"metrics"}


def test_node_and_sensor_agree_on_the_nodes_name() -> None:
    node = COMPOSE_SERVICES["node"]["environment"]["SANDFLEET_NODE_NAME"]
    assert COMPOSE_SERVICES["sensor"]["environment"]["SANDFLEET_SENSOR_NODE"] == node
