"""Images from archives and registries, on a whole platform."""

from __future__ import annotations

import asyncio
import os
import shutil
import tarfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any
from uuid import uuid4

import images
import pytest
import pytest_asyncio
from images import entry, folder, hard_link, layer
from servers import free_port

from sandfleet import AsyncClient, AsyncSandbox, BadRequest, NotFound, SandboxSpec
from sandfleet.building import importing
from sandfleet.building.builder import Builder, Source
from sandfleet.building.events import Event, Said, Step
from sandfleet.building.importing import Importer
from sandfleet.building.workshop import BuildFailed, Means, Workshop
from sandfleet_common.messages import EnvironmentInfo, LayerKind, Network

pytestmark = [pytest.mark.root, pytest.mark.integration, pytest.mark.timeout(240)]
OFFLINE = Means(network=Network.NONE)


@pytest_asyncio.fixture(loop_scope="session", scope="session")
async def system(platform: Path, tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """Return the tar of a small system: a shell, cat, ls, with their libraries."""
    script = (
        "mkdir -p /t/bin /t/etc /t/tmp && cd /t && cp -L /bin/sh /bin/cat /bin/ls bin/ && "
        "for f in $(ldd bin/sh bin/cat bin/ls | grep -o '/[^ )]*' | grep -v :$); do "
        "mkdir -p .$(dirname $f) && cp -L $f .$f; done && "
        "echo root:x:0:0::/:/bin/sh > etc/passwd && tar -c -f /t.tar ."
    )
    target = tmp_path_factory.mktemp("system") / "t.tar"
    async with AsyncClient.connect(state=platform) as client, await client.create() as sandbox:
        await sandbox.run(script, check=True)
        await sandbox.files.download("/t.tar", target)
    return target.read_bytes()


class Import:
    """One import, and what it said."""

    def __init__(self, client: AsyncClient, means: Means = OFFLINE) -> None:
        self.events: list[Event] = []
        self.importer = Importer(Workshop(client, means, self.events.append))

    async def of(self, source: str, name: str) -> EnvironmentInfo:
        return await self.importer.load(source, name)

    def states(self) -> list[str]:
        steps = [event for event in self.events if isinstance(event, Step)]
        return [step.state for step in steps if step.state not in ("started", "packing")]


def salted() -> tuple[tarfile.TarInfo, bytes]:
    """Return an entry that keeps the layers of one test from being those of another."""
    return entry("etc/salt", uuid4().hex.encode())


def layout(tmp_path: Path, *layers: bytes, **config: Any) -> Path:
    return images.Layout(tmp_path / "layout", layers, config).write()


async def said(sandbox: AsyncSandbox, command: str) -> str:
    return (await sandbox.run(command, check=True)).text


async def test_an_archive_becomes_an_environment_with_its_whiteouts(
    client: AsyncClient, tmp_path: Path, system: bytes
) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed; run scripts/install.sh")
    middle = layer(
        salted(), folder("srv"), entry("srv/gone"), entry("srv/stays", b"1"),
        folder("opt"), entry("opt/lower"), hard_link("srv/hard", "srv/stays"),
    )  # fmt: skip
    upper = layer(
        entry("srv/.wh.gone"), folder("opt"), entry("opt/.wh..wh..opq"), entry("opt/upper"),
        entry("srv/owned", b"2", uid=33, gid=44, mode=0o640),
    )  # fmt: skip
    root = layout(tmp_path, system, middle, upper, Env=["A=b c"], WorkingDir="/srv", Cmd=["ls"])
    archive = images.archive(root, tmp_path / "image.tar")
    first = Import(client)
    info = await first.of(f"oci-archive:{archive}", "test-image")
    assert first.states() == ["done"]
    assert (len(info.layers), info.layers[0].kind) == (1, LayerKind.BASE)
    assert (info.env, info.workdir) == ({"A": "b c"}, "/srv")
    assert info.layers[0].notes["libc"].startswith("glibc ")
    async with await client.create(SandboxSpec(environment="test-image")) as sandbox:
        assert await said(sandbox, "ls /srv /opt") == "/opt:\nupper\n\n/srv:\nhard\nowned\nstays\n"
        assert await said(sandbox, "cat hard; echo $A") == "1b c\n"
        owned = await sandbox.files.stat("/srv/owned")
        assert (owned.uid, owned.gid, owned.mode & 0o7777) == (33, 44, 0o640)
    again = Import(client)
    same = await again.of(f"oci-archive:{archive}", "test-image")
    assert again.states() == ["cached"]
    assert same.layers == info.layers


async def test_whiteouts_work_across_layers_that_are_not_merged(
    client: AsyncClient, tmp_path: Path, system: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importing, "MERGED_BYTES", 1)
    middle = layer(salted(), folder("srv"), entry("srv/gone"), folder("opt"), entry("opt/lower"))
    upper = layer(entry("srv/.wh.gone"), folder("opt"), entry("opt/.wh..wh..opq"), entry("opt/up"))
    root = layout(tmp_path, system, middle, upper)
    info = await Import(client).of(f"oci:{root}", "test-image-apart")
    assert len(info.layers) == 3
    async with await client.create(SandboxSpec(environment="test-image-apart")) as sandbox:
        assert await said(sandbox, "ls -A /srv; ls -A /opt") == "up\n"


async def test_a_dockerfile_goes_on_from_an_imported_image(
    client: AsyncClient, tmp_path: Path, system: bytes
) -> None:
    await Import(client).of(f"oci:{layout(tmp_path, system)}", "test-image-base")
    (tmp_path / "Dockerfile").write_text(
        "FROM test-image-base\nCOPY plain /etc/\nRUN echo ran > /made\n"
    )
    (tmp_path / "plain").write_text("plain\n")
    builder = Builder(client, means=OFFLINE)
    info = await builder.build(Source.of_directory(tmp_path), "test-image-on")
    assert info.layers[0].notes["built_on.libc"] == info.layers[-1].notes["libc"]
    async with await client.create(SandboxSpec(environment="test-image-on")) as sandbox:
        assert await said(sandbox, "cat /made /etc/plain") == "ran\nplain\n"
    (tmp_path / "link").symlink_to("plain")
    (tmp_path / "Dockerfile").write_text("FROM test-image-base\nCOPY . /etc/\n")
    with pytest.raises(BadRequest) as caught:
        await builder.build(Source.of_directory(tmp_path), "test-image-on")
    assert "no tar" in caught.value.message


async def test_a_hostile_layer_leads_nowhere(
    client: AsyncClient, tmp_path: Path, system: bytes
) -> None:
    hostile = layer(
        salted(),
        entry("../../../../escaped", b"1"),
        images.link("away", "/"),
        entry("away/inside", b"2"),
        entry("dev/sda", type=tarfile.BLKTYPE, devmajor=8),
    )
    build = Import(client)
    await build.of(f"oci:{layout(tmp_path, system, hostile)}", "test-image-hostile")
    warnings = [e.text for e in build.events if isinstance(e, Said) and e.level == "warning"]
    assert len(warnings) == 1
    assert "devices" in warnings[0]
    async with await client.create(SandboxSpec(environment="test-image-hostile")) as sandbox:
        assert await said(sandbox, "cat /escaped /inside") == "12"
    assert "escaped" not in os.listdir("/")  # noqa: PTH208


async def test_a_hard_link_out_of_the_image_is_refused(
    client: AsyncClient, tmp_path: Path, system: bytes
) -> None:
    hostile = layer(salted(), hard_link("etc/shadow-copy", "../../proc/1/environ"))
    with pytest.raises(BuildFailed) as caught:
        await Import(client).of(f"oci:{layout(tmp_path, system, hostile)}", "test-image-hostile")
    assert "hard link" in caught.value.message


async def test_a_damaged_layer_is_never_packed(
    client: AsyncClient, tmp_path: Path, system: bytes
) -> None:
    root = layout(tmp_path, system, layer(salted()))
    largest = max((root / "blobs" / "sha256").iterdir(), key=lambda path: path.stat().st_size)
    data = bytearray(largest.read_bytes())
    data[-30] ^= 1
    largest.write_bytes(data)
    build = Import(client)
    with pytest.raises(BadRequest) as caught:
        await build.of(f"oci:{root}", "test-image-damaged")
    assert "damaged" in caught.value.message
    assert build.states() == ["failed"]


async def test_an_image_that_is_not_there_is_said_in_one_sentence(
    client: AsyncClient, tmp_path: Path
) -> None:
    if shutil.which("skopeo") is None:
        pytest.skip("skopeo is not installed; run scripts/install.sh")
    with pytest.raises(NotFound) as caught:
        await Import(client).of(f"docker-archive:{tmp_path}/none.tar", "test-image-none")
    assert "none.tar" in caught.value.message
    assert "\n" not in caught.value.message


@pytest_asyncio.fixture
async def registry(tmp_path: Path) -> AsyncGenerator[str]:
    """Run a registry of images, and return where it is."""
    program = shutil.which("docker-registry")
    if program is None or shutil.which("skopeo") is None:
        pytest.skip("docker-registry or skopeo is not installed")
    address = f"127.0.0.1:{free_port()}"
    settings = tmp_path / "registry.yml"
    settings.write_text(
        f"version: 0.1\nstorage: {{filesystem: {{rootdirectory: {tmp_path}/registry}}}}\n"
        f"http: {{addr: '{address}'}}\n"
    )
    quiet = asyncio.subprocess.DEVNULL
    process = await asyncio.create_subprocess_exec(
        program, "serve", str(settings), stdout=quiet, stderr=quiet
    )
    try:
        host, port = address.split(":")
        for _ in range(100):
            try:
                _, writer = await asyncio.open_connection(host, int(port))
            except OSError:
                await asyncio.sleep(0.1)
                continue
            writer.close()
            break
        yield address
    finally:
        process.kill()
        await process.wait()


async def test_an_image_comes_from_a_registry(
    client: AsyncClient,
    tmp_path: Path,
    system: bytes,
    registry: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    root = layout(tmp_path, system, layer(salted()))
    argv = ["skopeo", "copy", "-q", "--dest-tls-verify=false", f"oci:{root}"]
    process = await asyncio.create_subprocess_exec(*argv, f"docker://{registry}/test/small:1")
    assert await process.wait() == 0
    settings = tmp_path / ".config" / "containers" / "registries.conf"
    settings.parent.mkdir(parents=True)
    settings.write_text(f'[[registry]]\nlocation = "{registry}"\ninsecure = true\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "Dockerfile").write_text(f"FROM {registry}/test/small:1\nRUN echo ran > /made\n")
    build = Import(client)
    builder = Builder(client, means=OFFLINE, importer=build.importer.ground)
    await builder.build(Source.of_directory(tmp_path), "test-from-registry")
    assert build.states() == ["done"]
    async with await client.create(SandboxSpec(environment="test-from-registry")) as sandbox:
        assert await said(sandbox, "cat /made") == "ran\n"
