"""What is on record of snapshots: in the store, and on this node while one is not ready.

A snapshot that is under way has a directory for staging with its newest record in it; so
the next service knows which ones the one before did not finish. What forks are made of is
on record on this node only.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import time
from collections.abc import Callable
from pathlib import Path

from pydantic import ValidationError

from sandfleet_common.errors import SandfleetError
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    Digest,
    Failure,
    Message,
    SandboxSpec,
    SnapshotInfo,
    SnapshotState,
)
from sandfleet_node.layers import Store
from sandfleet_node.places import Places, write_whole

_KIND = "snapshots"
_UNFINISHED = "info.json"
_LOOKS, _LOOK_SECONDS = 3, 0.5
RESTARTED = "its node service restarted before it was ready"


class Forked(Message):
    """What a fork's children are made of, and their parent's wishes."""

    info: SnapshotInfo
    spec: SandboxSpec
    job_id: str | None = None
    packed: Digest | None = None
    """The layer in the store that has the same files, once a snapshot needed one."""

    @property
    def digest(self) -> Digest:
        """What the directory that they stand on is called."""
        return self.info.layers[0]


def name_of_held(snapshot_id: str) -> Digest:
    """Return what a fork's directory is called among layers; it has no content to be named by."""
    return f"sha256:{hashlib.sha256(f'held:{snapshot_id}'.encode()).hexdigest()}"


class SnapshotRecords:
    """Reads and writes records of snapshots."""

    def __init__(self, places: Places, store: Store, log: Logger) -> None:
        self._places = places
        self._store = store
        self._log = log
        self._forked: dict[str, Forked] = {}
        self._unsure: set[str] = set()
        """Of these an older record may still be written, by a store that did not answer."""

    # ----------------------------------------------------------------- store

    async def find(self, snapshot_id: str) -> SnapshotInfo | None:
        """Return what is on record of a snapshot.

        Raises:
            Unreachable: the store does not answer.
        """
        if (info := self.local(snapshot_id)) is not None:
            return info
        data = await self._store.record(_KIND, snapshot_id)
        return None if data is None else SnapshotInfo.decode(data)

    async def save(self, info: SnapshotInfo) -> None:
        """Write a record into the store.

        Raises:
            Unreachable: the store does not answer.
        """
        data = info.model_dump_json().encode()
        await self._store.put_record(_KIND, info.snapshot_id, data)

    async def save_if_up(self, info: SnapshotInfo) -> bool:
        """Write a record unless the store is away; return whether it was written."""
        try:
            await self.save(info)
            return True
        except (SandfleetError, OSError) as problem:
            self._log.warning("snapshot.unrecorded", snapshot=info.snapshot_id, error=str(problem))
            self._unsure.add(info.snapshot_id)
            return False

    async def save_last(self, info: SnapshotInfo) -> bool:
        """Write the record that is not to change any more; return whether it was written.

        A store that was away may still carry out what it was asked before: so it is looked at
        again for a moment.
        """
        if not await self.save_if_up(info):
            return False
        if info.snapshot_id not in self._unsure:
            return True
        for _ in range(_LOOKS):
            await asyncio.sleep(_LOOK_SECONDS)
            if await self.find(info.snapshot_id) != info and not await self.save_if_up(info):
                return False
        self._unsure.discard(info.snapshot_id)
        return True

    async def save_key(self, key: str, digest: str) -> None:
        """Let a layer be found under a key.

        Raises:
            Unreachable: the store does not answer.
        """
        await self._store.put_record("keys", key, digest.encode())

    # ------------------------------------------------------------- under way

    def begin(self, info: SnapshotInfo, *, is_local: bool) -> None:
        """Note on disk that a snapshot is under way; of a local one only a place is made.

        Who asked for a local one asks again, and it is made anew.

        Raises:
            OSError: the disk is full.
        """
        folder = self._places.staging / info.snapshot_id
        folder.mkdir(mode=0o700)
        if not is_local:
            write_whole(str(folder / _UNFINISHED), info.model_dump_json().encode())

    def leave(self, info: SnapshotInfo) -> None:
        """Note on disk how a snapshot ended that the store does not take the record of."""
        with contextlib.suppress(OSError):  # then it is told of as unfinished
            path = self._places.staging / info.snapshot_id / _UNFINISHED
            write_whole(str(path), info.model_dump_json().encode())

    def end(self, snapshot_id: str) -> None:
        """Remove what is left of a snapshot that is under way no more."""
        self._places.throw_away(self._places.staging / snapshot_id)

    async def fail_unfinished(self, is_running: Callable[[str], bool]) -> None:
        """Say of snapshots that nobody works on that they failed, and remove what is left.

        Args:
            is_running: says of which somebody does.

        Raises:
            Unreachable: the store does not answer; those that are left wait for the next call.
        """
        for folder in sorted(self._places.staging.iterdir()):
            if is_running(folder.name):
                continue
            info = _read(folder / _UNFINISHED)
            if info is not None:
                await self._fail(info)
            self.end(folder.name)

    async def _fail(self, info: SnapshotInfo) -> None:
        on_record = await self.find(info.snapshot_id)
        if on_record is not None and on_record.state in (
            SnapshotState.READY, SnapshotState.FAILED,
        ):  # fmt: skip
            return
        if info.state is SnapshotState.FAILED:
            await self.save(info)
            return
        phase = str(info.state if on_record is None else on_record.state)
        failure = Failure(
            code="interrupted", message=f"{phase} failed: {RESTARTED}", fields={"phase": phase}
        )
        await self.save(
            info.model_copy(
                update={
                    "state": SnapshotState.FAILED, "failure": failure, "ended_at": time.time(),
                }
            )
        )  # fmt: skip
        self._log.warning("snapshot.unfinished", snapshot=info.snapshot_id, phase=phase)

    # ----------------------------------------------------------------- forks

    def load_forks(self) -> set[str]:
        """Read what is on record of forks, after a start; return their snapshots' ids."""
        for path in self._places.forks.glob("*.json"):
            try:
                forked = Forked.decode(path.read_bytes())
            except (OSError, ValueError, ValidationError):
                path.unlink(missing_ok=True)
                continue
            self._forked[forked.info.snapshot_id] = forked
        for path in self._places.forks.iterdir():
            if path.is_dir() and path.name not in self._forked:
                self._places.throw_away(path)
        return set(self._forked)

    def fork(self, snapshot_id: str) -> Forked | None:
        """Return what a fork's children are made of."""
        return self._forked.get(snapshot_id)

    def local(self, snapshot_id: str) -> SnapshotInfo | None:
        """Return a snapshot that only this node has."""
        forked = self._forked.get(snapshot_id)
        return None if forked is None else forked.info

    def forks(self) -> list[Forked]:
        """Return all of them."""
        return list(self._forked.values())

    def held(self, digest: Digest) -> Forked | None:
        """Return what a fork's children stand on, by the name that it has among layers."""
        for forked in self._forked.values():
            if forked.digest == digest:
                return forked
        return None

    def add_fork(self, forked: Forked) -> None:
        """Put a fork's snapshot on record, on this node only.

        Raises:
            OSError: the disk is full.
        """
        write_whole(str(self._path(forked.info.snapshot_id)), forked.encode())
        self._forked[forked.info.snapshot_id] = forked

    def remove_fork(self, snapshot_id: str) -> None:
        """Forget one."""
        self._forked.pop(snapshot_id, None)
        self._path(snapshot_id).unlink(missing_ok=True)

    def _path(self, snapshot_id: str) -> Path:
        return self._places.forks / f"{snapshot_id}.json"


def _read(path: Path) -> SnapshotInfo | None:
    try:
        return SnapshotInfo.model_validate_json(path.read_bytes())
    except (OSError, ValueError):
        return None
