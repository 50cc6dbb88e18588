"""Clients that want to hear of changes of files."""

from __future__ import annotations

import time
from collections.abc import Callable

from sandfleet_common import messages as m
from sandfleet_common import wire
from sandfleet_common.errors import FileProblem
from sandfleet_common.streams import SILENCE_SECONDS
from sandfleet_common.wire import EventKind, Frame, FrameFlag, FrameType, Tag

from .clientstreams import check_inbox
from .files import path_fields, text
from .sandbox import Sandbox

_CHANGES = {
    EventKind.CREATE: m.FileChange.CREATE,
    EventKind.WRITE: m.FileChange.WRITE,
    EventKind.REMOVE: m.FileChange.REMOVE,
    EventKind.RENAME: m.FileChange.RENAME,
    EventKind.CHMOD: m.FileChange.CHMOD,
}


class _Watch:
    __slots__ = ("deliver", "heard_at", "id", "name", "sequence")

    def __init__(self, name: str, id: int, deliver: str) -> None:
        self.name = name
        self.id = id
        self.deliver = deliver
        self.sequence = 0
        self.heard_at = time.monotonic()


class Watches:
    """All watches of the node's sandboxes. One that is not renewed for a minute ends."""

    def __init__(self, tell: Callable[[str, bytes], None]) -> None:
        self._tell = tell
        self._by_sandbox: dict[str, dict[str, _Watch]] = {}

    async def watch(self, sandbox: Sandbox, body: m.FileWatch) -> m.Ok:
        """Begin a watch, or keep one alive.

        Raises:
            FileProblem: there is no such path, or too many watches.
        """
        deliver = check_inbox(body.deliver)
        known = self._by_sandbox.get(sandbox.id, {}).get(body.watch)
        if known is not None:
            known.heard_at, known.deliver = time.monotonic(), deliver
            return m.Ok()
        sandbox.touch()
        watch = _Watch(body.watch, sandbox.next_id(), deliver)
        watches = self._by_sandbox.setdefault(sandbox.id, {})
        watches[body.watch] = watch
        try:
            await sandbox.agent().request(
                FrameType.WATCH,
                watch.id,
                flags=FrameFlag.RECURSIVE if body.recursive else FrameFlag.NONE,
                payload=wire.pack_fields(path_fields(body)),
            )
        except FileProblem as problem:
            watches.pop(body.watch, None)
            raise FileProblem(problem.message, **{"path": body.path, **problem.fields}) from None
        except BaseException:
            watches.pop(body.watch, None)
            raise
        return m.Ok()

    def unwatch(self, sandbox: Sandbox, name: str) -> m.Ok:
        """End a watch; none is no error."""
        watch = self._by_sandbox.get(sandbox.id, {}).pop(name, None)
        if watch is not None and sandbox.link is not None:
            sandbox.link.tell(FrameType.UNWATCH, watch.id)
        return m.Ok()

    def on_event(self, sandbox: Sandbox, frame: Frame) -> None:
        """Tell a client of a change."""
        watch = next(
            (w for w in self._by_sandbox.get(sandbox.id, {}).values() if w.id == frame.id), None
        )
        if watch is None:
            if sandbox.link is not None:
                sandbox.link.tell(FrameType.UNWATCH, frame.id)
            return
        fields = dict(wire.unpack_fields(frame.payload))
        kind, path = fields.get(Tag.EVENT), fields.get(Tag.PATH, b"")
        watch.sequence += 1
        event = m.FileEvent(
            watch=watch.name,
            sequence=watch.sequence,
            kind=_CHANGES[EventKind(kind)] if isinstance(kind, int) else m.FileChange.WRITE,
            path=text(path) if isinstance(path, bytes) else "",
            overflow=bool(frame.flags & FrameFlag.OVERFLOW),
        )
        self._tell(watch.deliver, event.encode())

    def forget(self, sandbox: Sandbox) -> None:
        """Drop the watches of a sandbox that ends."""
        self._by_sandbox.pop(sandbox.id, None)

    def expire(self, find: Callable[[str], Sandbox | None], now: float) -> None:
        """End watches that nobody has renewed."""
        for sandbox_id, watches in list(self._by_sandbox.items()):
            sandbox = find(sandbox_id)
            for name, watch in list(watches.items()):
                if sandbox is not None and now - watch.heard_at > SILENCE_SECONDS:
                    self.unwatch(sandbox, name)
            if sandbox is None or not watches:
                self._by_sandbox.pop(sandbox_id, None)
