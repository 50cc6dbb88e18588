"""From a call in a sandbox to an alert on record; and what monitors share."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import pytest
from servers import Connect, Servers
from watching import REPOSITORY, Cage, Heard, Running, running

from sandfleet_common import subjects
from sandfleet_common.bus import Bus
from sandfleet_common.errors import BadRequest
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.messages import (
    Alert,
    AlertList,
    Fact,
    FactBatch,
    SandboxInfo,
    SandboxStop,
    Severity,
)
from sandfleet_common.store import Store

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60)]

NODE = "n1"


class Alerts:
    """Alerts as the bus carries them."""

    def __init__(self) -> None:
        self.alerts: list[Alert] = []
        self._news = asyncio.Event()

    async def hear(self, alert: Alert) -> None:
        self.alerts.append(alert)
        self._news.set()

    async def until(self, rule: str, count: int = 1) -> list[Alert]:
        async with asyncio.timeout(20):
            while len(self.of(rule)) < count:
                self._news.clear()
                await self._news.wait()
        return self.of(rule)

    def of(self, rule: str) -> list[Alert]:
        return [alert for alert in self.alerts if alert.rule == rule]


@pytest.fixture
async def alerts(connect: Connect) -> Alerts:
    alerts = Alerts()
    bus = await connect("trainer")
    await bus.listen(subjects.SECURITY_ALERT, alerts.hear)
    await bus.flush()
    return alerts


def batch(*facts: Fact, lost: int = 0) -> FactBatch:
    return FactBatch(node=NODE, sequence=0, facts=list(facts), lost=lost)


def fact(sandbox: str, kind: str, **fields: Any) -> Fact:
    values: dict[str, Any] = {"at": 1.0, "pid": 9, "uid": 0, "program": "x", "result": -1}
    return Fact(sandbox_id=sandbox, kind=kind, **values | fields)


async def tell(bus: Bus, *facts: Fact) -> None:
    await bus.publish(subjects.SECURITY_FACTS, batch(*facts), node=NODE)


async def on_record(bus: Bus, count: int, **query: Any) -> list[Alert]:
    """Return the alerts on record, once there are so many."""
    async with asyncio.timeout(20):
        while True:
            page = await bus.ask(subjects.ALERT_LIST, AlertList(**query), within=5)
            if len(page.alerts) >= count:
                return page.alerts
            await asyncio.sleep(0.02)


@pytest.mark.root
@pytest.mark.usefixtures("sensor", "monitor")
async def test_a_call_in_a_sandbox_becomes_an_alert_on_the_bus_and_on_record(
    cage: Cage, alerts: Alerts, connect: Connect, store: Store
) -> None:
    sandbox, where = cage.sandbox("c1")
    cage.run(where, "call(101, 16, 1 << 22, 0, 0); call(321, 99, 0, 0)")
    (alert,) = await alerts.until("ebpf")
    assert (alert.sandbox_id, alert.severity) == (sandbox, Severity.CRITICAL)
    assert "called bpf(99, 0, 0), which was refused: Invalid argument (EINVAL)" in alert.message
    assert alert.facts[0].kind == "bpf"
    trainer = await connect("trainer")
    listed = await on_record(trainer, 2, sandbox_id=sandbox)
    assert {a.rule for a in listed} == {"ebpf", "trace-process"}
    (worse,) = await on_record(trainer, 1, sandbox_id=sandbox, severity=Severity.HIGH)
    assert worse == alert
    assert alert in await store.alerts(AlertList(sandbox_id=sandbox))


@pytest.mark.usefixtures("monitor")
async def test_an_alert_is_kept_by_jetstream(alerts: Alerts, connect: Connect) -> None:
    bus = await connect("sensor")
    sandbox = new_sandbox_id(NODE)
    await tell(bus, fact(sandbox, "mount"))
    (alert,) = await alerts.until("mount")
    admin = await connect("admin")
    kept = await admin.store(
        subjects.SECURITY_ALERT, alert, once=alert.alert_id, sandbox=alert.sandbox_id
    )
    assert not kept, "the stream did not hold it already"


async def test_several_monitors_share_what_they_know_of_a_sandbox(
    monitor: Running, servers: Servers, alerts: Alerts, connect: Connect, tmp_path: Path
) -> None:
    bus = await connect("sensor")
    sandbox = new_sandbox_id(NODE)
    async with running("monitor", servers, tmp_path / "second.log") as second:
        for _ in range(40):
            await tell(bus, fact(sandbox, "mount"))
        await tell(bus, fact(sandbox, "bpf"))
        (alert,) = await alerts.until("ebpf")
        both = (monitor, second)
        seen = "sandfleet_monitor_facts_total"
        async with asyncio.timeout(20):
            while sum([await m.metric(seen) for m in both]) < 41:
                await asyncio.sleep(0.02)
        assert min([await m.metric(seen) for m in both]) > 0
        repeated = 'sandfleet_monitor_alerts_repeated_total{rule="mount"}'
        assert sum([await m.metric(repeated) for m in both]) == 39
    assert len(alerts.of("mount")) == 1
    assert alert.score == pytest.approx(75, abs=1)


@pytest.mark.usefixtures("monitor")
async def test_a_monitor_that_starts_anew_knows_the_score(
    servers: Servers, alerts: Alerts, connect: Connect, tmp_path: Path, monitor: Running
) -> None:
    bus = await connect("sensor")
    sandbox = new_sandbox_id(NODE)
    await tell(bus, fact(sandbox, "mount"))
    await alerts.until("mount")
    monitor.process.terminate()
    await monitor.process.wait()
    async with running("monitor", servers, tmp_path / "second.log"):
        await tell(bus, fact(sandbox, "mount"), fact(sandbox, "bpf"))
        (alert,) = await alerts.until("ebpf")
    assert alert.score == pytest.approx(75, abs=1)
    assert len(alerts.of("mount")) == 1


async def test_facts_about_another_nodes_sandbox_are_refused_and_counted(
    monitor: Running, alerts: Alerts, connect: Connect
) -> None:
    bus = await connect("sensor")
    own = new_sandbox_id(NODE)
    await tell(bus, fact(new_sandbox_id("n2"), "mount"), fact("../odd", "mount"))
    await tell(bus, fact(own, "bpf"))
    await alerts.until("ebpf")
    assert alerts.of("mount") == []
    assert await monitor.metric("sandfleet_monitor_facts_refused_total") == 2


@pytest.mark.usefixtures("monitor")
async def test_alerts_raised_while_redis_is_away_are_on_record_afterwards(
    servers: Servers, alerts: Alerts, connect: Connect
) -> None:
    bus = await connect("sensor")
    sandbox = new_sandbox_id(NODE)
    servers.redis.stop()
    await tell(bus, fact(sandbox, "mount"))
    await alerts.until("mount")
    servers.redis.start()
    listed = await on_record(await connect("trainer"), 1, sandbox_id=sandbox)
    assert [alert.rule for alert in listed] == ["mount"]


async def test_without_redis_a_monitor_is_not_ready_and_with_it_again(
    monitor: Running, servers: Servers
) -> None:
    servers.redis.stop()
    await monitor.until(lambda status, health: status == 503 and "store" in health["problems"])
    servers.redis.start()
    await monitor.until(lambda status, health: status == 200)


@pytest.mark.usefixtures("monitor")
async def test_a_list_for_what_is_no_sandbox_is_a_bad_request(connect: Connect) -> None:
    trainer = await connect("trainer")
    with pytest.raises(BadRequest, match="is not a sandbox id") as caught:
        await trainer.ask(subjects.ALERT_LIST, AlertList(sandbox_id="x"), within=5)
    assert caught.value.code == "bad_request"


async def test_a_score_may_end_a_sandbox_when_that_is_asked_for(
    servers: Servers, connect: Connect, tmp_path: Path
) -> None:
    await (await connect("admin")).ensure_streams()
    asked: asyncio.Queue[SandboxStop] = asyncio.Queue()

    async def stop(request: SandboxStop) -> SandboxInfo:
        await asked.put(request)
        raise BadRequest("this node has no sandboxes")

    await (await connect("node")).serve(subjects.STOP, stop, node=NODE)
    bus = await connect("sensor")
    mild, wild = new_sandbox_id(NODE), new_sandbox_id(NODE)
    async with running("monitor", servers, tmp_path / "log", kill_at="50") as monitor:
        await tell(bus, fact(mild, "mount"), fact(wild, "mount"), fact(wild, "bpf"))
        async with asyncio.timeout(20):
            request = await asked.get()
        assert request.sandbox_id == wild
        assert "reached a score of 75" in request.reason
        await monitor.until_metric('sandfleet_monitor_kills_total{outcome="failed"}')
    assert asked.empty()


async def test_a_wrong_rule_stops_the_start_and_is_named(servers: Servers, tmp_path: Path) -> None:
    shipped = REPOSITORY / "services/security/sandfleet_security/rules/mounts.yaml"
    text = shipped.read_text().replace("severity: critical", "severity: terrible", 1)
    (tmp_path / "mine.yaml").write_text(text)
    process = await asyncio.create_subprocess_exec(
        *(str(REPOSITORY / ".venv/bin/python"), "-m", "sandfleet_security", "monitor"),
        env=servers.environment("monitor", rules=str(tmp_path)),
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, said = await asyncio.wait_for(process.communicate(), 20)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
    assert process.returncode == 1
    assert said.decode().startswith("monitor: mine.yaml: rule unmount, field severity: Input")
    assert said.count(b"\n") == 1


@pytest.mark.root
@pytest.mark.usefixtures("sensor", "monitor")
async def test_the_facts_that_were_lost_are_told(cage: Cage, heard: Heard, alerts: Alerts) -> None:
    sandbox, where = cage.sandbox("c1")
    cage.run(where, "for _ in range(30_000): call(101, 24, 1 << 22, 0, 0)")
    (alert,) = await alerts.until("flood-of-calls")
    assert alert.sandbox_id == sandbox
    assert "facts of the kind ptrace were held back" in alert.message
    await heard.until(lambda found: found.kind == "held-back")
