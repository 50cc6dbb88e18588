"""A whole platform for the system tests: each service its own process, as `sandfleet up` does."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Generator
from pathlib import Path

import pytest
import pytest_asyncio
from requirements import need_root

from sandfleet import AsyncClient, AsyncSandbox, Client, local

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a state directory of its own that shares the layers built before."""
    state = tmp_path_factory.mktemp("platform")
    shared = Path(os.environ.get("SANDFLEET_STATE_DIR", REPOSITORY / ".sandfleet")) / "layers"
    shared.mkdir(parents=True, exist_ok=True)
    (state / "layers").symlink_to(shared)
    return state


@pytest.fixture(scope="session")
def platform(state: Path) -> Generator[Path]:
    """Run a platform for all system tests, and end it."""
    need_root()
    local.up(state, progress=lambda line: None)
    yield state
    _forget_built(state)
    local.down(state, progress=lambda line: None)


def _forget_built(state: Path) -> None:
    """Forget what tests have built and kept, as the store outlives the platform."""
    with Client(state=state) as client:
        own = {beat.node for beat in client.nodes()}
        for snapshot in list(client.snapshots.list()):
            if snapshot.info_now.node in own:
                snapshot.remove()
        for prefix in ("test-", "image-127.0.0.1-"):
            for environment in client.environments.list(prefix=prefix):
                client.environments.remove(environment.name)


@pytest_asyncio.fixture
async def client(platform: Path) -> AsyncGenerator[AsyncClient]:
    """Connect to the platform over NATS, as a trainer."""
    async with AsyncClient.connect(state=platform) as client:
        yield client


@pytest_asyncio.fixture
async def sandbox(client: AsyncClient) -> AsyncGenerator[AsyncSandbox]:
    """Create a sandbox for one test."""
    async with await client.create() as sandbox:
        yield sandbox
