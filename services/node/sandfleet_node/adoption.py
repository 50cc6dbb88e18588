"""What a node service finds when it starts: sandboxes to take over, and remains to clear away."""

from __future__ import annotations

import asyncio
import time

from sandfleet_common.errors import SandfleetError
from sandfleet_common.logs import Logger
from sandfleet_common.messages import SandboxInfo
from sandfleet_common.states import TERMINAL, Origin, State
from sandfleet_common.store import Store

from .agentlink import AgentLink
from .cgroups import Cgroups
from .core import death
from .disk import Disks
from .ending import LAUNCHER_DIED, Ending
from .keeper import Keeper
from .launcher import Channel, Found
from .moving import left_for
from .pausing import Pausing
from .places import Places
from .records import Records
from .sandbox import Sandbox, Saved, read_saved
from .sandboxes import Sandboxes
from .uids import IdRanges
from .workshop import Workshop

MOVED = "it had moved to another node"
NO_RECORD = "its node service restarted and has no record of it"
WHILE_DOWN = "it ended while its node service was down"
HALF_STARTED = "its node service went down while it was starting"
WHILE_STOPPING = "its node service went down while it was ending"
_AT_ONCE = 64


class Adoption:
    """Matches what the launcher holds with what is on disk, in the groups and in Redis."""

    def __init__(
        self,
        node: str,
        workshop: Workshop,
        sandboxes: Sandboxes,
        ending: Ending,
        keeper: Keeper,
        cgroups: Cgroups,
        disks: Disks,
        ranges: IdRanges,
        places: Places,
        pausing: Pausing,
        log: Logger,
    ) -> None:
        self._node = node
        self._pausing = pausing
        self._workshop = workshop
        self._sandboxes = sandboxes
        self._ending = ending
        self._keeper = keeper
        self._cgroups = cgroups
        self._disks = disks
        self._ranges = ranges
        self._places = places
        self._log = log

    async def adopt(self, found: Found) -> None:
        """Take over what lives, end what does not match, remove what is left of others."""
        saved = {
            name: read_saved(self._places.sandbox(name)) for name in self._places.sandbox_ids()
        }
        channels = {channel.sandbox_id: channel for channel in found.channels}
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(sandbox_id: str, record: Saved | None) -> None:
            async with gate:
                await self._one(sandbox_id, record, channels.get(sandbox_id), found)

        everything = {**dict.fromkeys(self._cgroups.known() | set(channels)), **saved}
        async with asyncio.TaskGroup() as group:
            for sandbox_id, record in everything.items():
                group.create_task(one(sandbox_id, record))
        self._disks.keep(set(everything))
        for sandbox_id in found.exits:
            if sandbox_id not in everything and self._keeper.launcher is not None:
                self._keeper.launcher.forget(sandbox_id)
        self._log.info("adoption.done", adopted=len(self._sandboxes), seen=len(everything))

    async def _one(
        self, sandbox_id: str, saved: Saved | None, channel: Channel | None, found: Found
    ) -> None:
        has_left = left_for(self._places.sandbox(sandbox_id)) is not None
        if has_left or saved is None or saved.info.state in TERMINAL:
            await self._clear(sandbox_id, channel, MOVED if has_left else NO_RECORD)
            return
        if saved.info.state is State.PREPARING and channel is None:
            # Nobody was told that it is ready. Whoever wants it asks again under its id, and
            # gets it made anew; an end on record here would turn that into a failure.
            await self._clear(sandbox_id, channel, HALF_STARTED)
            return
        try:
            sandbox = self._restore(saved)
        except ValueError as problem:
            await self._clear(sandbox_id, channel, f"its spec.json cannot be right: {problem}")
            return
        if channel is None:
            sandbox.status = found.exits.get(sandbox_id)
            sandbox.gone.set_result(None)
            self._cgroups.kill(sandbox_id)
            if sandbox.state is State.STOPPING:
                await self._finish_stop(sandbox, saved.info)
            else:
                reason, origin = self._why_gone(sandbox, found)
                await self._ending.end(sandbox, State.FAILED, reason, origin)
            return
        sandbox.pid = channel.pid
        link = AgentLink(channel.sock, sandbox)
        if sandbox.state is State.STOPPING:
            sandbox.link = link
            await self._finish_stop(sandbox, saved.info)
            return
        try:
            await self._pausing.adopt(sandbox)
            if sandbox.state is State.PAUSED:
                sandbox.adopt_frozen(link)
            else:
                await sandbox.adopt(link)
        except (SandfleetError, OSError) as problem:
            reason = f"its node service restarted and could not take it over: {problem}"
            await self._ending.end(sandbox, State.FAILED, reason, Origin.PLATFORM)
            return
        if sandbox.state is State.PREPARING:
            self._finish_start(sandbox)
        self._sandboxes.note(sandbox)
        self._sandboxes.watch(sandbox, time.time())
        self._log.info("sandbox.adopted", sandbox=sandbox_id, commands=sandbox.commands.running)

    async def _finish_stop(self, sandbox: Sandbox, info: SandboxInfo) -> None:
        """Go on where the service before this one was ending it, for the same reason."""
        reason, origin = info.reason or WHILE_STOPPING, info.origin or Origin.PLATFORM
        await self._ending.end(sandbox, State.STOPPED, reason, origin)

    def _finish_start(self, sandbox: Sandbox) -> None:
        """Go on where the service before this one stopped: the sandbox runs.

        It may have been told as ready: the spec that says so is written a moment later.
        """
        sandbox.ready_at = sandbox.active_at = time.time()
        if sandbox.spec.ttl_seconds is not None:
            sandbox.expires_at = sandbox.ready_at + sandbox.spec.ttl_seconds
        self._sandboxes.move(sandbox, State.RUNNING)
        self._sandboxes.keep(sandbox)

    def _restore(self, saved: Saved) -> Sandbox:
        info = saved.info
        self._ranges.adopt(saved.uid)
        sandbox = self._workshop.make(info.sandbox_id, info.spec, saved.ground, saved.uid)
        sandbox.restore(info)
        self._disks.adopt(info.sandbox_id, info.spec.resources.disk_bytes)
        self._sandboxes.add(sandbox)
        return sandbox

    def _why_gone(self, sandbox: Sandbox, found: Found) -> tuple[str, Origin]:
        status = found.exits.get(sandbox.id)
        if status is not None:
            kills = self._cgroups.oom_kills(sandbox.id)
            reason, origin = death(status, kills, sandbox.spec.resources.memory_bytes)
            return f"{WHILE_DOWN}: {reason}", origin
        if found.is_fresh:
            return LAUNCHER_DIED, Origin.PLATFORM
        return WHILE_DOWN, Origin.PLATFORM

    async def _clear(self, sandbox_id: str, channel: Channel | None, reason: str) -> None:
        """End and remove what nobody has a claim to."""
        launcher = self._keeper.launcher
        if channel is not None:
            channel.sock.close()
            if launcher is not None:
                launcher.kill(sandbox_id)
        self._cgroups.kill(sandbox_id)
        for _ in range(200):
            if not self._cgroups.is_populated(sandbox_id):
                break
            await asyncio.sleep(0.01)
        await self._ending.release(sandbox_id, None)
        self._log.warning("sandbox.cleared", sandbox=sandbox_id, reason=reason)

    def on_channel(self, channel: Channel) -> None:
        """End a sandbox that the service before this one had asked for: nobody waits for it."""
        channel.sock.close()
        if self._keeper.launcher is not None:
            self._keeper.launcher.kill(channel.sandbox_id)

    async def reconcile(self, store: Store, records: Records) -> None:
        """Correct records in Redis of sandboxes that this node does not have.

        Raises:
            Unreachable: Redis is away.
        """
        known = {sandbox.id for sandbox in self._sandboxes}
        strangers = [i for i in await store.live_on(self._node) if i not in known]
        for info in await store.get_many(strangers):
            if (
                info is None
                or info.state in (State.REQUESTED, State.PLACING)
                or (self._sandboxes.find(info.sandbox_id) is not None)
            ):
                continue
            records.save(self._corrected(info))

    def _corrected(self, info: SandboxInfo) -> SandboxInfo:
        ended = self._sandboxes.tombstones.get(info.sandbox_id)
        if ended is not None and ended.version > info.version:
            return ended
        return info.model_copy(
            update={
                "state": State.FAILED,
                "version": info.version + 1,
                "ended_at": time.time(),
                "reason": NO_RECORD,
                "origin": Origin.PLATFORM,
            }
        )
