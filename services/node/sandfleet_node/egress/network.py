"""The build network of a node: which sandboxes have it, and that it is there for them."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import time
from collections.abc import Iterable
from pathlib import Path

from pydantic import ValidationError

from sandfleet_common.bus import reconnect_delay
from sandfleet_common.errors import SandboxFailed, Unreachable
from sandfleet_common.ids import new_ulid
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import CHUNK_BYTES, FileWrite, Network
from sandfleet_node.config import NodeSettings
from sandfleet_node.files import Files
from sandfleet_node.metrics import NodeMetrics
from sandfleet_node.places import write_whole
from sandfleet_node.sandbox import Sandbox

from .discovery import discover
from .doors import open_door_aside
from .orders import VERSION, Add, Counts, Limits, Quit, Refused, Remove, RuleGiven, Rules
from .outfit import Found, files, variables
from .policy import Rule
from .proxylink import ProxyLink, end

_FOUND_FILE = "egress.json"
_FRESH_SECONDS = 600.0
_FRESH_WITH_PROBLEMS_SECONDS = 30.0
_RETRY_SECONDS = 0.2


class BuildNetwork:
    """Gives sandboxes with `network=build` their proxy. For others it does nothing at all."""

    def __init__(
        self,
        settings: NodeSettings,
        directory: Path,
        files: Files,
        tasks: Tasks,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._directory = directory
        self._orphan_seconds = settings.orphan_seconds
        self._own_rules = [RuleGiven.of(Rule.parse(text)) for text in settings.build_hosts]
        self._is_auto = settings.build_hosts_auto
        self._limits = Limits(
            connections_each=settings.build_connections_each,
            connections=settings.build_connections,
        )
        self._files = files
        self._tasks = tasks
        self._metrics = metrics
        self._log = log
        self._held: dict[str, Sandbox] = {}
        self._doors: dict[str, socket.socket] = {}
        """Opened, and not handed over yet."""
        self._dropped: set[str] = set()
        """Ended, and not told yet."""
        self._sent: dict[str, int] = {}
        self._base: dict[str, int] = {}
        """Bytes sent through proxies before the one that runs."""
        self._news = asyncio.Event()
        self._found: Found | None = None
        self._found_at = 0.0
        self._are_rules_told = False
        self._discovering = asyncio.Lock()
        self._refreshing: asyncio.Task[None] | None = None

    # -------------------------------------------------------------- sandboxes

    async def attach(self, sandbox: Sandbox) -> None:
        """Give a sandbox that starts its proxy, variables and files.

        Raises:
            SandboxFailed: that cannot be done.
            SandfleetError: its agent does not take the files.
        """
        if sandbox.spec.network is not Network.BUILD:
            return
        found = await self._set_up()
        for path, data in files(found).items():
            await self._write(sandbox, path, data)
        try:
            door = await open_door_aside(sandbox.pid)
        except OSError as problem:
            raise SandboxFailed(f"its build network could not be set up: {problem}") from None
        self._hold(sandbox, found, door)

    async def adopt(self, sandboxes: Iterable[Sandbox]) -> None:
        """Take over those of an earlier service; the proxy may have served them on."""
        wanted = [s for s in sandboxes if s.spec.network is Network.BUILD and s.ending is None]
        if not wanted:
            return
        self._found = self._found or self._recall()
        found = await self._set_up()
        for sandbox in wanted:
            with contextlib.suppress(SandboxFailed):  # it ended just now
                self._hold(sandbox, found, None)

    def _hold(self, sandbox: Sandbox, found: Found, door: socket.socket | None) -> None:
        if sandbox.ending is not None or sandbox.link is None or not sandbox.link.is_open:
            if door is not None:  # perhaps that of another process, if this one has died
                door.close()
            raise SandboxFailed("the sandbox ended while it was starting")
        sandbox.network_env = variables(found)
        self._held[sandbox.id] = sandbox
        if door is not None:
            self._doors[sandbox.id] = door
        self._news.set()

    def forget(self, sandbox: Sandbox) -> None:
        """Drop what a sandbox that ends had."""
        if self._held.pop(sandbox.id, None) is None:
            return
        door = self._doors.pop(sandbox.id, None)
        if door is not None:
            door.close()
        self._sent.pop(sandbox.id, None)
        self._base.pop(sandbox.id, None)
        self._dropped.add(sandbox.id)
        self._news.set()

    def sent_bytes(self, sandbox_id: str) -> int:
        """Return how much a sandbox has sent to hosts."""
        return self._sent.get(sandbox_id, 0)

    async def _write(self, sandbox: Sandbox, path: str, data: bytes) -> None:
        upload, active_at = new_ulid(), sandbox.active_at
        for start in range(0, len(data), CHUNK_BYTES):
            part = data[start : start + CHUNK_BYTES]
            body = FileWrite(
                sandbox_id=sandbox.id, path=path, upload=upload, position=start, data=part,
                end=start + len(part) == len(data), mode=0o644, user="root",
            )  # fmt: skip
            await self._files.write(sandbox, body)
        sandbox.active_at = active_at

    # ------------------------------------------------------------- the policy

    async def _set_up(self) -> Found:
        """Return how the machine is set up; what is known is used while it is looked at again."""
        if self._found is None:
            await self._discover()
        elif self._is_stale() and (self._refreshing is None or self._refreshing.done()):
            self._refreshing = self._tasks.start(self._discover(), "build hosts")
        return self._found or Found()

    def _is_stale(self) -> bool:
        has_problems = self._found is not None and self._found.problems
        fresh = _FRESH_WITH_PROBLEMS_SECONDS if has_problems else _FRESH_SECONDS
        return time.monotonic() - self._found_at > fresh

    async def _discover(self) -> None:
        async with self._discovering:
            if self._found is not None and not self._is_stale():
                return
            found = await discover()
            self._found_at = time.monotonic()
            if not self._is_auto:
                found = found.model_copy(update={"rules": (), "problems": ()})
            for problem in found.problems:
                self._log.warning("egress.unknown", problem=problem)
            is_new = self._found is None or self._found.rules != found.rules
            self._found, self._are_rules_told = found, False
            if is_new:
                self._log.info("egress.policy", hosts=[str(g.rule()) for g in self._rules()])
            with contextlib.suppress(OSError):
                write_whole(str(self._directory / _FOUND_FILE), found.model_dump_json().encode())
            self._news.set()

    def _recall(self) -> Found | None:
        """Return what an earlier service found out: its sandboxes should not wait for it anew."""
        try:
            return Found.model_validate_json((self._directory / _FOUND_FILE).read_bytes())
        except (OSError, ValidationError):
            return None

    def _rules(self) -> tuple[RuleGiven, ...]:
        found = self._found.rules if self._found is not None else ()
        return (*self._own_rules, *found)

    # -------------------------------------------------------------- the proxy

    async def run(self) -> None:
        """Keep a proxy running while any sandbox needs one, until cancelled."""
        tries = 0
        while True:
            await self._news.wait()
            if not self._held:
                self._dropped.clear()
                self._news.clear()
                continue
            try:
                link = await ProxyLink.open(self._directory, self._orphan_seconds)
            except Unreachable as problem:
                tries += 1
                self._log.error("egress.down", error=problem.message, tries=tries)
                await asyncio.sleep(reconnect_delay(tries, random.random()))
                continue
            tries = 0
            try:
                await self._serve(link)
            except OSError as problem:
                self._log.warning("egress.lost", error=str(problem))
                self._news.set()
                link.close()
                await link.reap()
                await asyncio.sleep(_RETRY_SECONDS)
            finally:
                link.close()
                self._metrics.egress_open.set(0)

    async def _serve(self, link: ProxyLink) -> None:
        """Tell a proxy what it is to do and hear what it does, while any sandbox needs it.

        Raises:
            OSError: it has gone.
        """
        if link.version != VERSION:
            await link.send(Quit())
            raise ConnectionError("it is of another version and was told to end")
        await self._compare(link)
        hearing = self._tasks.start(self._hear(link), "egress reports")
        telling = self._tasks.start(self._tell(link), "egress orders")
        try:
            await asyncio.wait({hearing, telling}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            hearing.cancel()
            telling.cancel()
        if hearing.done() and self._held:
            raise ConnectionError("the proxy of build sandboxes has ended")

    async def _compare(self, link: ProxyLink) -> None:
        """Find out what a proxy that was just connected to lacks, and what it should not hold."""
        self._are_rules_told = False
        self._dropped |= link.sent.keys() - self._held.keys()
        for sandbox_id, sandbox in list(self._held.items()):
            if sandbox_id in link.sent:
                self._sent[sandbox_id] = self._base.get(sandbox_id, 0) + link.sent[sandbox_id]
                continue
            self._base[sandbox_id] = self._sent.get(sandbox_id, 0)
            if sandbox_id not in self._doors:
                await self._reopen(sandbox)
        self._news.set()

    async def _reopen(self, sandbox: Sandbox) -> None:
        try:
            door = await open_door_aside(sandbox.pid)
        except OSError as problem:
            self._log.warning("egress.not_reopened", sandbox=sandbox.id, error=str(problem))
            return
        if self._held.get(sandbox.id) is sandbox:
            self._doors[sandbox.id] = door
        else:
            door.close()

    async def _tell(self, link: ProxyLink) -> None:
        """Hand over doors and tell of ends, as they come; return when nobody is left."""
        with contextlib.suppress(OSError):  # noticed by who hears
            while self._held:
                await self._news.wait()
                self._news.clear()
                await self._tell_news(link)

    async def _tell_news(self, link: ProxyLink) -> None:
        if not self._are_rules_told:
            self._are_rules_told = True
            forward = (self._found or Found()).forward
            await link.send(Rules(rules=self._rules(), forward=forward, limits=self._limits))
        while self._dropped:
            await link.send(Remove(sandbox_id=self._dropped.pop()))
        while self._doors:
            sandbox_id, door = self._doors.popitem()
            with door:
                await link.send(Add(sandbox_id=sandbox_id), door.fileno())

    async def _hear(self, link: ProxyLink) -> None:
        with contextlib.suppress(OSError):
            while (report := await link.receive()) is not None:
                if isinstance(report, Refused):
                    self._log.warning(
                        "egress.refused", sandbox=report.sandbox_id, kind=report.kind,
                        host=report.host, reason=report.reason,
                    )  # fmt: skip
                else:
                    self._count(report)

    def _count(self, counts: Counts) -> None:
        for sandbox_id, sent in counts.sent.items():
            if sandbox_id in self._held:
                self._sent[sandbox_id] = self._base.get(sandbox_id, 0) + sent
        self._metrics.egress_connections.inc(counts.opened)
        self._metrics.egress_received.inc(counts.received)
        self._metrics.egress_open.set(counts.connections)
        for kind, count in counts.refused.items():
            self._metrics.egress_refused.labels(kind).inc(count)

    def quit(self) -> None:
        """End the proxy, for a node that ends all its sandboxes."""
        end(self._directory)

    def close(self) -> None:
        """Leave the proxy to the next service."""
        for door in self._doors.values():
            door.close()
        self._doors.clear()
