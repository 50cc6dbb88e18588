"""The monitor: facts of all machines in, alerts out. Any number may run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence

from sandfleet_common import subjects
from sandfleet_common.bus import Bus, Subscription
from sandfleet_common.errors import BadRequest, SandfleetError, Unreachable
from sandfleet_common.ids import node_of
from sandfleet_common.lifecycle import Health, Tasks, serve
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    Alert,
    AlertList,
    AlertPage,
    FactBatch,
    SandboxStop,
)
from sandfleet_common.metrics import exposed
from sandfleet_common.settings import load
from sandfleet_common.store import Store

from .config import MonitorSettings
from .core import Suspicion, judge, suspect
from .metrics import MonitorMetrics
from .outbox import Outbox
from .rules import Rule, load_rules
from .standings import Standings

KILLS_WAITING = 1000
STORE_SECONDS = 2.0


class Monitor:
    """Judges facts by rules; one of the monitors gets each batch."""

    name = "monitor"

    def __init__(
        self,
        settings: MonitorSettings,
        rules: Sequence[Rule],
        bus: Bus,
        store: Store,
        metrics: MonitorMetrics,
        health: Health,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._rules = rules
        self._bus = bus
        self._store = store
        self._metrics = metrics
        self._log = log
        self._standings = Standings(store, settings.forget_seconds)
        limit = settings.alerts_waiting
        self._to_stream = Outbox("JetStream", self._keep, limit=limit, log=log)
        self._to_store = Outbox("Redis", store.add_alerts, limit=limit, log=log)
        self._outboxes = (self._to_stream, self._to_store)
        self._tasks = Tasks(log)
        self._subscriptions: list[Subscription] = []
        self._store_problem: str | None = None
        metrics.rules.set(len(rules))
        metrics.waiting.set_function(lambda: sum(len(box) for box in self._outboxes))
        health.checks["bus"] = lambda: None if bus.is_connected else "NATS is not connected"
        health.checks["store"] = lambda: self._store_problem

    async def run(self, ready: Callable[[], None]) -> None:
        """Work until cancelled."""
        await self._bus.ensure_streams(self._settings.stream_replicas)
        async with self._tasks as tasks:
            for box in self._outboxes:
                tasks.start(box.run(), "monitor.outbox", critical=True)
            tasks.start(self._watch_store(), "monitor.store", critical=True)
            queue = subjects.MONITOR_QUEUE
            self._subscriptions = [
                await self._bus.listen(subjects.SECURITY_FACTS, self._on_facts, queue=queue),
                await self._bus.serve(subjects.ALERT_LIST, self._on_list, queue=queue),
            ]
            await self._bus.flush()
            ready()
            raise await tasks.failed()

    async def drain(self) -> None:
        """Take no more facts, and deliver the alerts that wait."""
        for subscription in self._subscriptions:
            await subscription.close()
        for box in self._outboxes:
            await box.drained()

    async def _watch_store(self) -> None:
        while True:
            try:
                await self._store.ping()
                self._store_problem = None
            except Unreachable as problem:
                self._store_problem = problem.message
            await asyncio.sleep(STORE_SECONDS)

    # ------------------------------------------------------------------- facts

    async def _on_facts(self, batch: FactBatch) -> None:
        with self._metrics.judging.time():
            self._metrics.facts.inc(sum(fact.count for fact in batch.facts))
            self._metrics.lost.inc(batch.lost)
            facts = [fact for fact in batch.facts if _is_on(fact.sandbox_id, batch.node)]
            self._metrics.forged.inc(len(batch.facts) - len(facts))
            for sandbox_id, suspicions in suspect(self._rules, facts).items():
                await self._judge(sandbox_id, suspicions)

    async def _judge(self, sandbox_id: str, suspicions: Sequence[Suspicion]) -> None:
        judgement = await self._standings.change(
            sandbox_id,
            lambda standing: judge(
                standing,
                sandbox_id,
                suspicions,
                now=time.time(),
                half_life_seconds=self._settings.half_life_seconds,
            ),
        )
        for rule, count in judgement.repeated.items():
            self._metrics.repeated.labels(rule).inc(count)
        dropped = sum(box.dropped for box in self._outboxes)
        for alert in judgement.alerts:
            self._metrics.alerts.labels(alert.rule, alert.severity).inc()
            self._log.warning(
                "alert",
                sandbox=sandbox_id,
                rule=alert.rule,
                severity=alert.severity,
                score=alert.score,
                message=alert.message,
            )
        for box in self._outboxes:
            box.add(judgement.alerts)
        self._metrics.dropped.inc(sum(box.dropped for box in self._outboxes) - dropped)
        if judgement.alerts:
            self._consider_kill(judgement.alerts[-1])

    async def _keep(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            await self._bus.store(
                subjects.SECURITY_ALERT, alert, once=alert.alert_id, sandbox=alert.sandbox_id
            )

    # ---------------------------------------------------------------- response

    def _consider_kill(self, alert: Alert) -> None:
        limit = self._settings.kill_at
        if not limit or alert.score < limit or len(self._tasks) >= KILLS_WAITING:
            return
        reason = f"its alerts reached a score of {alert.score:g}, the last was {alert.rule}"
        self._tasks.start(self._kill(alert.sandbox_id, reason), "monitor.kill")

    async def _kill(self, sandbox_id: str, reason: str) -> None:
        try:
            await self._bus.ask(
                subjects.STOP,
                SandboxStop(sandbox_id=sandbox_id, reason=f"ended by the monitor: {reason}"),
                within=self._settings.kill_within_seconds,
                node=node_of(sandbox_id),
            )
        except SandfleetError as problem:
            self._metrics.kills.labels("failed").inc()
            self._log.error("monitor.kill_failed", sandbox=sandbox_id, error=problem.message)
            return
        self._metrics.kills.labels("done").inc()
        self._log.warning("monitor.killed", sandbox=sandbox_id, reason=reason)

    # ----------------------------------------------------------------- answers

    async def _on_list(self, query: AlertList) -> AlertPage:
        if query.sandbox_id is not None:
            node_of(query.sandbox_id)
        return AlertPage(alerts=await self._store.alerts(query))


def _is_on(sandbox_id: str, node: str) -> bool:
    try:
        return node_of(sandbox_id) == node
    except BadRequest:
        return False


async def run_monitor() -> int:
    """Run a monitor as a process, and return its exit status.

    Raises:
        BadRequest: a rule is wrong.
        Unreachable: NATS or Redis does not answer.
    """
    settings = load(MonitorSettings, "monitor")
    log = Logger("monitor", level=settings.level())
    rules = await asyncio.to_thread(load_rules, settings.rules)
    metrics, health = MonitorMetrics(), Health()
    async with (
        exposed(metrics, health, host=settings.metrics_host, port=settings.metrics_port) as port,
        Store.connect(settings.store(), log) as store,
        Bus.connect(settings.bus("monitor"), log) as bus,
    ):
        log.info("monitor.metrics", port=port, rules=len(rules))
        service = Monitor(settings, rules, bus, store, metrics, health, log)
        return await serve(service, log, health, drain_seconds=settings.drain_seconds)
