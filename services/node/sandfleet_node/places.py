"""Where everything of a node lies on disk, and how files get there whole."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

from sandfleet_common.ids import new_ulid


class Places:
    """The directory of one node.

    service.lock        held by the one service that runs here
    draining            exists while the node takes no sandboxes
    ended.jsonl         sandboxes that have ended lately
    run/                the launcher's socket and log
    sandboxes/<id>/     spec.json, ids, commands/<number>, upper/, work/
    swap                a swap file, on machines that have none
    pools/<n>.img       what sandboxes write; pools/<n>: where the launcher has it mounted
    ready/<uid>/        made ahead for the next sandbox of an id range
    staging/<id>/       a snapshot while it is packed
    forks/<id>.json     what sandboxes of this node were forked from
    layers/             layers that only this node has
    layers/             packed here, and not or not yet in the store
    chunks/             what was read of layers in an object store
    trash/              what is being removed
    """

    def __init__(self, state_dir: Path, node: str) -> None:
        self.root = (state_dir / "node" / node).absolute()
        self.run = self.root / "run"
        self.sandboxes = self.root / "sandboxes"
        self.ready = self.root / "ready"
        self.trash = self.root / "trash"
        self.ended = self.root / "ended.jsonl"
        self.draining = self.root / "draining"
        self.lock = self.root / "service.lock"
        self.swap = self.root / "swap"
        self.pools = self.root / "pools"
        self.staging = self.root / "staging"
        """What snapshots are made of, while they are."""
        self.forks = self.root / "forks"
        self.chunks = self.root / "chunks"
        self.layers = (state_dir / "layers").absolute()

    def make(self) -> None:
        """Make the directories, closed to everybody but root."""
        for path in (
            self.root, self.run, self.sandboxes, self.ready, self.pools, self.trash, self.staging,
            self.forks,
        ):  # fmt: skip
            path.mkdir(parents=True, exist_ok=True, mode=0o700)

    def sandbox(self, sandbox_id: str) -> str:
        """Return a sandbox's directory."""
        return f"{self.sandboxes}/{sandbox_id}"

    def sandbox_ids(self) -> list[str]:
        """Return the names of all directories of sandboxes."""
        return [path.name for path in self.sandboxes.iterdir()]

    def ready_for(self, uid: int) -> str:
        """Return the directory made ahead for an id range."""
        return f"{self.ready}/{uid}"

    def ready_ranges(self) -> list[int]:
        """Return the ranges that a directory was made ahead for."""
        return [int(path.name) for path in self.ready.iterdir() if path.name.isdigit()]

    def discard(self, sandbox_id: str) -> None:
        """Move a sandbox's directory out of the way, to be removed later; none is no error."""
        try:
            Path(self.sandbox(sandbox_id)).rename(self.trash / f"{sandbox_id}-{new_ulid()}")
        except FileNotFoundError:
            return

    def throw_away(self, path: Path) -> None:
        """Move something out of the way, to be removed later; nothing there is no error."""
        try:
            path.rename(self.trash / f"{path.name}-{new_ulid()}")
        except FileNotFoundError:
            return

    def remove_all(self) -> None:
        """Remove the node's whole directory."""
        shutil.rmtree(self.root, ignore_errors=True)


_PAGE = 4096


def write_page(path: str, data: bytes) -> None:
    """Write a file like `write_whole`, in place when it is short: data that may end in blanks.

    All versions of up to a page have the same length, and the kernel does not interrupt a
    write of one page. So nothing is created, renamed and deleted, which file systems mind
    more than writing.
    """
    if len(data) > _PAGE:
        write_whole(path, data)
        return
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        is_longer = os.fstat(handle).st_size > _PAGE
        if not is_longer:
            os.write(handle, data.ljust(_PAGE))
    finally:
        os.close(handle)
    if is_longer:
        write_whole(path, data)


def write_whole(path: str, data: bytes) -> None:
    """Write a file so that a reader sees the old or the new one, never a part.

    It is not forced to disk: a machine that loses power loses its sandboxes too.
    """
    beside = f"{path}.{threading.get_ident()}"
    handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.write(handle, data)
    finally:
        os.close(handle)
    Path(beside).rename(path)
