"""Real servers for tests: nats-server and redis-server on free loopback ports.

A server here is configured as in production (users, permissions, access lists),
keeps its port over a restart, and dies with the test run whatever happens to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import nats
import pytest
from redis import Redis

from sandfleet_common.access import REDIS_PROBE, REDIS_USERS, redis_users, server_config
from sandfleet_common.bus import Bus, BusSettings
from sandfleet_common.store import StoreSettings
from sandfleet_common.subjects import ACCESS

Connect = Callable[..., Awaitable[Bus]]
"""`await connect("node")` returns a Bus of that NATS user, closed after the test."""

START_SECONDS = 10.0
_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)
_SPAWNER = ThreadPoolExecutor(1, "spawner")
"""A child that dies with its parent dies with the thread that started it: this one stays."""


def find_binary(name: str) -> str:
    """Return the path of a server's program; skip the test when it is not installed."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"doctor line `{name}`: {name} is not installed; run `make install`")
    return found


def free_port() -> int:
    """Return a loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Server:
    """One server process that can be stopped, killed, frozen and started again."""

    name = "server"

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = free_port()
        self._process: subprocess.Popen[bytes] | None = None

    def command(self) -> list[str]:
        """Return the command line."""
        raise NotImplementedError

    def greets(self, connection: socket.socket) -> bool:
        """Return whether the one at the other end is ready to serve."""
        raise NotImplementedError

    @property
    def pid(self) -> int:
        """The running server's process id."""
        assert self._process is not None, f"{self.name} is not running"
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process is there."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start it, unless it runs, and wait until it serves."""
        if self.is_running:
            return
        self.directory.mkdir(parents=True, exist_ok=True)
        with (self.directory / "log").open("ab") as log:
            self._process = _SPAWNER.submit(
                subprocess.Popen,
                self.command(),
                stdout=log,
                stderr=log,
                preexec_fn=_die_with_parent,
            ).result()
        deadline = time.monotonic() + START_SECONDS
        while not self._serves():
            if not self.is_running or time.monotonic() > deadline:
                self.kill()
                tail = (self.directory / "log").read_text()[-2000:]
                raise RuntimeError(f"{self.name} did not start on port {self.port}:\n{tail}")
            time.sleep(0.01)

    def stop(self) -> None:
        """End it in good order; what it stores stays."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it without a word, as a crash does."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop it and start it again on the same port."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Let it stop answering while its connections stay open."""
        os.kill(self.pid, signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        os.kill(self.pid, signal.SIGCONT)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1) as connection:
                return self.greets(connection)
        except OSError:
            return False


class NatsServer(Server):
    """nats-server with JetStream and one user for each row of `subjects.ACCESS`."""

    name = "nats-server"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._binary = find_binary("nats-server")
        self.passwords = {user: secrets.token_urlsafe(12) for user in ACCESS}

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"nats://127.0.0.1:{self.port}"

    def settings(self, user: str, name: str | None = None) -> BusSettings:
        """Return what `Bus.connect` needs to be `user` here."""
        return BusSettings((self.url,), user, self.passwords[user], name or f"test-{user}")

    def command(self) -> list[str]:
        """Return the command line, with the configuration written."""
        config = self.directory / "nats.conf"
        config.write_text(
            server_config(
                self.passwords,
                host="127.0.0.1",
                port=self.port,
                store=self.directory / "jetstream",
            )
        )
        return [self._binary, "-c", str(config)]

    def greets(self, connection: socket.socket) -> bool:
        """Return whether it sends its INFO line."""
        return connection.recv(4) == b"INFO"

    def forget(self) -> None:
        """Stop it and drop its streams, as when its disk is lost."""
        self.kill()
        shutil.rmtree(self.directory / "jetstream", ignore_errors=True)

    async def clear(self) -> None:
        """Delete all streams: what an earlier test left in a queue is not this test's."""
        client = await nats.connect(
            self.url, user="admin", password=self.passwords["admin"], allow_reconnect=False
        )
        try:
            streams = client.jetstream()
            for info in await streams.streams_info():
                await streams.delete_stream(str(info.config.name))
        finally:
            await client.close()


class RedisServer(Server):
    """redis-server with an access list as `access.redis_users` writes it.

    It keeps nothing on disk, so a restart is also a loss of memory.
    """

    name = "redis-server"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._binary = find_binary("redis-server")
        self.passwords = {user: secrets.token_urlsafe(12) for user in (*REDIS_USERS, "admin")}

    def url(self, user: str) -> str:
        """Return the address with the credentials of `user` in it."""
        return f"redis://{user}:{self.passwords[user]}@127.0.0.1:{self.port}/0"

    def settings(self, user: str = "scheduler") -> StoreSettings:
        """Return what `Store.connect` needs to be `user` here."""
        return StoreSettings(url=self.url(user))

    def command(self) -> list[str]:
        """Return the command line, with the configuration written."""
        acl = self.directory / "users.acl"
        admin = f"user admin on >{self.passwords['admin']} ~* &* +@all\n"
        acl.write_text(redis_users(self.passwords) + admin)
        config = self.directory / "redis.conf"
        config.write_text(
            f"bind 127.0.0.1\nport {self.port}\naclfile {acl}\ndir {self.directory}\n"
            'save ""\nappendonly no\nprotected-mode no\n'
        )
        return [self._binary, str(config)]

    def greets(self, connection: socket.socket) -> bool:
        """Return whether it answers a ping."""
        connection.sendall(f"AUTH {REDIS_PROBE} none\r\n".encode())
        if connection.recv(5) != b"+OK\r\n":
            return False
        connection.sendall(b"PING\r\n")
        return connection.recv(5) == b"+PONG"

    def clear(self) -> None:
        """Delete all keys."""
        with Redis.from_url(self.url("admin")) as client:
            cast(Any, client).flushall()


class Servers:
    """Both servers, and how a service process finds them."""

    def __init__(self, directory: Path) -> None:
        self.nats = NatsServer(directory / "nats")
        self.redis = RedisServer(directory / "redis")

    def start(self) -> None:
        """Start whichever does not run."""
        self.nats.start()
        self.redis.start()

    def kill(self) -> None:
        """End both."""
        self.nats.kill()
        self.redis.kill()

    def environment(self, service: str, **settings: str) -> dict[str, str]:
        """Return the environment in which `python -m sandfleet_<service>` finds the servers.

        `settings` are further settings of the service, in lower case.
        """
        values = {
            "nats_servers": self.nats.url,
            "nats_user": service,
            "nats_password": self.nats.passwords[service],
            **settings,
        }
        if service in REDIS_USERS:
            values["redis_url"] = self.redis.url(service)
        prefix = f"SANDFLEET_{service.upper()}_"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("SANDFLEET_")}
        return inherited | {prefix + name.upper(): value for name, value in values.items()}
