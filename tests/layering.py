"""Layers and environments for tests, made in a directory store."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from sandfleet_common.logs import Logger
from sandfleet_common.messages import EnvironmentInfo, Layer, LayerKind
from sandfleet_node.layers import Catalog, DirectoryStore, Resolved
from sandfleet_node.layers.image import pack

ResultT = TypeVar("ResultT")


def finish(work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """Run something to its end, also where a loop runs already."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, work).result()


def add_tree(store: DirectoryStore, tree: Path, kind: LayerKind = LayerKind.BASE) -> Layer:
    """Pack a tree into a layer of a store; the tree goes."""
    folder = store.temporary("image")
    folder.mkdir(parents=True)
    pack(tree, folder, keep_times=False)
    shutil.rmtree(tree)
    layer = finish(store.add(folder, kind, created_at=time.time()))
    folder.rmdir()
    return layer


def publish(
    store: DirectoryStore, name: str, version: str, layers: Sequence[Layer], **fields: Any
) -> EnvironmentInfo:
    """Write the record of an environment."""
    made = EnvironmentInfo(name=name, version=version, layers=list(layers), **fields)
    is_new = finish(store.put_record("environments", f"{name}/{version}", made.encode(), new=True))
    assert is_new
    return made


def resolve(store: DirectoryStore, reference: str) -> Resolved:
    """Say what a reference stands for; NotFound."""
    return finish(Catalog(store, Logger("test")).resolve(reference))
