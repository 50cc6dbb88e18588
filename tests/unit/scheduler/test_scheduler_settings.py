"""The scheduler's settings, and how long it waits."""

from __future__ import annotations

import pytest

from sandfleet_common.settings import load
from sandfleet_scheduler.config import SchedulerSettings
from sandfleet_scheduler.placement import BACKOFF_MOST_SECONDS, backoff


def test_defaults_are_valid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SANDFLEET_CONFIG", raising=False)
    settings = load(SchedulerSettings, "scheduler")
    assert settings.node_silent_seconds < settings.node_lost_seconds
    assert settings.name


def test_a_setting_that_does_not_fit_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SANDFLEET_SCHEDULER_BATCH_ITEMS", "1000")
    with pytest.raises(SystemExit):
        load(SchedulerSettings, "scheduler")
    assert "batch_items" in capsys.readouterr().err


def test_backoff_grows_and_has_an_end() -> None:
    pauses = [backoff(tries, 1.0) for tries in range(30)]
    assert pauses == sorted(pauses)
    assert pauses[-1] == BACKOFF_MOST_SECONDS
    assert backoff(3, 0.0) == backoff(3, 1.0) / 2
