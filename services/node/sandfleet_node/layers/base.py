"""Building the base environment, once, however often and by however many it is asked for."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from sandfleet_common.errors import Denied
from sandfleet_common.messages import EnvironmentInfo, Layer, LayerKind

from . import debian, image
from .directory import DirectoryStore
from .versions import version_key

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


async def build_base(
    store: DirectoryStore, name: str, progress: Callable[[str], None], *, again: bool = False
) -> EnvironmentInfo:
    """Return the environment `name`, built from Debian if it does not exist.

    Args:
        store: where it goes.
        name: of the environment.
        progress: told what happens, one line at a time.
        again: build a new version although there is one.

    Raises:
        Denied: this is not root.
        NotFound: this host lacks what building needs.
        Unreachable: a step failed, most often for want of a network.
    """
    if not again and (found := await _existing(store, name)):
        return found
    if os.geteuid() != 0:
        raise Denied("building a base layer needs root")
    with store.locked(f"build-{name}", lambda: progress("another build is under way; waiting")):
        if not again and (found := await _existing(store, name)):
            return found
        _remove_leftovers(store, name)
        return await _build(store, name, progress)


async def _existing(store: DirectoryStore, name: str) -> EnvironmentInfo | None:
    """Return the newest version whose layers are there."""
    found = await store.names("environments", f"{name}/")
    for entry in sorted(found, key=lambda e: version_key(e.partition("/")[2]), reverse=True):
        content = await store.record("environments", entry)
        try:
            environment = EnvironmentInfo.model_validate_json(content or b"")
        except ValidationError:
            continue  # of an earlier format
        if all(store.files(layer.digest) is not None for layer in environment.layers):
            return environment
    return None


def _remove_leftovers(store: DirectoryStore, name: str) -> None:
    """Remove what a build that was killed left; its lock is ours now, so it is over."""
    for path in (store.root / "tmp").glob(f"build-{name}-*"):
        shutil.rmtree(path)


async def _build(
    store: DirectoryStore, name: str, progress: Callable[[str], None]
) -> EnvironmentInfo:
    release = debian.host_release()
    place = store.temporary(f"build-{name}")
    place.mkdir(parents=True, mode=0o700)
    try:
        layer = await _layer(store, release, place, progress)
    finally:
        shutil.rmtree(place)
    environment = EnvironmentInfo(
        name=name,
        version=await _next_version(store, name, release.number),
        layers=[layer],
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        created_at=time.time(),
        notes=layer.notes,
        source=f"debootstrap {release.suite}",
    )
    record = f"{name}/{environment.version}"
    await store.put_record("environments", record, environment.encode(), new=True)
    progress(f"environment {name}:{environment.version} is ready")
    return environment


async def _layer(
    store: DirectoryStore, release: debian.Release, place: Path, progress: Callable[[str], None]
) -> Layer:
    tree = place / "tree"
    progress(f"debootstrap of {release.suite}: takes about a minute")
    debian.bootstrap(
        release, tree, store.root / "cache" / release.suite, place / "log", _steps(progress)
    )
    progress("setting up and cleaning")
    python = debian.finish(tree, place / "log")
    progress("packing")
    folder = place / "image"
    folder.mkdir()
    image.pack(tree, folder, keep_times=False)
    return await store.add(
        folder,
        LayerKind.BASE,
        created_at=time.time(),
        description=f"Debian {release.suite}, minimal, with Python {python}",
        notes={"distribution": f"debian {release.suite}", "libc": "glibc", "python": python},
    )


def _steps(progress: Callable[[str], None]) -> Callable[[str], None]:
    """Return a filter of debootstrap's lines: a step is worth telling once, packages are not."""
    left = {"Retrieving", "Extracting", "Unpacking", "Configuring"}

    def tell(line: str) -> None:
        step = line.split(" ", 1)[0]
        if step in left:
            left.remove(step)
            progress(f"{step.lower()} packages")

    return tell


async def _next_version(store: DirectoryStore, name: str, release: str) -> str:
    """Return `<release>.<n>`, n counting the builds for that release."""
    taken = await store.names("environments", f"{name}/")
    number = 1
    while f"{name}/{release}.{number}" in taken:
        number += 1
    return f"{release}.{number}"
