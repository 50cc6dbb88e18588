"""Ports, secrets and settings of a local platform."""

from __future__ import annotations

import json
import socket
import stat
import tomllib
from pathlib import Path

import pytest

from sandfleet.local import configuration, ports
from sandfleet.local.layout import Layout
from sandfleet.local.parts import NATS, PARTS, REDIS, STOP_ORDER, command
from sandfleet.local.readiness import line_text
from sandfleet_common.errors import Busy
from sandfleet_common.settings import ServiceSettings, load
from sandfleet_gateway.config import GatewaySettings
from sandfleet_node.config import NodeSettings
from sandfleet_scheduler.config import SchedulerSettings
from sandfleet_security.config import MonitorSettings, SensorSettings

PORTS = {name: 20_000 + n for n, name in enumerate((*(p.name for p in PARTS), "http"))}
SETTINGS: dict[str, type[ServiceSettings]] = {
    "scheduler": SchedulerSettings,
    "node": NodeSettings,
    "sensor": SensorSettings,
    "monitor": MonitorSettings,
    "gateway": GatewaySettings,
}


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    made = Layout(tmp_path / "state")
    made.make()
    return made


def test_a_port_is_kept_from_one_time_to_the_next(tmp_path: Path) -> None:
    first = ports.assign(tmp_path / "ports.json", ["nats", "redis"], set())
    assert ports.assign(tmp_path / "ports.json", ["nats", "redis"], set()) == first


def test_a_port_that_another_took_meanwhile_is_replaced(tmp_path: Path) -> None:
    first = ports.assign(tmp_path / "ports.json", ["nats", "redis"], set())
    with socket.create_server(("127.0.0.1", first["nats"])):
        second = ports.assign(tmp_path / "ports.json", ["nats", "redis"], set())
    assert second["nats"] != first["nats"]
    assert second["redis"] == first["redis"]


def test_a_server_that_runs_keeps_the_port_it_holds(tmp_path: Path) -> None:
    first = ports.assign(tmp_path / "ports.json", ["nats", "redis"], set())
    with socket.create_server(("127.0.0.1", first["nats"])):
        assert ports.assign(tmp_path / "ports.json", ["nats", "redis"], {"nats"}) == first


def test_no_two_share_a_port() -> None:
    chosen = ports.choose([str(n) for n in range(50)], {}, lambda name, port: port % 100 < 50)
    assert len(set(chosen.values())) == 50


def test_a_machine_without_free_ports_is_told_so() -> None:
    with pytest.raises(Busy, match="no free port"):
        ports.choose(["nats"], {}, lambda name, port: False)


def test_every_file_of_the_configuration_is_private(layout: Layout) -> None:
    configuration.write_all(layout, PORTS)
    files = [path for path in layout.config.rglob("*") if path.is_file()]
    assert len(files) > 10
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_secrets_stay_the_same(layout: Layout) -> None:
    first = configuration.write_all(layout, PORTS)
    key = layout.api_key.read_text()
    assert configuration.write_all(layout, PORTS) == first
    assert layout.api_key.read_text() == key
    assert len(set(first.values())) == len(first)


@pytest.mark.parametrize("service", SETTINGS)
def test_a_service_takes_the_settings_written_for_it(
    service: str, layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    passwords = configuration.write_all(layout, PORTS)
    monkeypatch.setenv("SANDFLEET_CONFIG", str(layout.settings / f"{service}.toml"))
    settings = load(SETTINGS[service], service)
    assert settings.bus(service).password == passwords[service]
    assert settings.metrics_port == PORTS[service]


def test_no_service_gets_the_secrets_of_another(layout: Layout) -> None:
    passwords = configuration.write_all(layout, PORTS)
    for path in layout.settings.iterdir():
        others = {user: word for user, word in passwords.items() if user != path.stem}
        assert not [user for user, word in others.items() if word in path.read_text()]


def test_no_secret_is_on_a_command_line(layout: Layout) -> None:
    passwords = configuration.write_all(layout, PORTS)
    words = " ".join(" ".join(command(part, layout)) for part in PARTS if part is not REDIS)
    secrets = [*passwords.values(), layout.api_key.read_text().strip()]
    assert not [secret for secret in secrets if secret in words]
    assert str(layout.config / "nats.conf") in command(NATS, layout)


def test_the_environment_of_a_service_has_nothing_of_others(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOMEBODYS_TOKEN", "secret")
    monkeypatch.setenv("SANDFLEET_API_KEY", "secret")
    monkeypatch.setenv("SANDFLEET_NODE_SANDBOXES_MAX", "7")
    env = configuration.environment("node", layout)
    assert "secret" not in env.values()
    assert env["SANDFLEET_NODE_SANDBOXES_MAX"] == "7"


def test_a_toml_section_reads_back_as_it_was_written() -> None:
    values: dict[str, str | int | bool] = {"path": '/a "b"\\c', "port": 3, "yes": True}
    assert tomllib.loads(configuration.toml_section("node", values)) == {"node": values}


def test_two_platforms_on_a_machine_have_nodes_of_different_names(tmp_path: Path) -> None:
    one, two = Layout(tmp_path / "one"), Layout(tmp_path / "two")
    assert one.node_name() != two.node_name()
    assert one.node_name() == Layout(tmp_path / "one").node_name()


def test_everything_that_starts_is_also_stopped() -> None:
    assert sorted(p.name for p in STOP_ORDER) == sorted(p.name for p in PARTS)


def test_a_log_line_is_shown_to_people_without_its_json() -> None:
    error = {"type": "OSError", "text": "disk full", "trace": "Traceback ..." * 100}
    event = {"at": 1.5, "level": "error", "service": "node", "event": "failed", "error": error}
    assert line_text(json.dumps(event | {"layer": "x"})) == (
        "error failed error=OSError: disk full layer=x"
    )
    assert line_text("Traceback (most recent call last):") == "Traceback (most recent call last):"
