"""Every query of the fleet dashboard returns data: a real Prometheus scrapes a real platform."""

from __future__ import annotations

import asyncio
import math
import os
import re
import subprocess
import time
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from deployment import GRAFANA, REPOSITORY, SERVICES, panel_queries, tool, variable_queries
from requirements import need_root
from servers import free_port

from sandfleet import AsyncClient, Resources, SandboxSpec, SandfleetError, local
from sandfleet.local import Endpoints

pytestmark = [
    pytest.mark.root,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(300),
]

ROUNDS = 60
"""How often the platform is used and asked again until every query has data."""
SMALL = SandboxSpec(resources=Resources(memory_bytes=64 * 1024**2, pids=32))
HUGE = SandboxSpec(resources=Resources(memory_bytes=2**42))
ATTEMPT = "import ctypes; ctypes.CDLL(None).syscall(321, 0, 0, 0)"
"""bpf(2), which no sandbox has a business with; seccomp refuses it and the sensor sees it."""


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, Endpoints]]:
    """Run a platform of its own on the layers built before."""
    need_root()
    state = tmp_path_factory.mktemp("watched")
    shared = Path(os.environ.get("SANDFLEET_STATE_DIR", REPOSITORY / ".sandfleet")) / "layers"
    shared.mkdir(parents=True, exist_ok=True)
    (state / "layers").symlink_to(shared)
    told: list[str] = []
    endpoints = local.up(state, progress=told.append)
    if "sensor" not in endpoints.metrics:
        local.down(state, progress=told.append)
        pytest.skip(next(line for line in told if "sensor" in line))
    yield state, endpoints
    local.down(state, progress=told.append)


@pytest.fixture(scope="module")
def prometheus(
    platform: tuple[Path, Endpoints], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[httpx.Client]:
    """Run Prometheus with our own configuration, pointed at the local platform."""
    place, port = tmp_path_factory.mktemp("prometheus"), free_port()
    config = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())
    config["global"] = dict.fromkeys(("scrape_interval", "scrape_timeout"), "1s")
    config["global"]["evaluation_interval"] = "1s"
    config["rule_files"] = [str(GRAFANA / pattern) for pattern in config["rule_files"]]
    for job in config["scrape_configs"]:
        del job["dns_sd_configs"]
        where = f"127.0.0.1:{platform[1].metrics[job['job_name']]}"
        job["static_configs"] = [{"targets": [where]}]
    (place / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        tool("prometheus"),
        f"--config.file={place / 'prometheus.yml'}",
        f"--storage.tsdb.path={place / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with (
        (place / "log").open("w") as log,
        subprocess.Popen(command, stdout=log, stderr=log) as process,
        httpx.Client(
            base_url=f"http://127.0.0.1:{port}", transport=httpx.HTTPTransport(retries=8)
        ) as http,
    ):
        try:
            while http.get("/-/ready").status_code != 200:
                assert process.poll() is None, (place / "log").read_text()
                time.sleep(0.1)
            yield http
        finally:
            process.terminate()


@pytest.fixture
async def trainer(platform: tuple[Path, Endpoints]) -> AsyncGenerator[AsyncClient]:
    async with AsyncClient.connect(state=platform[0]) as client:
        yield client


async def _use(trainer: AsyncClient, endpoints: Endpoints) -> None:
    """Do a little of everything that the dashboard shows."""
    async with await trainer.create(SMALL) as sandbox:
        await sandbox.run(["true"])
        await sandbox.run(["python3", "-c", ATTEMPT])
        await sandbox.pause(wait=5)
        await sandbox.run(["true"])
        await _show(endpoints, sandbox.id)
    async with trainer.job(SMALL, count=2, deadline_seconds=20) as job:
        async for ready in job.ready():
            await ready.run(["true"])
    await trainer.call("print(6 * 7)")
    await trainer.usage()
    with pytest.raises(SandfleetError):
        await trainer.create(HUGE, deadline=0.2)


async def _be_refused(trainer: AsyncClient) -> None:
    """Have the node refuse a sandbox: its deadline is over when the request gets there."""
    for milliseconds in (1, 2, 3, 4, 6, 8):
        try:
            sandbox = await trainer.create(SMALL, deadline=milliseconds / 1000)
        except SandfleetError:
            continue
        await sandbox.stop()


async def _show(endpoints: Endpoints, sandbox_id: str) -> None:
    key = endpoints.api_key_file.read_text().strip()
    headers = {"Authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=endpoints.gateway, headers=headers) as http:
        (await http.get(f"/v1/sandboxes/{sandbox_id}")).raise_for_status()
        assert (await http.get("/v1/sandboxes/sb-nowhere-" + "0" * 26)).status_code == 404


def _ask(prometheus: httpx.Client, expression: str) -> list[dict[str, Any]]:
    text = expression.replace("$__rate_interval", "1m")
    text = re.sub(r"\$\{?\w+\}?", ".*", text)
    answer = prometheus.get("/api/v1/query", params={"query": text})
    assert answer.status_code == 200, f"{text}: {answer.text}"
    return [
        sample
        for sample in answer.json()["data"]["result"]
        if not math.isnan(float(sample["value"][1]))
    ]


async def test_every_query_returns_data(
    prometheus: httpx.Client,
    platform: tuple[Path, Endpoints],
    trainer: AsyncClient,
) -> None:
    missing = [*panel_queries(), *(("variable", text) for text in variable_queries())]
    async with await trainer.create(SMALL):
        for _ in range(ROUNDS):
            await _use(trainer, platform[1])
            await _be_refused(trainer)
            missing = [(where, text) for where, text in missing if not _ask(prometheus, text)]
            if not missing:
                break
            await asyncio.sleep(1)
    assert missing == []


def test_every_service_is_scraped(prometheus: httpx.Client) -> None:
    found = {sample["metric"]["job"]: sample["value"][1] for sample in _ask(prometheus, "up")}
    assert found == dict.fromkeys(SERVICES, "1")


def test_every_rule_can_be_evaluated(prometheus: httpx.Client) -> None:
    groups = prometheus.get("/api/v1/rules").json()["data"]["groups"]
    ran = [rule for group in groups for rule in group["rules"]]
    assert ran
    assert [(rule["name"], rule.get("lastError")) for rule in ran if rule["health"] == "err"] == []


def test_a_legend_names_labels_that_the_data_has(prometheus: httpx.Client) -> None:
    for panel in yaml.safe_load((GRAFANA / "dashboards" / "fleet.json").read_text())["panels"]:
        for target in panel.get("targets", []):
            wanted = set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"]))
            for sample in _ask(prometheus, target["expr"]):
                assert wanted <= set(sample["metric"]), panel["title"]
