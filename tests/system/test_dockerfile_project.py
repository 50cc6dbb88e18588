"""The acceptance: a real project from the package index, built, tested, its toolkit replaced."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sandfleet import AsyncClient, SandboxSpec
from sandfleet.building.builder import Builder, Source
from sandfleet.building.events import Event, Step
from sandfleet.building.toolkits import Addition, Kit, assemble
from sandfleet.building.workshop import BuildFailed, Means
from sandfleet_common.messages import LayerKind, Network

pytestmark = [
    pytest.mark.root,
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(600),
]
PROJECT = Path(__file__).resolve().parents[2] / "examples" / "dockerfile-project"


@pytest.fixture
async def indexed(client: AsyncClient) -> AsyncClient:
    """Skip unless a build sandbox reaches the package indexes of Debian and Python."""
    async with await client.create(SandboxSpec(network=Network.BUILD)) as sandbox:
        result = await sandbox.run("timeout 60 apt-get update -qq 2>&1", timeout=90)
    if not result.ok or "Err:" in result.text or "Failed" in result.text:
        reason = result.text.strip().splitlines()[-1:] or ["no answer"]
        pytest.skip(f"the package index is not reachable from a build sandbox: {reason[0]}")
    return client


def states(events: list[Event]) -> list[str]:
    steps = [event for event in events if isinstance(event, Step)]
    return [step.state for step in steps if step.state not in ("started", "packing")]


async def built(client: AsyncClient, name: str, **arguments: str) -> tuple[list[str], list[str]]:
    """Build the example; return what became of its steps, and its layers, top first."""
    events: list[Event] = []
    source = Source.of_directory(PROJECT, arguments=arguments)
    info = await Builder(client, report=events.append).build(source, name)
    return states(events), [layer.digest for layer in info.layers]


async def check_passes(client: AsyncClient, environment: str) -> None:
    """Run the project's own tests in a sandbox without a network."""
    async with await client.create(SandboxSpec(environment=environment)) as sandbox:
        result = await sandbox.run("check", check=True, timeout=120)
        assert "compiled: /opt/venv/" in result.text
        assert " passed" in result.text.splitlines()[-1]
        assert " failed" not in result.text


async def test_a_real_project_is_built_and_its_tests_pass(indexed: AsyncClient) -> None:
    _, first = await built(indexed, "test-markupsafe")
    await check_passes(indexed, "test-markupsafe")

    found, same = await built(indexed, "test-markupsafe")
    assert set(found) == {"cached"}
    assert same == first

    _, other = await built(indexed, "test-markupsafe", PYTEST="8.2.2")
    found, again = await built(indexed, "test-markupsafe", PYTEST="8.2.2")
    assert set(found) == {"cached"}
    assert again == other
    assert other[0] != first[0]
    assert other[1:] == first[1:]
    await check_passes(indexed, "test-markupsafe")


async def test_replacing_a_toolkit_builds_one_layer(indexed: AsyncClient, tmp_path: Path) -> None:
    (tmp_path / "work").write_text("work\n")

    async def kit(version: str, events: list[Event]) -> list[str]:
        made = Kit("debian", pip=[f"six=={version}"], additions=[Addition(tmp_path, "/work")])
        info = await assemble(Builder(indexed, report=events.append), made, "test-kit")
        assert info.layers[0].kind is LayerKind.TOOLKIT
        assert info.layers[0].notes["built_on.distribution"].startswith("debian")
        return [layer.digest for layer in info.layers]

    first = await kit("1.16.0", [])
    events: list[Event] = []
    second = await kit("1.17.0", events)
    assert states(events)[:-1] == ["cached"] * (len(states(events)) - 1)
    assert second[1:] == first[1:]
    assert second[0] != first[0]
    async with await indexed.create(SandboxSpec(environment="test-kit")) as sandbox:
        code = "import six; print(six.__version__, open('/work/work').read())"
        result = await sandbox.run(["python3", "-c", code], check=True)
        assert result.text == "1.17.0 work\n\n"


async def test_a_package_that_does_not_exist_fails_its_step_with_the_reason(
    indexed: AsyncClient,
) -> None:
    builder = Builder(indexed, means=Means(timeout_seconds=300))
    with pytest.raises(BuildFailed) as caught:
        async with asyncio.timeout(200):
            await assemble(builder, Kit("debian", apt=["no-such-package-at-all"]), "test-kit")
    assert "no-such-package-at-all" in " ".join(caught.value.fields["output"])
