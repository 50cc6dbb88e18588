"""Settings from the environment and from a file; mistakes are named, secrets are not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from pydantic import Field

from sandfleet_common.logs import Level
from sandfleet_common.settings import ServiceSettings, load


class DemoSettings(ServiceSettings):
    """Settings of a service that does not exist."""

    size: int = Field(default=1, gt=0)


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("SANDFLEET_"):
            monkeypatch.delenv(name)


def write(path: Path, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path.write_text(text)
    monkeypatch.setenv("SANDFLEET_CONFIG", str(path))


def test_the_environment_wins_over_the_file_over_the_default(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert load(DemoSettings, "demo").size == 1
    write(tmp_path / "s.toml", "[demo]\nsize = 2\n[other]\nsize = 9\n", monkeypatch)
    assert load(DemoSettings, "demo").size == 2
    monkeypatch.setenv("SANDFLEET_DEMO_SIZE", "3")
    assert load(DemoSettings, "demo").size == 3


def test_variables_without_our_prefix_are_not_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SIZE", "5")
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere")
    settings = load(DemoSettings, "demo")
    assert settings.size == 1
    assert "elsewhere" not in settings.store().url


@pytest.mark.parametrize(
    ("name", "value", "named"),
    [
        ("SIZE", "0", "size"),
        ("SIZE", "many", "size"),
        ("SICE", "1", "sice: there is no such setting"),
        ("LOG_LEVEL", "loud", "log_level"),
        ("METRICS_PORT", "70000", "metrics_port"),
    ],
)
def test_a_mistake_stops_the_start_and_is_named(
    name: str,
    value: str,
    named: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv(f"SANDFLEET_DEMO_{name}", value)
    with pytest.raises(SystemExit):
        load(DemoSettings, "demo")
    assert named in capsys.readouterr().err


@pytest.mark.parametrize("text", ["[demo\n", "demo = 3\n", "[demo]\nsice = 1\n"])
def test_a_file_that_does_not_fit_stops_the_start(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path / "s.toml", text, monkeypatch)
    with pytest.raises(SystemExit):
        load(DemoSettings, "demo")


def test_a_password_file_wins_and_must_be_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("from the file\n")
    monkeypatch.setenv("SANDFLEET_DEMO_NATS_PASSWORD", "from the environment")
    monkeypatch.setenv("SANDFLEET_DEMO_NATS_PASSWORD_FILE", str(tmp_path / "password"))
    assert load(DemoSettings, "demo").bus("demo").password == "from the file"
    monkeypatch.setenv("SANDFLEET_DEMO_NATS_PASSWORD_FILE", str(tmp_path / "nothing"))
    with pytest.raises(SystemExit, match="nats_password_file"):
        load(DemoSettings, "demo")


def test_servers_are_a_list_and_the_user_is_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDFLEET_DEMO_NATS_SERVERS", "nats://a:1, nats://b:2,")
    bus = load(DemoSettings, "demo").bus("node", "node-n1")
    assert (bus.servers, bus.user, bus.name) == (("nats://a:1", "nats://b:2"), "node", "node-n1")


def test_secrets_do_not_show() -> None:
    shown = repr(DemoSettings.model_validate({"nats_password": "hunter2"}))
    assert "hunter2" not in shown


def test_the_level_is_a_level() -> None:
    assert DemoSettings(log_level="warning").level() == Level.WARNING
