"""Environments built from Dockerfiles, on a whole platform and without a network."""

from __future__ import annotations

import asyncio
import json
import sys
import tarfile
from pathlib import Path
from uuid import uuid4

import pytest

from sandfleet import AsyncClient, BadRequest, NotFound, SandboxSpec, TimedOut
from sandfleet.building import workshop
from sandfleet.building.builder import Builder, Source
from sandfleet.building.events import Event, Output, Step
from sandfleet.building.workshop import BuildFailed, Means, Workshop
from sandfleet_common.messages import EnvironmentInfo, Network

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(240)]
OFFLINE = Means(network=Network.NONE)

DOCKERFILE = """\
ARG BASE=debian
FROM ${BASE} AS build
ARG SALT
WORKDIR /src
COPY main.sh ./
RUN sh main.sh > made && echo "$SALT" > salt

FROM debian
ARG WHO=nobody
ENV GREETING="hello ${WHO}" PATH=/opt/bin:$PATH
WORKDIR /work
COPY --from=build --chown=1000:1000 /src/made /src/salt ./
COPY --chmod=755 tool /opt/bin/
COPY tree .
RUN mkdir out && chown 1000 out
USER user
RUN id -un > out/who && printenv GREETING > out/greeting && tool > out/tool
CMD ["cat", "out/who"]
"""
"""A salt keeps the layers of one test from being those of another."""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    (tmp_path / ".dockerignore").write_text("**/*.log\n!tree/keep.log\n")
    (tmp_path / "main.sh").write_text("echo made here\n")
    (tmp_path / "tool").write_text("#!/bin/sh\necho tool ran\n")
    tree = tmp_path / "tree"
    (tree / "deep").mkdir(parents=True)
    (tree / "deep" / "file").write_text("deep\n")
    (tree / "gone.log").write_text("no\n")
    (tree / "keep.log").write_text("yes\n")
    (tree / "link").symlink_to("deep/file")
    return tmp_path


class Build:
    """One build, and what it said."""

    def __init__(self, client: AsyncClient, means: Means = OFFLINE) -> None:
        self.events: list[Event] = []
        self.builder = Builder(client, means=means, report=self.events.append)

    async def of(self, project: Path, name: str, **arguments: str) -> EnvironmentInfo:
        return await self.builder.build(Source.of_directory(project, arguments=arguments), name)

    def states(self) -> list[str]:
        steps = [event for event in self.events if isinstance(event, Step)]
        return [step.state for step in steps if step.state not in ("started", "packing")]

    def output(self) -> bytes:
        return b"".join(event.text for event in self.events if isinstance(event, Output))


@pytest.fixture
def salt() -> str:
    return uuid4().hex


async def test_a_dockerfile_becomes_an_environment_and_is_found_again(
    client: AsyncClient, project: Path, salt: str
) -> None:
    first = Build(client)
    info = await first.of(project, "test-project", SALT=salt, WHO="you")
    assert set(first.states()) <= {"done", "cached"}
    assert info.workdir == "/work"
    assert info.user == "user"
    assert info.env["GREETING"] == "hello you"
    assert info.env["PATH"].startswith("/opt/bin:/")
    assert json.loads(info.notes["cmd"]) == ["cat", "out/who"]

    async with await client.create(SandboxSpec(environment="test-project")) as sandbox:

        async def said(command: str) -> str:
            return (await sandbox.run(command, check=True)).text

        assert await said("pwd; id -un") == "/work\nuser\n"
        assert await said("cat out/who out/greeting out/tool") == "user\nhello you\ntool ran\n"
        assert await said("cat made salt; stat -c %u made") == f"made here\n{salt}\n1000\n"
        assert await said("ls; cat link") == ("deep\nkeep.log\nlink\nmade\nout\nsalt\ndeep\n")
        assert await said("stat -c %a /opt/bin/tool; which tool") == "755\n/opt/bin/tool\n"
        assert await said("ls -A / | grep -i sandfleet || echo clean") == "clean\n"

    again = Build(client)
    same = await again.of(project, "test-project", SALT=salt, WHO="you")
    assert set(again.states()) == {"cached"}
    assert same.version == info.version
    assert same.layers == info.layers


async def test_a_change_of_the_last_step_builds_one_layer(
    client: AsyncClient, project: Path, salt: str
) -> None:
    info = await Build(client).of(project, "test-project", SALT=salt)
    text = (
        (project / "Dockerfile")
        .read_text()
        .replace("&& tool >", "&& echo other | tee out/other && tool >")
    )
    (project / "Dockerfile").write_text(text)
    changed = Build(client)
    other = await changed.of(project, "test-project", SALT=salt)
    assert changed.states().count("done") == 1
    assert changed.states()[-1] == "done"
    assert b"other\n" in changed.output()
    assert other.layers[1:] == info.layers[1:]
    assert other.layers[0] != info.layers[0]
    assert other.version != info.version


async def test_a_changed_file_is_noticed_and_one_that_is_left_out_is_not(
    client: AsyncClient, project: Path, salt: str
) -> None:
    await Build(client).of(project, "test-project", SALT=salt)
    (project / "tree" / "gone.log").write_text("changed\n")
    same = Build(client)
    await same.of(project, "test-project", SALT=salt)
    assert set(same.states()) == {"cached"}
    (project / "tree" / "deep" / "file").write_text("changed\n")
    changed = Build(client)
    await changed.of(project, "test-project", SALT=salt)
    assert changed.states().count("done") == 3


async def test_a_step_that_fails_says_where_and_what_it_printed(
    client: AsyncClient, project: Path
) -> None:
    (project / "Dockerfile").write_text("FROM debian\n\nRUN echo first; echo second >&2; exit 7\n")
    build = Build(client)
    with pytest.raises(BuildFailed) as caught:
        await build.of(project, "test-failing")
    assert "Dockerfile:3" in caught.value.message
    assert "exited with 7" in caught.value.message
    assert "second" in caught.value.message
    assert build.states() == ["failed"]
    left = client.list(labels={"sandfleet.build": "1"})
    assert [sandbox.id async for sandbox in left] == []


async def test_the_sandbox_of_a_failed_step_can_be_kept(client: AsyncClient, project: Path) -> None:
    (project / "Dockerfile").write_text("FROM debian\nRUN touch /here; false\n")
    build = Build(client, Means(network=Network.NONE, keep=True))
    with pytest.raises(BuildFailed):
        await build.of(project, "test-failing")
    kept = [sandbox async for sandbox in client.list(labels={"sandfleet.build": "1"})]
    assert len(kept) == 1
    async with kept[0] as sandbox:
        assert await sandbox.files.exists("/here")


async def test_an_environment_from_scratch_holds_only_what_was_copied(
    client: AsyncClient, project: Path
) -> None:
    (project / "Dockerfile").write_text(
        "FROM debian AS build\n"
        "RUN mkdir -p /out/bin /out/lib64 && cp -L /bin/sh /bin/cat /out/bin/ \\\n"
        "    && for f in $(ldd /bin/sh /bin/cat | grep -o '/[^ )]*'); do \\\n"
        "         [ -f $f ] && mkdir -p /out$(dirname $f) && cp -L $f /out$f; done; true\n"
        "FROM scratch\n"
        "COPY --from=build /out /\n"
        "COPY main.sh /etc/\n"
    )
    info = await Build(client).of(project, "test-scratch")
    assert len(info.layers) == 1
    async with await client.create(SandboxSpec(environment="test-scratch")) as sandbox:
        result = await sandbox.run(["/bin/cat", "/etc/main.sh"], check=True, user="0", cwd="/")
        assert result.stdout == b"echo made here\n"
        assert not await sandbox.files.exists("/usr/bin/python3", user="0")


@pytest.mark.parametrize(
    ("dockerfile", "said"),
    [
        ("FROM debian\nCOPY missing /x\n", "Dockerfile:2: there is no 'missing'"),
        ("FROM debian\nCOPY --from=debian /no/such /x\n", "Dockerfile:2: there is no '/no/such'"),
        ("FROM debian\nCOPY --chown=nobody-here main.sh /x\n", "no 'nobody-here'"),
        ("FROM scratch\nRUN true\n", "Dockerfile:2: RUN needs something to run"),
    ],
)
async def test_what_cannot_be_carried_out_names_its_line(
    client: AsyncClient, project: Path, dockerfile: str, said: str
) -> None:
    (project / "Dockerfile").write_text(dockerfile)
    with pytest.raises(BadRequest) as caught:
        await Build(client).of(project, "test-wrong")
    assert said in caught.value.message


async def test_two_who_build_the_same_end_with_the_same_layers(
    client: AsyncClient, project: Path, salt: str
) -> None:
    first, second = await asyncio.gather(
        *(Build(client).of(project, f"test-twin-{n}", SALT=salt) for n in range(2))
    )
    again = Build(client)
    await again.of(project, "test-twin-0", SALT=salt)
    assert set(again.states()) == {"cached"}
    for name in (f"{info.name}:{info.version}" for info in (first, second)):
        async with await client.create(SandboxSpec(environment=name)) as sandbox:
            assert (await sandbox.run("cat salt out/who", check=True)).text == f"{salt}\nuser\n"


async def test_a_build_that_is_given_up_leaves_no_sandbox(
    client: AsyncClient, project: Path
) -> None:
    (project / "Dockerfile").write_text("FROM debian\nRUN echo begun; sleep 300\n")
    build = Build(client)
    work = asyncio.create_task(build.of(project, "test-given-up"))
    while b"begun" not in build.output():
        assert not work.done()
        await asyncio.sleep(0.05)
    work.cancel()
    with pytest.raises(asyncio.CancelledError):
        await work
    left = client.list(labels={"sandfleet.build": "1"})
    assert [sandbox.id async for sandbox in left] == []


async def test_a_build_that_takes_too_long_says_so(client: AsyncClient, project: Path) -> None:
    (project / "Dockerfile").write_text("FROM debian\nRUN sleep 300\n")
    with pytest.raises(TimedOut) as caught:
        await Build(client, Means(network=Network.NONE, timeout_seconds=2)).of(project, "test-slow")
    assert "--timeout" in caught.value.message


async def test_archives_and_here_documents_go_in(client: AsyncClient, project: Path) -> None:
    with tarfile.open(project / "some.tar.xz", "w:xz") as tar:
        tar.add(project / "tree", "inner")
    (project / "Dockerfile").write_text(
        "FROM debian\nADD some.tar.xz main.sh /a/\nCOPY some.tar.xz /b/\n"
        "ARG WHO=you\nCOPY <<EOF <<'RAW' /c/\nhello $WHO\nEOF\nhello $WHO\nRAW\n"
        "RUN <<EOF\necho one > /d\necho two >> /d\nEOF\n"
    )
    await Build(client).of(project, "test-archives")
    async with await client.create(SandboxSpec(environment="test-archives")) as sandbox:
        result = await sandbox.run("cd /; find a b c -type f | sort; cat c/* d", check=True)
        assert result.text.split() == [
            "a/inner/deep/file", "a/inner/gone.log", "a/inner/keep.log", "a/main.sh",
            "b/some.tar.xz", "c/EOF", "c/RAW", "hello", "you", "hello", "$WHO", "one", "two",
        ]  # fmt: skip


async def test_the_command_line_builds_and_says_how_it_goes(
    platform: Path, project: Path, salt: str
) -> None:
    async def env(*words: str) -> tuple[int | None, list[str], str]:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "sandfleet.cli", "--state", str(platform), "env", *words,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        return process.returncode, out.decode().splitlines(), err.decode()

    common = ("--name", "test-cli", "--network", "none")
    arguments = ("--build-arg", f"SALT={salt}")
    status, out, err = await env("build", str(project), *common, *arguments)
    assert status == 0, err
    assert out[-1].startswith("test-cli:")
    assert "layers" in out[-1]
    assert ": done, " in err
    status, out, err = await env("build", str(project), *common, *arguments, "--json")
    assert status == 0, err
    events = [json.loads(line) for line in out]
    assert {e["state"] for e in events if e["event"] == "step"} == {"started", "cached"}
    assert events[-1]["event"] == "environment"
    (project / "Dockerfile").write_text("FROM debian\nRUN echo why >&2; exit 3\n")
    status, out, err = await env("build", str(project), *common, "--progress", "quiet")
    assert (status, out) == (1, [])
    assert err == "why\nsandfleet: Dockerfile:2: RUN failed: it exited with 3: why\n"
    status, _, err = await env("build", str(project), *common, "--on", "debian")
    assert status == 2
    assert "--on" in err
    status, _, err = await env("import", "nowhere", "--name", "x")
    assert status == 1
    assert "docker-archive:" in err
    added = ("--add", f"{project}/tree:/work")
    status, out, err = await env("build", "--on", "debian", *added, *common)
    assert status == 0, err


async def test_names_that_killed_builders_left_are_forgotten(
    client: AsyncClient, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = Workshop(client, OFFLINE)
    await left.publish("build.left", await left.ground("debian"))
    (project / "Dockerfile").write_text("FROM debian\nENV A=1\n")
    await Build(client).of(project, "test-sweeping")
    assert (await left.ground("build.left")).layers
    monkeypatch.setattr(workshop, "STALE_SECONDS", 0.0)
    monkeypatch.setattr(workshop, "_TEMPORARY", "build.left")  # others may be building
    await Build(client).of(project, "test-sweeping")
    with pytest.raises(NotFound):
        await left.ground("build.left")
