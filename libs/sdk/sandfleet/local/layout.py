"""Where everything of a local platform lies below its state directory."""

from __future__ import annotations

import fcntl
import hashlib
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from sandfleet_common.errors import Denied
from sandfleet_common.ids import new_ulid

IDS_EACH = 65_536
UID_BASE = 0x7000_0000
UID_SHARES = 8
UID_SHARE = 4096 * IDS_EACH
"""Host ids of one platform: 4,096 sandboxes. Platforms on one machine use different shares."""


class Layout:
    """Paths below one state directory."""

    def __init__(self, state: Path) -> None:
        self.state = state.absolute()
        self.config = self.state / "config"
        self.passwords = self.config / "passwords"
        self.run = self.state / "run"
        self.log = self.state / "log"
        self.layers = self.state / "layers"
        self.nats = self.state / "nats"
        self.redis = self.state / "redis"
        self.endpoints = self.run / "endpoints.json"
        self.api_key = self.config / "api_key"
        self.api_keys = self.config / "api_keys"
        self.settings = self.config / "settings"
        self._hash = hashlib.sha256(str(self.state).encode()).hexdigest()

    def make(self) -> None:
        """Make the directories, closed to other users.

        Raises:
            Denied: this user may not.
        """
        try:
            self.state.mkdir(parents=True, exist_ok=True, mode=0o711)
            for path in self._private():
                path.mkdir(exist_ok=True, mode=0o700)
        except PermissionError as problem:
            raise Denied(
                f"may not write {problem.filename}: become root, or set SANDFLEET_STATE_DIR"
            ) from None

    def _private(self) -> tuple[Path, ...]:
        below = (self.run, self.log, self.nats, self.redis)
        return (self.config, self.passwords, self.settings, *below)

    def record(self, part: str) -> Path:
        """Return the file that says which process a part is."""
        return self.run / f"{part}.pid"

    def log_of(self, part: str) -> Path:
        """Return where a part writes."""
        return self.log / f"{part}.log"

    def node_name(self) -> str:
        """Return the node's name; platforms on one machine must not share it."""
        return f"local-{self._hash[:6]}"

    def uid_base(self) -> int:
        """Return the first host id of this platform's sandboxes."""
        return UID_BASE + int(self._hash, 16) % UID_SHARES * UID_SHARE

    @contextmanager
    def locked(self, progress: Callable[[str], None]) -> Generator[None]:
        """Keep every other `up` and `down` of this state directory waiting."""
        with (self.run / "lock").open("w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress("another up or down is under way; waiting")
                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def write_private(path: Path, text: str) -> None:
    """Write a file that only its owner may read, whole or not at all."""
    beside = path.with_name(f".{path.name}.{new_ulid()}")
    beside.touch(mode=0o600)
    beside.write_text(text)
    beside.replace(path)
