"""Every metric of the sensor and of the monitor."""

from __future__ import annotations

from sandfleet_common.metrics import Metrics

from .records import Beat


class SensorMetrics(Metrics):
    """What the sensor of one machine shows."""

    def __init__(self) -> None:
        super().__init__("sensor")
        self.attached = self.gauge("attached", "1 while the eBPF programs are attached")
        self.facts = self.counter("facts", "Facts published, those told with a count once", "kind")
        self.batches = self.counter("batches", "Messages published")
        self.lost = self.counter("lost", "Facts lost, by where", "where")
        self.starts = self.counter("program_starts", "Times the sensor program was started")
        self.waiting = self.gauge("waiting_facts", "Facts that wait for the bus")
        self.foreign = self.counter(
            "foreign_records", "Records of directories that are no sandbox of this node"
        )
        for where in ("rate-limit", "ring", "bus", "unread"):
            self.lost.labels(where)

    def add(self, before: Beat | None, now: Beat) -> int:
        """Count what one beat says beyond the one before; returns records lost for good."""
        old = (before.rate_limited, before.ring_full, before.unread) if before else (0, 0, 0)
        limited, full, unread = (
            max(0, new - was)
            for new, was in zip((now.rate_limited, now.ring_full, now.unread), old, strict=True)
        )
        self.lost.labels("rate-limit").inc(limited)
        self.lost.labels("ring").inc(full)
        self.lost.labels("unread").inc(unread)
        return full + unread


class MonitorMetrics(Metrics):
    """What a monitor shows."""

    def __init__(self) -> None:
        super().__init__("monitor")
        self.facts = self.counter("facts", "Facts received")
        self.lost = self.counter("facts_lost", "Facts that sensors said they lost")
        self.forged = self.counter("facts_refused", "Facts about sandboxes of another node")
        self.alerts = self.counter("alerts", "Alerts raised", "rule", "severity")
        self.repeated = self.counter("alerts_repeated", "Matches within a rule's window", "rule")
        self.waiting = self.gauge("waiting_alerts", "Alerts not delivered yet")
        self.dropped = self.counter("alerts_dropped", "Alerts given up, because too many waited")
        self.kills = self.counter("kills", "Sandboxes ended for their score", "outcome")
        self.judging = self.seconds("judging", "From a batch's arrival to its alerts")
        self.rules = self.gauge("rules", "Rules in force")
