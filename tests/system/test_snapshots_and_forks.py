"""Snapshots, forks, named environments: a whole platform, over NATS and through its gateway."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import pytest_asyncio
from system.trees import SHAPES, digest_of

from sandfleet import (
    AsyncClient,
    AsyncSandbox,
    BadRequest,
    Client,
    NotFound,
    SandboxFailed,
    SandboxSpec,
)
from sandfleet.endpoints import local_gateway
from sandfleet_common.messages import EnvironmentInfo, SnapshotState

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(240)]


@pytest_asyncio.fixture(params=["nats", "gateway"])
async def either(request: pytest.FixtureRequest, platform: Path) -> AsyncGenerator[AsyncClient]:
    """Connect as a trainer beside the platform, and as one far away."""
    if request.param == "nats":
        way = AsyncClient.connect(state=platform)
    else:
        place = local_gateway(platform)
        way = AsyncClient.connect(url=place.url, api_key=place.api_key)
    async with way as client:
        yield client


@pytest.fixture
def name() -> str:
    """Return a name that nobody else has; what begins with test- is forgotten in the end."""
    return f"test-{uuid4().hex[:12]}"


async def said(sandbox: AsyncSandbox, command: str) -> str:
    return (await sandbox.run(command, check=True)).text


async def test_a_restored_sandbox_begins_with_what_was_written(either: AsyncClient) -> None:
    async with await either.create(SandboxSpec(env={"A": "1"}, workdir="/srv")) as sandbox:
        await said(sandbox, "echo one > /srv/file; rm /etc/issue; useradd -m somebody || true")
        snapshot = await sandbox.snapshot(description="a test's")
        assert snapshot.state is SnapshotState.READY
        assert snapshot.layer is not None
        await said(sandbox, "echo two > /srv/file")
    async with await either.restore(snapshot, SandboxSpec(ttl_seconds=300)) as other:
        assert await said(other, "pwd; cat file; test -e /etc/issue || echo gone") == (
            "/srv\none\ngone\n"
        )
        assert await said(other, "echo $A") == "\n", "variables may be secrets, and are not kept"
        assert other.info_now.spec.ttl_seconds == 300
        assert other.info_now.spec.environment == snapshot.id
    await snapshot.remove()
    with pytest.raises(NotFound):
        await either.restore(snapshot.id)


async def test_a_snapshot_that_nobody_waits_for_is_a_job(either: AsyncClient) -> None:
    async with await either.create() as sandbox:
        await said(sandbox, "head -c 20000000 /dev/urandom > /root/much")
        snapshot = await sandbox.snapshot(wait=False)
        async with await either.restore(snapshot.id) as other:
            assert await said(other, "stat -c %s /root/much") == "20000000\n"
        ready = await snapshot.wait(deadline=60)
    assert (ready.state, ready.failure) == (SnapshotState.READY, None)
    assert ready.layer is not None
    assert ready.layer.size_bytes >= 20_000_000
    await snapshot.remove()
    with pytest.raises(NotFound):
        await snapshot.wait(deadline=5)


async def test_a_failed_snapshot_says_why_and_is_on_record(client: AsyncClient, name: str) -> None:
    async with await client.create() as sandbox:
        await said(sandbox, f"mkdir /srv/deep; : > /srv/deep/{'n' * 255}")
        try:
            snapshot = await sandbox.snapshot(name=name)
        except SandboxFailed as problem:
            assert "packing failed: /srv/deep has a name of 255 bytes" in problem.message
            snapshot = await client.snapshots.get(str(problem.fields["snapshot"]))
            assert (snapshot.state, snapshot.info_now.name) == (SnapshotState.FAILED, name)
            with pytest.raises(SandboxFailed, match="255 bytes"):
                await client.restore(snapshot)
            # Whoever names it without looking first is not kept waiting for it either.
            with pytest.raises(NotFound, match=r"failed.*255 bytes"):
                await client.create(SandboxSpec(environment=snapshot.id))
        else:
            async with await client.restore(snapshot) as other:
                assert await said(other, "ls /srv/deep | wc -c") == "256\n"
        assert (await sandbox.run("echo alive", check=True)).text == "alive\n"
        await snapshot.remove()


async def test_children_of_a_fork_see_their_parents_files_and_not_each_others(
    either: AsyncClient,
) -> None:
    async with await either.create(SandboxSpec(labels={"who": "parent"})) as parent:
        await said(parent, "echo parent > /root/shared")
        fork = await parent.fork(5, env={"CHILD": "yes"}, labels={"who": "child"})
        async with fork:
            assert fork.failures == []
            assert len({child.id for child in fork.children}) == 5
            for child in fork.children:
                await said(
                    child, f"cp /root/shared /root/{child.id}; echo {child.id} > /root/shared"
                )
            for child in fork.children:
                assert await said(child, "cat /root/shared; ls /root; echo $CHILD") == (
                    f"{child.id}\n{child.id}\nshared\nyes\n"
                )
                assert (await child.info()).spec.labels == {"who": "child"}
        assert await said(parent, "cat /root/shared; ls /root") == "parent\nshared\n"
        assert [s.id async for s in either.list(labels={"who": "child"})] == []


async def test_a_fork_of_none_is_refused(client: AsyncClient, sandbox: AsyncSandbox) -> None:
    with pytest.raises(BadRequest, match="children"):
        await sandbox.fork(0)


async def test_snapshots_are_a_tree_that_is_listed_named_and_pruned(
    either: AsyncClient, name: str
) -> None:
    async with await either.create() as sandbox:
        root = await sandbox.snapshot(labels={"run": name})
    async with await either.restore(root) as sandbox:
        limb = await sandbox.snapshot(name=name, labels={"run": name})
        assert limb.info_now.parent == root.id
        other = await sandbox.snapshot(labels={"run": name})
    async with await either.restore(limb) as sandbox:
        leaf = await sandbox.snapshot(labels={"run": name})

    async def ids(**wanted: Any) -> list[str]:
        found = either.snapshots.list(labels={"run": name}, **wanted)
        return [snapshot.id async for snapshot in found]

    assert await ids() == [leaf.id, other.id, limb.id, root.id], "newest first"
    assert await ids(name=name) == [limb.id]
    assert await ids(parent=root.id) == [other.id, limb.id]
    assert await ids(sandbox_id=limb.info_now.sandbox_id) == [other.id, limb.id]
    named = await (await either.snapshots.get(leaf.id)).update(name=f"{name}-leaf")
    assert (named.name, named.labels) == (f"{name}-leaf", {"run": name})
    assert set(await limb.remove(descendants=True)) == {limb.id, leaf.id}
    assert await ids() == [other.id, root.id]
    assert await root.remove() == [root.id]
    assert await ids() == [other.id], "what was made from it stays"
    async with await either.restore(other) as sandbox:
        assert await said(sandbox, "echo works") == "works\n"
    await other.remove()


async def test_a_snapshots_layers_get_a_name_and_versions(either: AsyncClient, name: str) -> None:
    async def published(content: str, reference: str) -> EnvironmentInfo:
        async with await either.create() as sandbox:
            await said(sandbox, f"echo {content} > /srv/file")
            snapshot = await sandbox.snapshot()
        info = await either.environments.publish(reference, snapshot.info_now.layers)
        again = await either.environments.publish(info.name, snapshot.info_now.layers)
        assert again.version == info.version, "the same again is no new version"
        await snapshot.remove()
        return info

    first = await published("one", f"{name}:12.1")
    second = await published("two", name)
    assert first.version == "12.1"
    assert first.layers[1:] == second.layers[1:], "they share what they stand on"
    assert (await either.environments.get(name)).version == second.version
    assert await either.environments.get(f"{name}:12.1") == first
    found = [e async for e in either.environments.list(prefix=name, versions=True)]
    assert {e.version for e in found} == {"12.1", second.version}
    assert len([e async for e in either.environments.list(prefix=name)]) == 1
    for reference, content in ((f"{name}:12.1", "one"), (name, "two")):
        async with await either.create(SandboxSpec(environment=reference)) as sandbox:
            assert await said(sandbox, "cat /srv/file") == f"{content}\n"
    told = await either.environments.collect(dry_run=True)
    assert told.kept > 0
    await either.environments.remove(f"{name}:12.1")
    with pytest.raises(NotFound):
        await either.environments.get(f"{name}:12.1")
    await either.environments.remove(name)
    with pytest.raises(NotFound):
        await either.environments.get(name)


async def test_a_snapshot_restored_and_taken_again_twenty_times_stays_the_same(
    client: AsyncClient,
) -> None:
    first = await client.create()
    async with first:
        await first.files.write("/root/shapes.py", SHAPES)
        await said(first, "python3 /root/shapes.py")
        wanted = await digest_of(first)
        await said(first, "echo x > /srv/proof")
        assert await digest_of(first) != wanted, "the digest sees a new file"
        await said(first, "rm /srv/proof")
        # Its directory has another time now, which the digest sees, too.
        wanted = await digest_of(first)
        taken = [await first.snapshot(scrub=False)]
    try:
        for time in range(20):
            async with await client.restore(taken[-1]) as sandbox:
                assert await digest_of(sandbox) == wanted, f"after {time + 1} times"
                taken.append(await sandbox.snapshot(scrub=False))
        assert len(taken[-1].info_now.layers) < 20, "long lines become short ones"
    finally:
        await taken[0].remove(descendants=True)


def test_the_blocking_side_does_the_same(platform: Path) -> None:
    with Client(state=platform) as client, client.create() as sandbox:
        sandbox.run("echo one > /srv/file", check=True)
        snapshot = sandbox.snapshot(wait=False)
        snapshot.wait(deadline=60)
        with client.restore(snapshot) as other:
            assert other.run("cat /srv/file", check=True).text == "one\n"
        with sandbox.fork(2) as fork:
            assert [c.run("cat /srv/file").text for c in fork.children] == ["one\n"] * 2
        assert snapshot.id in [found.id for found in client.snapshots.list()]
        assert "debian" in [found.name for found in client.environments.list()]
        snapshot.remove()


# ---------------------------------------------------------------- command line


@pytest.fixture
def cli(platform: Path) -> Generator[Any]:
    async def run(*arguments: str) -> str:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sandfleet.cli", "--state", str(platform), *arguments,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, _ = await process.communicate()
        assert process.returncode == 0, arguments
        return out.decode()

    yield run


async def test_the_command_line_keeps_multiplies_and_forgets(
    client: AsyncClient, sandbox: AsyncSandbox, cli: Any, name: str
) -> None:
    await said(sandbox, "echo one > /srv/file")
    made = (await cli("snapshot", "create", sandbox.id[-8:], "--label", f"run={name}")).strip()
    child = (await cli("create", "-e", made)).strip()
    inner = json.loads(await cli("snapshot", "create", child, "--label", f"run={name}", "--json"))
    assert inner["parent"] == made
    lines = (await cli("snapshot", "tree")).splitlines()
    at = next(number for number, line in enumerate(lines) if line.startswith(made))
    assert inner["snapshot_id"] in lines[at + 1]
    assert lines[at + 1].startswith(("├", "└"))
    assert (await cli("snapshot", "name", made, name)).split() == [made, name]
    assert (await cli("snapshot", "list", "-q", "--name", name)).split() == [made]
    assert json.loads(await cli("snapshot", "list", "--json", "--name", name))[0]["name"] == name

    version = (await cli("env", "publish", name, made)).strip()
    lock = json.loads(await cli("env", "inspect", "--json", version))
    assert f"{lock['name']}:{lock['version']}" == version
    assert len(lock["layers"]) == 2
    assert (await cli("env", "list", "-q", name)).split() == [name]
    assert json.loads(await cli("env", "gc", "--dry-run", "--json"))["kept"] > 0
    assert json.loads(await cli("env", "rm", "--json", name)) == {"removed": [name]}

    children = (await cli("fork", sandbox.id, "2", "--label", "run=fork")).split()
    for one in children:
        assert await cli("exec", one, "--", "cat", "/srv/file") == "one\n"
    ended = json.loads(await cli("rm", "--json", child, *children))
    assert (ended["matched"], ended["done"], ended["failures"]) == (3, 3, [])
    gone = json.loads(await cli("snapshot", "rm", "--json", "--descendants", made))
    assert set(gone["snapshot_ids"]) == {made, inner["snapshot_id"]}


async def test_sandboxes_of_function_calls_are_nobodys_to_list_or_end(
    client: AsyncClient, sandbox: AsyncSandbox, cli: Any
) -> None:
    (await client.call("print(1)")).check()
    everything = set((await cli("ps", "-q", "--all-kinds")).split())
    listed = set((await cli("ps", "-q")).split())
    assert sandbox.id in listed < everything
    assert {*(await cli("ps", "-q", "--label", "sandfleet.role=function")).split()} == (
        everything - listed
    )
