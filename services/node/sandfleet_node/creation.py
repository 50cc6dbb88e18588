"""How a sandbox comes to be: admission, then one step after another, all or nothing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from concurrent.futures import Executor
from functools import partial

from sandfleet_common.errors import (
    Broken,
    NoCapacity,
    NotFound,
    SandboxFailed,
    SandfleetError,
    TimedOut,
    Unreachable,
)
from sandfleet_common.ids import node_of
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    Failure,
    NodeCreate,
    NodeCreated,
    NodeCreateItem,
    Outcome,
)
from sandfleet_common.states import Origin, State

from .agentlink import AgentLink
from .batching import Batching
from .cgroups import Cgroups
from .config import IDS_EACH
from .core import Limits, refusal
from .cores import separate
from .disk import Disks
from .egress.network import BuildNetwork
from .ending import Ending
from .keeper import Keeper
from .launcher import LauncherRefused
from .layermounts import LayerMounts
from .layers import Catalog, Resolved
from .layers.reading import mapped
from .metrics import NodeMetrics
from .records import Records
from .sandbox import Ground, Sandbox
from .sandboxes import Sandboxes, gone
from .stock import Part
from .storeroom import Storeroom
from .turnstile import Turnstile
from .workshop import Workshop

_LANES = 3
"""Threads that prepare sandboxes: most of it is waiting for the kernel."""


class Creation:
    """Creates sandboxes in batches; the same id twice is one sandbox."""

    def __init__(
        self,
        node: str,
        limits: Limits,
        turnstile: Turnstile,
        workshop: Workshop,
        sandboxes: Sandboxes,
        ending: Ending,
        keeper: Keeper,
        catalog: Catalog,
        mounts: LayerMounts,
        cgroups: Cgroups,
        disks: Disks,
        storeroom: Storeroom,
        build_network: BuildNetwork,
        records: Records,
        pool: Executor,
        tasks: Tasks,
        metrics: NodeMetrics,
        log: Logger,
        *,
        has_cookies: bool,
    ) -> None:
        self._node = node
        self._limits = limits
        self._gate = turnstile
        self._workshop = workshop
        self._sandboxes = sandboxes
        self._ending = ending
        self._keeper = keeper
        self._catalog = catalog
        self._mounts = mounts
        self._cgroups = cgroups
        self._disks = disks
        self._storeroom = storeroom
        self._build_network = build_network
        self._records = records
        self._threads = Batching(pool, _LANES)
        self._saving: dict[str, asyncio.Future[None]] = {}
        """Specs of ready sandboxes that are being written."""
        self._tasks = tasks
        self._metrics = metrics
        self._log = log
        self._cookies = has_cookies

    async def create(self, body: NodeCreate) -> NodeCreated:
        """Create what the batch asks for, and return an outcome for each item."""
        arrived_at = time.time()
        grounds = await self._grounds(body)
        begun = [self._begin(item, arrived_at, grounds) for item in body.items]
        started = [b for b in begun if isinstance(b, Sandbox)]
        starting = {s.starting for s in started if s.starting is not None}
        if starting:
            await asyncio.wait(starting)
        outcomes = [b if isinstance(b, Outcome) else await self._outcome(b) for b in begun]
        if started:
            await self._settled(started)
        for outcome in outcomes:
            self._metrics.creations.labels(outcome.status).inc()
        return NodeCreated(outcomes=outcomes)

    async def _grounds(self, body: NodeCreate) -> dict[str, Ground | SandfleetError]:
        """Find out what the environments of a batch are; known ones are not waited for."""
        latest: dict[str, float] = {}
        for item in body.items:
            if item.moved_from is None and self._is_known(item.sandbox_id):
                continue
            name = item.spec.environment
            latest[name] = max(item.deadline_at, latest.get(name, 0.0))
        found: dict[str, Ground | SandfleetError] = {}
        for name in latest:
            if (known := self._catalog.recall(name)) is not None:
                found[name] = _ground_of(known)
        unknown = [name for name in latest if name not in found]
        looked = await mapped(lambda name: self._ground(name, latest[name]), unknown)
        return found | dict(zip(unknown, looked, strict=True))

    def _is_known(self, sandbox_id: str) -> bool:
        sandboxes = self._sandboxes
        return (sandboxes.find(sandbox_id) or sandboxes.tombstones.get(sandbox_id)) is not None

    async def _ground(self, reference: str, deadline_at: float) -> Ground | SandfleetError:
        try:
            async with asyncio.timeout(max(0.1, deadline_at - time.time())):
                return _ground_of(await self._catalog.resolve(reference))
        except NotFound as problem:
            # Nodes share the store, so a scheduler may believe this of all of them.
            return NotFound(problem.message, **{**problem.fields, "environment": reference})
        except SandfleetError as problem:
            return problem
        except TimeoutError:
            return Unreachable("the store of layers did not answer by the deadline")

    def _begin(
        self,
        item: NodeCreateItem,
        arrived_at: float,
        grounds: Mapping[str, Ground | SandfleetError],
    ) -> Sandbox | Outcome:
        known = self._sandboxes.find(item.sandbox_id)
        if known is not None:
            return known
        ended = self._sandboxes.tombstones.get(item.sandbox_id)
        if ended is not None and item.moved_from is None:
            return Outcome(
                sandbox_id=item.sandbox_id,
                status="failed",
                info=ended,
                failure=Failure.from_error(self._sandboxes.absence(ended)),
            )
        try:
            return self._accept(item, arrived_at, grounds.get(item.spec.environment))
        except SandfleetError as problem:
            return Outcome(
                sandbox_id=item.sandbox_id, status="refused", failure=Failure.from_error(problem)
            )

    def _accept(
        self, item: NodeCreateItem, arrived_at: float, ground: Ground | SandfleetError | None
    ) -> Sandbox:
        if node_of(item.sandbox_id) != self._node and item.moved_from is None:
            raise NotFound(f"{item.sandbox_id} names another node; this is {self._node}")
        load, asked = self._sandboxes.load, item.spec.resources
        problem = refusal(load, self._limits, asked, time.monotonic())
        if problem is not None:
            raise problem
        if arrived_at >= item.deadline_at:
            raise TimedOut("the deadline was over when the request arrived")
        if ground is None:  # it was known a moment ago, and is forgotten
            raise Unreachable("ask again: the sandbox of this id has just ended")
        if isinstance(ground, SandfleetError):
            raise ground
        sandbox = self._workshop.make(item.sandbox_id, item.spec, ground, 0)
        sandbox.note_request(item, arrived_at)
        self._sandboxes.add(sandbox)
        sandbox.starting = self._tasks.start(
            self._start(sandbox, arrived_at, item.deadline_at), f"start {sandbox.id}"
        )
        sandbox.starting.add_done_callback(partial(self._on_broken_start, sandbox))
        return sandbox

    def _on_broken_start(self, sandbox: Sandbox, starting: asyncio.Task[None]) -> None:
        """Release a sandbox whose start failed by a mistake of ours: it counts, and has ids."""
        if not starting.cancelled() and (problem := starting.exception()) is not None:
            sandbox.failure = Broken(f"the sandbox could not start: {problem}")
            reason = sandbox.failure.message
            self._ending.begin(sandbox, State.FAILED, reason, Origin.PLATFORM)

    async def _settled(self, sandboxes: list[Sandbox]) -> None:
        """Wait until what is about to be told is on disk, and, if that is quick, in Redis."""
        saving = [f for s in sandboxes if (f := self._saving.get(s.id)) is not None]
        await self._records.settled()
        if saving:
            await asyncio.wait(saving)

    async def _outcome(self, sandbox: Sandbox) -> Outcome:
        if sandbox.state in (State.RUNNING, State.PAUSED) and sandbox.ending is None:
            return Outcome(sandbox_id=sandbox.id, status="ready", info=sandbox.info())
        if sandbox.ending is not None:
            await asyncio.shield(sandbox.ending)
        info = sandbox.info()
        failure = sandbox.failure or gone(info)
        return Outcome(
            sandbox_id=sandbox.id, status="failed", info=info, failure=Failure.from_error(failure)
        )

    async def _start(self, sandbox: Sandbox, arrived_at: float, deadline_at: float) -> None:
        """Start a sandbox, or release all of it and say why it did not start."""
        try:
            async with asyncio.timeout(deadline_at - arrived_at):
                async with self._gate:
                    await self._set_up(sandbox)
        except TimeoutError:
            sandbox.failure = TimedOut("the sandbox was not ready by its deadline")
        except LauncherRefused as problem:
            sandbox.failure = SandboxFailed(
                f"the sandbox could not start: {problem}", step=problem.step
            )
        except Unreachable as problem:
            sandbox.failure = SandboxFailed(f"the sandbox could not start: {problem.message}")
        except SandfleetError as problem:
            sandbox.failure = problem
        except OSError as problem:
            sandbox.failure = SandboxFailed(f"the sandbox could not start: {problem}")
        finally:
            sandbox.starting = None
        if sandbox.failure is not None:
            self._log.warning(
                "sandbox.start_failed", sandbox=sandbox.id, error=sandbox.failure.message
            )
            await self._ending.end(sandbox, State.FAILED, sandbox.failure.message, Origin.PLATFORM)
        elif sandbox.ending is None:
            self._ready(sandbox, arrived_at)

    def _ready(self, sandbox: Sandbox, arrived_at: float) -> None:
        now = time.time()
        sandbox.ready_at = sandbox.active_at = now
        sandbox.start_ms = max(0.0, round((now - arrived_at) * 1000, 3))
        if sandbox.spec.ttl_seconds is not None:
            sandbox.expires_at = now + sandbox.spec.ttl_seconds
        sandbox.is_silent = False
        self._sandboxes.move(sandbox, State.RUNNING)
        saving = self._threads.run(partial(self._save, sandbox))
        self._saving[sandbox.id] = saving
        saving.add_done_callback(lambda _: self._saving.pop(sandbox.id, None))
        self._metrics.start.observe(now - arrived_at)

    async def _set_up(self, sandbox: Sandbox) -> None:
        try:
            part = self._storeroom.claim()
        except LookupError as problem:
            raise NoCapacity(str(problem)) from None
        sandbox.uid = part.uid
        # Waited for in any case: whoever ends the sandbox must find all that was made of it.
        await until_done(self._threads.run(partial(self._prepare, sandbox, part)))
        try:
            await self._mounts.ensure(sandbox.ground.layers)
        except NotFound:
            self._catalog.forget(sandbox.ground.reference)  # removed, and collected since
            raise
        pid, channel = await self._keeper.need().create(self._request(sandbox))
        sandbox.pid, sandbox.link = pid, AgentLink(channel, sandbox)
        if self._cookies:
            separate(pid)
        await sandbox.greet(sandbox.link)
        await self._build_network.attach(sandbox)

    def _save(self, sandbox: Sandbox) -> None:
        """Write that it runs; in a thread."""
        try:
            sandbox.save()
        except FileNotFoundError:
            return  # it has ended meanwhile
        except OSError as problem:
            # Its spec says still that it is starting, from which the next service goes on.
            self._log.warning("sandbox.unsaved", sandbox=sandbox.id, error=str(problem))

    def _prepare(self, sandbox: Sandbox, part: Part) -> None:
        """Make its directory, its disk and its control groups, and note it down; in a thread."""
        resources = sandbox.spec.resources
        ready_for = part.uid if part.is_ready else None
        try:
            self._storeroom.move_in(part, sandbox.id)
            self._disks.add(sandbox.id, resources.disk_bytes)
            self._cgroups.create(sandbox.id, resources, sandbox.spec.qos, ready_for)
            sandbox.save()
        except BaseException:
            self._storeroom.drop(part)
            raise

    def _request(self, sandbox: Sandbox) -> list[tuple[str, str | int]]:
        resources = sandbox.spec.resources
        upper, work = self._disks.layer(sandbox.id)
        fields: list[tuple[str, str | int]] = [
            ("id", sandbox.id),
            ("uid", sandbox.uid),
            ("ids", IDS_EACH),
            *(("lower", digest) for digest in sandbox.ground.layers),
            ("upper", upper),
            ("work", work),
            ("hostname", f"sb-{sandbox.id[-8:]}"),
            ("cgroup2", self._cgroups.v2_dir(sandbox.id)),
            ("nofile", resources.open_files),
        ]
        file_limit = self._disks.file_limit(sandbox.id, resources.disk_bytes)
        if file_limit is not None:
            fields.append(("fsize", file_limit))
        fields += [("cgroup", path) for path in self._cgroups.v1_dirs(sandbox.id)]
        return fields


def _ground_of(known: Resolved) -> Ground:
    return Ground(known.layers, known.env, known.user, known.workdir, known.reference)


async def until_done(work: asyncio.Future[None]) -> None:
    """Wait until work in a thread is over, also when cancelled meanwhile, once or again."""
    cancelled: asyncio.CancelledError | None = None
    while not work.done():
        try:
            await asyncio.wait({work})
        except asyncio.CancelledError as problem:
            cancelled = problem
    if cancelled is not None:
        work.exception()  # seen; whoever cancelled goes on from here
        raise cancelled
    work.result()
