"""A service's health as metrics."""

from __future__ import annotations

from prometheus_client import CollectorRegistry

from sandfleet_common.lifecycle import Health
from sandfleet_common.metrics import HealthMetrics


def _shown(health: Health) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(HealthMetrics(health))
    return registry


def test_a_check_that_finds_something_shows_as_zero() -> None:
    health = Health()
    health.checks["bus"] = lambda: None
    health.checks["store"] = lambda: "Redis does not answer"
    shown = _shown(health)
    assert shown.get_sample_value("sandfleet_health_check", {"check": "bus"}) == 1
    assert shown.get_sample_value("sandfleet_health_check", {"check": "store"}) == 0


def test_a_warning_shows_too() -> None:
    health = Health()
    health.warnings["ebpf"] = lambda: "not attached"
    assert _shown(health).get_sample_value("sandfleet_health_check", {"check": "ebpf"}) == 0


def test_a_check_and_a_warning_of_one_name_are_one_sample() -> None:
    health = Health()
    health.checks["keys"] = lambda: None
    health.warnings["keys"] = lambda: "a line is not understood"
    (_, checks) = HealthMetrics(health).collect()
    assert [(s.labels, s.value) for s in checks.samples] == [({"check": "keys"}, 0)]


def test_readiness_shows() -> None:
    health = Health()
    shown = _shown(health)
    assert shown.get_sample_value("sandfleet_health_ready") == 0
    health.is_ready = True
    assert shown.get_sample_value("sandfleet_health_ready") == 1
