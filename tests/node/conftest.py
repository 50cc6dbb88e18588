"""Fixtures of the node's tests."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from node.nodes import NodeHouse, RunningNode, build_tiny_layer
from requirements import need_root
from servers import Servers

from sandfleet_common.logs import Logger


@pytest.fixture(scope="session")
def tiny_layers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a layer store with one small environment."""
    need_root()
    root = tmp_path_factory.mktemp("layers")
    build_tiny_layer(root)
    return root


@pytest.fixture
def house(servers: Servers, tmp_path: Path, tiny_layers: Path, log: Logger) -> Generator[NodeHouse]:
    """Return a place for a node; everything of it is removed after the test."""
    # A copy, for tests write into it; the layers themselves are never written.
    shutil.copytree(tiny_layers, tmp_path / "layers", symlinks=True, copy_function=os.link)
    house = NodeHouse(servers, tmp_path, log)
    yield house
    house.clean()


@pytest_asyncio.fixture
async def node(house: NodeHouse) -> AsyncGenerator[RunningNode]:
    """Return a node that runs."""
    async with house.running() as node:
        yield node
