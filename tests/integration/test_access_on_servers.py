"""Real servers take the configuration that the access command writes, and hold to it."""

from __future__ import annotations

import socket
import subprocess
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from redis import Redis
from redis.exceptions import AuthenticationError, NoPermissionError
from servers import find_binary, free_port

from sandfleet_common import access

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Write a deployment and run its Redis; yields the directory of all users."""
    place = tmp_path_factory.mktemp("access")
    port = free_port()
    (place / "data").mkdir()
    deployment = access.Deployment(
        redis=f"127.0.0.1:{port}",
        listen="127.0.0.1",
        redis_data=place / "data",
        mounted_at=place / "redis",
    )
    access.write(deployment, place, shared=False)
    command = [find_binary("redis-server"), str(place / "redis" / "redis.conf")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        try:
            _wait_for(port, server)
            yield place
        finally:
            server.terminate()


def _wait_for(port: int, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.02)
        else:
            return
    pytest.fail(f"redis-server ended with {server.returncode}")


def _address(deployed: Path, user: str) -> str:
    found = tomllib.loads((deployed / user / "settings.toml").read_text())
    return str(found[user]["redis_url"])


@pytest.mark.parametrize("user", access.REDIS_USERS)
def test_a_service_writes_its_keys_and_administers_nothing(deployed: Path, user: str) -> None:
    with Redis.from_url(_address(deployed, user)) as client:
        assert client.set("sf:probe", user)
        assert client.eval("return redis.call('GET', KEYS[1])", 1, "sf:probe") == user.encode()
        for refused in (("FLUSHALL",), ("CONFIG", "GET", "*"), ("ACL", "LIST"), ("KEYS", "*")):
            with pytest.raises(NoPermissionError):
                client.execute_command(*refused)
        with pytest.raises(NoPermissionError):
            client.set("other:probe", user)


def test_without_a_password_one_may_only_ping(deployed: Path) -> None:
    address = _address(deployed, "node").rpartition("@")[2]
    with Redis.from_url(f"redis://{access.REDIS_PROBE}:none@{address}") as client:
        assert client.ping()
        with pytest.raises(NoPermissionError):
            client.get("sf:probe")
    with Redis.from_url(f"redis://{address}") as stranger, pytest.raises(AuthenticationError):
        stranger.ping()


def test_one_services_password_opens_no_other_account(deployed: Path) -> None:
    stolen = _address(deployed, "node").replace("//node:", "//scheduler:")
    with Redis.from_url(stolen) as client, pytest.raises(AuthenticationError):
        client.get("sf:probe")


def test_nats_server_takes_the_configuration(deployed: Path) -> None:
    command = [find_binary("nats-server"), "-t", "-c", str(deployed / "nats" / "nats.conf")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
