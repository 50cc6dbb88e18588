"""`sandfleet up` and `down`: a whole platform appears, answers, and goes without a trace."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import pytest
from requirements import REPOSITORY, need_root
from traces import traces

from sandfleet import AsyncClient, local
from sandfleet_common.errors import Conflict, Unreachable

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(240)]

SILENT = "from sandfleet import local; local.up(local.state_dir(), progress=lambda line: None)"


def ignore(line: str) -> None:
    """Show no progress."""


@pytest.fixture
def place(tmp_path: Path) -> Generator[Path]:
    """Return a state directory with the layers of the checkout; whatever is up there ends."""
    need_root()
    shared = Path(os.environ.get("SANDFLEET_STATE_DIR", REPOSITORY / ".sandfleet")) / "layers"
    shared.mkdir(parents=True, exist_ok=True)
    (tmp_path / "layers").symlink_to(shared)
    yield tmp_path
    local.down(tmp_path, progress=ignore)


def conditions(state: Path) -> dict[str, str]:
    return {part.name: part.condition for part in local.status(state)}


async def test_a_platform_comes_up_works_and_leaves_nothing(place: Path) -> None:
    before = traces(place)
    assert local.find(place) is None
    assert local.status(place) == []
    endpoints = local.up(place, progress=ignore)
    assert local.find(place) == endpoints
    assert set(conditions(place).values()) == {"ready"}
    ports = {part.name: part.port for part in local.status(place) if part.port is not None}
    addresses = {"nats": endpoints.nats, "redis": endpoints.redis, "gateway": endpoints.gateway}
    assert ports == {name: urlsplit(address).port for name, address in addresses.items()}
    metrics = {part.name: part.metrics_port for part in local.status(place)}
    assert metrics == {name: endpoints.metrics.get(name) for name in metrics}
    assert stat.S_IMODE((place / "run" / "endpoints.json").stat().st_mode) == 0o600
    async with AsyncClient.connect(state=place) as client:
        left = await client.create()  # and not stopped: down ends it
        assert (await left.run(["echo", "here"])).stdout == b"here\n"
    local.down(place, progress=ignore)
    assert traces(place) == before
    assert local.find(place) is None
    assert local.status(place) == []


async def test_the_gateway_takes_the_key_that_was_made_for_it(place: Path) -> None:
    endpoints = local.up(place, progress=ignore)
    key = endpoints.api_key_file.read_text().strip()
    async with httpx.AsyncClient(base_url=endpoints.gateway) as http:
        refused = await http.get("/v1/sandboxes")
        taken = await http.get("/v1/sandboxes", headers={"Authorization": f"Bearer {key}"})
    assert (refused.status_code, taken.status_code) == (401, 200)


def test_a_second_up_changes_nothing(place: Path) -> None:
    first = local.up(place, progress=ignore)
    told: list[str] = []
    assert local.up(place, progress=told.append) == first
    assert told == ["already up"]


def test_two_at_once_start_one_platform(place: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", SILENT], env={**os.environ, "SANDFLEET_STATE_DIR": str(place)}
        )
        for _ in range(2)
    ]
    assert [process.wait(timeout=200) for process in started] == [0, 0]
    assert set(conditions(place).values()) == {"ready"}
    scheduler = [line for line in traces(place)["processes"] if "sandfleet_scheduler" in line]
    assert len(scheduler) == 1


def test_up_starts_again_only_what_has_died(place: Path) -> None:
    first = local.up(place, progress=ignore)
    os.kill(first.pids["scheduler"], signal.SIGKILL)
    while conditions(place)["scheduler"] != "died":
        pass
    second = local.up(place, progress=ignore)
    changed = {name for name in first.pids if first.pids[name] != second.pids[name]}
    assert changed == {"scheduler"}
    assert (second.nats, second.redis, second.metrics) == (first.nats, first.redis, first.metrics)
    assert set(conditions(place).values()) == {"ready"}


async def test_down_removes_what_a_killed_node_has_left(place: Path) -> None:
    before = traces(place)
    endpoints = local.up(place, progress=ignore)
    async with AsyncClient.connect(state=place) as client:
        await client.create()
    os.kill(endpoints.pids["node"], signal.SIGKILL)
    local.down(place, progress=ignore)
    assert traces(place) == before


def test_a_service_that_does_not_start_is_named_and_nothing_stays(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = traces(place)
    monkeypatch.setenv("SANDFLEET_SCHEDULER_DRAIN_SECONDS", "-1")
    with pytest.raises(Unreachable) as caught:
        local.up(place, progress=ignore)
    assert "scheduler ended at once" in caught.value.message
    assert "doctor line" in caught.value.message
    assert "setting drain_seconds" in caught.value.message
    assert traces(place) == before


def test_a_host_that_lacks_something_is_told_the_doctors_line(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = traces(place)
    with monkeypatch.context() as changed, pytest.raises(Conflict) as caught:
        changed.setenv("PATH", str(place))
        local.up(place, progress=ignore)
    assert "redis-server" in caught.value.fields["doctor"]
    assert "apt-get install redis-server" in caught.value.message
    assert traces(place) == before


def test_down_without_up_is_no_error(place: Path) -> None:
    told: list[str] = []
    local.down(place, progress=told.append)
    assert told == ["nothing is up"]
    assert [path.name for path in place.iterdir()] == ["layers"]
