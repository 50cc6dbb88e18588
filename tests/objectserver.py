"""A real S3 server: SeaweedFS, whose binary comes with a package."""

from __future__ import annotations

import contextlib
import json
import secrets
import shutil
import socket
import time
import urllib.request
from collections.abc import Generator
from datetime import timedelta
from http import HTTPStatus
from pathlib import Path

import pytest
from obstore.store import S3Store
from servers import START_SECONDS, Server, find_binary, free_port

BUCKET = "sandfleet"


class ObjectServer(Server):
    """`weed server` with its S3 gateway, one bucket and one key, all on loopback."""

    name = "weed"

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._binary = find_binary("weed")
        self._ports = {name: free_port() for name in ("master", "volume", "filer")}
        self._grpc = {name: free_port() for name in ("master", "volume", "filer", "s3")}
        self.key, self.secret = "test", secrets.token_hex(16)

    @property
    def url(self) -> str:
        """Of the bucket."""
        return f"s3://{BUCKET}/store"

    @property
    def endpoint(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def variables(self) -> dict[str, str]:
        """What the environment of its clients needs."""
        return {
            "AWS_ACCESS_KEY_ID": self.key,
            "AWS_SECRET_ACCESS_KEY": self.secret,
            "AWS_REGION": "us-east-1",
        }

    def command(self) -> list[str]:
        """Return the command line, with the configuration written."""
        config = self.directory / "s3.json"
        key = {"accessKey": self.key, "secretKey": self.secret}
        who = {"name": "test", "credentials": [key], "actions": ["Admin", "Read", "Write", "List"]}
        config.write_text(json.dumps({"identities": [who]}))
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        # Without memory of an earlier election it need not wait for another one.
        shutil.rmtree(data / f"m{self._ports['master']}", ignore_errors=True)
        options = {
            "dir": data, "ip": "127.0.0.1", "ip.bind": "127.0.0.1", "s3": "true",
            "s3.port": self.port, "s3.config": config, "master.telemetry": "false",
            "s3.port.iceberg": 0, "s3.port.lance": 0,
            "master.volumeSizeLimitMB": 512, "volume.max": 64,
            **{f"{name}.port": port for name, port in self._ports.items()},
            **{f"{name}.port.grpc": port for name, port in self._grpc.items()},
        }  # fmt: skip
        return [self._binary, "server", *(f"-{name}={value}" for name, value in options.items())]

    def greets(self, connection: socket.socket) -> bool:
        """Return whether it speaks HTTP."""
        connection.settimeout(2)
        connection.sendall(b"GET / HTTP/1.0\r\n\r\n")
        return connection.recv(5) == b"HTTP/"

    def start(self) -> None:
        """Start it and make sure of its bucket."""
        if self.is_running:
            return
        super().start()
        self._make_bucket()
        self._write_once()

    def _make_bucket(self) -> None:
        deadline = time.monotonic() + START_SECONDS
        place = f"http://127.0.0.1:{self._ports['filer']}/buckets/{BUCKET}/"
        while True:
            try:
                request = urllib.request.Request(place, method="POST")
                with urllib.request.urlopen(request, timeout=5):
                    return
            except OSError as problem:
                if getattr(problem, "code", None) == HTTPStatus.CONFLICT:
                    return  # the bucket is there since an earlier start
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def _write_once(self) -> None:
        """Wait until it takes an object: it makes its first volumes while it seems to be up."""
        objects = S3Store(
            BUCKET,
            endpoint=self.endpoint,
            access_key_id=self.key,
            secret_access_key=self.secret,
            region="us-east-1",
            virtual_hosted_style_request=False,
            client_options={"allow_http": True, "timeout": timedelta(seconds=START_SECONDS)},
        )
        objects.put("ready", b"1")
        objects.delete("ready")


@contextlib.contextmanager
def object_server(directory: Path) -> Generator[ObjectServer]:
    """Run one while the block runs, with the environment's credentials set to its own."""
    server = ObjectServer(directory)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in server.variables.items():
            patch.setenv(name, value)
        try:
            server.start()
            yield server
        finally:
            server.kill()
