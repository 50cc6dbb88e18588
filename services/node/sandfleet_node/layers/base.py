"""Building the base environment, once, however often and by however many it is asked for."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

from sandfleet_common.errors import Denied, NotFound

from . import debian, image
from .manifest import Environment, Manifest
from .store import LayerStore

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def build_base(
    store: LayerStore, name: str, progress: Callable[[str], None], *, again: bool = False
) -> Environment:
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
    if not again and (found := _existing(store, name)):
        return found
    if os.geteuid() != 0:
        raise Denied("building a base layer needs root")
    with store.locked(f"build-{name}", lambda: progress("another build is under way; waiting")):
        if not again and (found := _existing(store, name)):
            return found
        _remove_leftovers(store, name)
        return _build(store, name, progress)


def _existing(store: LayerStore, name: str) -> Environment | None:
    try:
        environment = store.resolve(name)
        for digest in environment.layers:
            store.layer_path(digest)
    except NotFound:
        return None
    return environment


def _remove_leftovers(store: LayerStore, name: str) -> None:
    """Remove what a build that was killed left; its lock is ours now, so it is over."""
    for path in (store.root / "tmp").glob(f"build-{name}-*"):
        shutil.rmtree(path)


def _build(store: LayerStore, name: str, progress: Callable[[str], None]) -> Environment:
    release = debian.host_release()
    place = store.temporary(f"build-{name}")
    place.mkdir(parents=True, mode=0o700)
    try:
        manifest = _layer(store, release, place, progress)
    finally:
        shutil.rmtree(place)
    environment = Environment(
        name=name,
        version=_next_version(store, name, release.number),
        layers=(manifest.digest,),
        env={"PATH": PATH, "LANG": "C.UTF-8"},
        created_at=time.time(),
        notes=manifest.notes,
    )
    store.publish(environment)
    progress(f"environment {name}:{environment.version} is ready")
    return environment


def _layer(
    store: LayerStore, release: debian.Release, place: Path, progress: Callable[[str], None]
) -> Manifest:
    tree = place / "tree"
    progress(f"debootstrap of {release.suite}: takes about a minute")
    debian.bootstrap(
        release, tree, store.root / "cache" / release.suite, place / "log", _steps(progress)
    )
    progress("setting up and cleaning")
    python = debian.finish(tree, place / "log")
    progress("packing")
    image.pack(tree, place / "image")
    return store.add(
        place / "image",
        kind="base",
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


def _next_version(store: LayerStore, name: str, release: str) -> str:
    """Return `<release>.<n>`, n counting the builds for that release."""
    number = 1
    while True:
        try:
            store.resolve(f"{name}:{release}.{number}")
        except NotFound:
            return f"{release}.{number}"
        number += 1
