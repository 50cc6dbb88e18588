"""Images from elsewhere, as environments: fetched by skopeo, unpacked in a sandbox.

importer = Importer(Workshop(client, report=print))
info = await importer.load("docker-archive:image.tar", "project")
"""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
import platform
import re
import shutil
import tempfile
import time
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any, cast

from sandfleet.sandbox import AsyncSandbox
from sandfleet_common.errors import BadRequest, NotFound, SandfleetError
from sandfleet_common.messages import GIB, EnvironmentInfo, LayerKind

from . import oci
from .builder import ROOT_FOLDER
from .events import Output, Said, Step
from .keys import key
from .stages import Ground
from .workshop import ROOT, Workshop

TRANSPORTS = ("docker", "docker-archive", "docker-daemon", "oci", "oci-archive")
MERGED_BYTES = 3 * GIB
SPARE_BYTES = 2 * GIB
"""Of the helper's disk, left for what unpacking needs besides."""
GROWTH = 3
"""So many times as large as it is packed a layer is taken to be."""
_NAME_LETTERS = 60
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}


class Importer:
    """Brings images into the store."""

    def __init__(
        self, workshop: Workshop, *, helper: str = "debian", use_cache: bool = True
    ) -> None:
        self._workshop = workshop
        self._helper = helper
        self._use_cache = use_cache

    async def load(self, source: str, name: str) -> EnvironmentInfo:
        """Import an image and name it, `name` or `name:version`.

        `source` is what skopeo takes: docker://HOST/NAME:TAG, docker-archive:FILE,
        oci-archive:FILE, docker-daemon:NAME, or oci:DIRECTORY.

        Raises:
            NotFound: there is no such image, or no skopeo to fetch it with.
            BadRequest: the image is damaged, or of a kind that is not supported.
        """
        check_source(source)
        architecture = _ARCHITECTURES.get(platform.machine(), platform.machine())
        with tempfile.TemporaryDirectory(prefix="sandfleet-image-") as scratch:
            folder, reference = await self._fetched(source, Path(scratch))
            image = await asyncio.to_thread(oci.read, folder, architecture, reference)
            ground = await self._layers(image)
        ground = dataclasses.replace(
            ground, env=image.env, user=image.user, workdir=image.workdir, notes=image.notes
        )
        return await self._workshop.offer(name, ground, source=named_source(source))

    async def ground(self, image: str) -> Ground:
        """Return an image of a registry as what to build on, imported when it has to be.

        Raises:
            NotFound: there is no such image, or no skopeo to fetch it with.
        """
        name = derived_name(image)
        if self._use_cache:
            try:
                return await self._workshop.ground(name)
            except NotFound:
                pass
        self._workshop.report(Said("info", f"{image}: not in the store, imported as {name}"))
        info = await self.load(f"docker://{image}", name)
        return await self._workshop.ground(f"{info.name}:{info.version}")

    async def _fetched(self, source: str, scratch: Path) -> tuple[Path, str | None]:
        """Return an OCI layout with the image, and its name in it."""
        transport, _, rest = source.partition(":")
        if transport == "oci":
            folder, _, reference = rest.partition(":")
            return Path(folder), reference or None
        program = shutil.which("skopeo")
        if program is None:
            raise NotFound("images are fetched by skopeo, which is not installed: install skopeo")
        folder = scratch / "layout"
        argv = [program, "copy", "--quiet", "--", source, f"oci:{folder}:image"]
        process = await asyncio.create_subprocess_exec(
            *argv, stdin=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
        )
        try:
            _, said = await process.communicate()
        except asyncio.CancelledError:
            process.kill()
            await process.wait()
            raise
        if process.returncode != 0:
            raise NotFound(f"skopeo cannot fetch {source}: {_reason(said)}")
        return folder, None

    async def _layers(self, image: oci.Image) -> Ground:
        limit = min(MERGED_BYTES, self._workshop.means.resources.disk_bytes - SPARE_BYTES)
        groups = grouped(image.layers, limit)
        ground = Ground()
        for number, group in enumerate(groups, 1):
            ground = await self._layer(ground, group, number, len(groups))
        return ground

    async def _layer(
        self, ground: Ground, group: Sequence[oci.ImageLayer], number: int, total: int
    ) -> Ground:
        names = ", ".join(layer.diff_id[7:19] for layer in group)
        began = time.monotonic()
        step = Step(number, total, f"image layers {names}"[:500], "started")
        self._workshop.report(step)
        wanted = key_of(group, is_lowest=not ground.layers)
        found = await self._workshop.find(wanted) if self._use_cache else None
        state = "cached"
        try:
            if found is None:
                state = "done"
                found = await self._unpacked(ground, group, wanted, step)
        except SandfleetError:
            self._workshop.report(dataclasses.replace(step, state="failed"))
            raise
        self._workshop.report(
            dataclasses.replace(
                step,
                state=state,
                seconds=time.monotonic() - began,
                size_bytes=found.size_bytes,
                digest=found.digest,
            )
        )
        facts = dict(ground.facts) or {
            name: value for name, value in found.notes.items() if not name.startswith("oci.")
        }
        return dataclasses.replace(ground, layers=(found.digest, *ground.layers), facts=facts)

    async def _unpacked(
        self, ground: Ground, group: Sequence[oci.ImageLayer], wanted: str, step: Step
    ) -> Any:
        helper = await self._workshop.ground(self._helper)
        async with self._workshop.sandbox(helper) as sandbox:
            for layer in group:
                await self._unpack(sandbox, layer, keep=bool(ground.layers))
            self._workshop.report(dataclasses.replace(step, state="packing"))
            notes = {} if ground.layers else await self._facts(sandbox)
            return await self._workshop.pack(
                sandbox,
                wanted,
                LayerKind.BASE,
                description=step.title,
                notes=notes,
                root=ROOT_FOLDER,
                is_oci=True,
            )

    async def _unpack(self, sandbox: AsyncSandbox, layer: oci.ImageLayer, *, keep: bool) -> None:
        argv = ["python3", "-c", script("unpacking"), ROOT_FOLDER, "1" if keep else "0"]
        what = f"layer {layer.diff_id[:19]} cannot be unpacked"
        try:
            said = await self._workshop.feed(sandbox, argv, oci.tar_of(layer), what=what)
        except NotFound as problem:
            if "python3" not in problem.message:
                raise
            raise BadRequest(
                f"the helper environment {self._helper!r} has no python3: name one with --helper"
            ) from None
        for reason, count in _skipped(said).items():
            text = f"layer {layer.diff_id[:19]}: left out {reason} ({count})"
            self._workshop.report(Said("warning", text))

    async def _facts(self, sandbox: AsyncSandbox) -> dict[str, str]:
        """Return what the tree says of its distribution, libc and Python."""
        result = await sandbox.run(
            ["python3", "-c", script("probing"), ROOT_FOLDER], user=ROOT, cwd="/", timeout=60
        )
        if not result.ok:
            self._workshop.report(Output("stderr", result.stderr))
            return {}
        return facts_of(result.stdout)


def check_source(source: str) -> None:
    """Check that a source names a way to an image.

    Raises:
        BadRequest: it does not.
    """
    transport, colon, rest = source.partition(":")
    if not colon or transport not in TRANSPORTS or not rest:
        known = ", ".join(f"{name}:" for name in TRANSPORTS)
        raise BadRequest(f"{source[:100]!r} is no image: begin it with one of {known}")
    if transport == "docker" and not rest.startswith("//"):
        raise BadRequest(f"{source[:100]!r}: write docker://{rest[:100]}")


def named_source(source: str) -> str:
    """Return a source as others may read it: of a file here its name alone."""
    transport, _, rest = source.partition(":")
    if transport.startswith("docker") and transport != "docker-archive":
        return source
    return f"{transport}:{rest.rpartition('/')[2]}"


def derived_name(image: str) -> str:
    """Return the name of the environment that an image of a registry becomes."""
    name = re.sub(r"[^a-z0-9._-]+", "-", f"image-{image}".lower()).strip("-")
    if len(name) <= _NAME_LETTERS and re.fullmatch(r"[a-z0-9:./_-]+", image):
        return name
    return f"{name[:40]}-{hashlib.sha256(image.encode()).hexdigest()[:16]}"


def grouped(layers: Sequence[oci.ImageLayer], limit: int) -> list[list[oci.ImageLayer]]:
    """Return layers, lowest first, neighbours together while they are small in sum."""
    groups: list[list[oci.ImageLayer]] = []
    size = 0
    for layer in layers:
        about = layer.size * (1 if layer.form == "plain" else GROWTH)
        if not groups or size + about > limit:
            groups.append([])
            size = 0
        groups[-1].append(layer)
        size += about
    return groups


def key_of(group: Sequence[oci.ImageLayer], *, is_lowest: bool) -> str:
    """Return the key of layers that were unpacked into one; above others whiteouts stay."""
    return key("oci", diff_ids=[layer.diff_id for layer in group], is_lowest=is_lowest)


def script(name: str) -> str:
    """Return a module of this package as text, to run in a sandbox."""
    return resources.files("sandfleet.building").joinpath(f"{name}.py").read_text(encoding="utf-8")


def facts_of(data: bytes) -> dict[str, str]:
    """Return what a probe in a sandbox printed, as notes; it is not trusted."""
    try:
        found: Any = json.loads(data[:65_536])
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    pairs = cast("dict[str, object]", found).items()
    return {
        name: value
        for name, value in pairs
        if name in ("distribution", "libc", "python")
        and isinstance(value, str)
        and re.fullmatch(r"[A-Za-z0-9 ._+-]{1,64}", value)
    }


def _skipped(said: bytes) -> dict[str, int]:
    try:
        found: Any = json.loads(said[-65_536:])
        pairs = cast("dict[str, Any]", found)["skipped"].items()
        return {str(reason)[:60]: int(count) for reason, count in list(pairs)[:8]}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def _reason(said: bytes) -> str:
    lines = said.decode(errors="replace").strip().splitlines()
    last = lines[-1] if lines else "it says nothing"
    found = re.search(r'msg="((?:[^"\\]|\\.)*)"', last)
    return (found[1].replace('\\"', '"') if found else last)[:500]
