"""A client of the platform: create sandboxes, find them, submit jobs.

async with AsyncClient.connect() as client:
    async with await client.create() as sandbox:
        print((await sandbox.run("uname -a")).text)
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any, Self, cast

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import BadRequest, SandfleetError
from sandfleet_common.ids import new_ulid, node_of
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Level, Logger
from sandfleet_common.states import State

from .acting import act
from .calling import CALLS_AT_ONCE, Call, ask, many
from .calls import call
from .connection import Connection
from .endpoints import NatsPlace, Place, find
from .environments import AsyncEnvironments
from .functions import AsyncFunctionMaker
from .job import AsyncJob
from .results import CallResult, call_result_of
from .sandbox import CLEANUP_SECONDS, AsyncSandbox
from .snapshot import AsyncSnapshots, Kept
from .transport import Transport
from .usage import FleetUsage, ask_fleet

LEAST_SECONDS = 1.0
CREATE_SECONDS = 60.0
PAGE_SANDBOXES = 1000
DRAIN_SECONDS = 5.0


class AsyncClient:
    """A client. Open it with `async with`, and use it for as many sandboxes as you like.

    Without arguments it finds the platform by itself: `SANDFLEET_NATS`, else
    `SANDFLEET_URL` with `SANDFLEET_API_KEY`, else the one running on this machine.
    """

    def __init__(
        self,
        *,
        nats: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        state: Path | str | None = None,
        name: str = "sdk",
    ) -> None:
        self._place = find(nats=nats, url=url, api_key=api_key, state=state)
        self._name = name
        self._stack = AsyncExitStack()
        self._opened: Connection | None = None

    @classmethod
    def connect(
        cls,
        *,
        nats: str | None = None,
        url: str | None = None,
        api_key: str | None = None,
        state: Path | str | None = None,
        name: str = "sdk",
    ) -> Self:
        """Return a client to open with `async with`.

        `nats` is `nats://user:password@host:port`; `url` and `api_key` name a
        gateway; `state` the state directory of a platform on this machine.

        Raises:
            BadRequest: an address is malformed.
            NotFound: nothing was given and no platform runs here.
        """
        return cls(nats=nats, url=url, api_key=api_key, state=state, name=name)

    async def open(self) -> None:
        """Connect; done by entering the block.

        Raises:
            Unreachable: nobody answers there.
        """
        if self._opened is not None:
            return
        async with AsyncExitStack() as stack:
            log = Logger("sdk", level=Level.ERROR)
            transport = await stack.enter_async_context(_transport(self._place, self._name))
            tasks = await stack.enter_async_context(Tasks(log))
            self._opened = Connection(transport, tasks)
            self._stack = stack.pop_all()

    async def close(self) -> None:
        """Let go of the connection; sandboxes live on."""
        self._opened = None
        await self._stack.aclose()

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    @property
    def environments(self) -> AsyncEnvironments:
        """What sandboxes are created from."""
        return AsyncEnvironments(self._connection)

    @property
    def snapshots(self) -> AsyncSnapshots:
        """What was kept of sandboxes."""
        return AsyncSnapshots(self._connection)

    # --------------------------------------------------------------- sandboxes

    async def create(
        self,
        spec: m.SandboxSpec | None = None,
        *,
        deadline: float = CREATE_SECONDS,
        key: str | None = None,
    ) -> AsyncSandbox:
        """Create a sandbox and return it once it is ready.

            spec = SandboxSpec(environment="debian", ttl_seconds=600)
            async with await client.create(spec) as sandbox:
                ...

        The same `key` again returns the same sandbox.

        Raises:
            NotFound: there is no such environment; names those that exist.
            NoCapacity: no node took it before the deadline; says what stood in the way.
            QuotaExceeded: the project has used up what it was granted.
        """
        body = m.SandboxCreate.of(
            spec=spec or m.SandboxSpec(), deadline_seconds=deadline, key=key or new_ulid()
        )
        # The scheduler answers by the deadline; the attempt ends a little after it.
        try:
            info = await call(
                self._connection.transport,
                s.SANDBOX_CREATE,
                body,
                within=deadline + 5,
                held=deadline,
            )
        except asyncio.CancelledError:
            await self._abandon(body)
            raise
        return AsyncSandbox(self._connection, info)

    async def restore(
        self,
        snapshot: Kept | str,
        spec: m.SandboxSpec | None = None,
        *,
        deadline: float = CREATE_SECONDS,
        key: str | None = None,
    ) -> AsyncSandbox:
        """Create a sandbox, on any node, that begins with the files of a snapshot, or of its id.

            async with await client.restore(snapshot, SandboxSpec(ttl_seconds=600)) as sandbox:
                ...

        `spec` says the rest; its environment does not matter. User and working directory are
        those of the sandbox that was kept, its variables are not: they may be secrets.

        One that is not ready yet is waited for, until the deadline.

        Raises:
            NotFound: there is no such snapshot.
            SandfleetError: it failed; says in which phase and why.
            NoCapacity, QuotaExceeded: as `create`.
        """
        reference = snapshot if isinstance(snapshot, str) else snapshot.id
        given = (spec or m.SandboxSpec()).model_dump(exclude_unset=True)
        wanted = m.SandboxSpec.of(**given | {"environment": reference})
        began = asyncio.get_running_loop().time()
        await (await self.snapshots.get(reference)).wait(deadline=deadline)
        left = deadline - (asyncio.get_running_loop().time() - began)
        return await self.create(wanted, deadline=max(left, LEAST_SECONDS), key=key)

    async def get(self, sandbox_id: str) -> AsyncSandbox:
        """Return a sandbox that exists, or has ended not long ago.

        Raises:
            NotFound: none of this name is on record.
        """
        node_of(sandbox_id)  # a mistyped name is told here, not by a silent node
        body = m.SandboxGet(sandbox_id=sandbox_id)
        return AsyncSandbox(
            self._connection, await call(self._connection.transport, s.SANDBOX_GET, body)
        )

    async def list(
        self,
        *,
        ended: bool = False,
        state: State | None = None,
        job_id: str | None = None,
        node: str | None = None,
        labels: Mapping[str, str] | None = None,
    ) -> AsyncIterator[AsyncSandbox]:
        """Yield the live sandboxes, newest first; with `ended` those on record, too.

        ids = [sandbox.id async for sandbox in client.list(labels={"run": "7"})]
        """
        after: str | None = None
        while True:
            body = m.SandboxList.of(
                state=state,
                ended=ended,
                job_id=job_id,
                node=node,
                labels=dict(labels or {}),
                limit=PAGE_SANDBOXES,
                after=after,
            )
            page = await call(self._connection.transport, s.SANDBOX_LIST, body)
            for info in page.sandboxes:
                yield AsyncSandbox(self._connection, info)
            after = page.next
            if after is None:
                return

    async def pause(
        self, *, job_id: str | None = None, labels: Mapping[str, str] | None = None
    ) -> m.SandboxesActed:
        """Pause all live sandboxes of a job, or with these labels, or both.

            acted = await client.pause(labels={"run": "7"})
            print(acted.done, "of", acted.matched)

        Raises:
            BadRequest: neither a job nor labels were given.
        """
        return await act(self._connection.transport, "pause", job_id=job_id, labels=labels)

    async def resume(
        self, *, job_id: str | None = None, labels: Mapping[str, str] | None = None
    ) -> m.SandboxesActed:
        """Let all paused sandboxes of a job, or with these labels, go on."""
        return await act(self._connection.transport, "resume", job_id=job_id, labels=labels)

    async def stop(
        self,
        *,
        job_id: str | None = None,
        labels: Mapping[str, str] | None = None,
        reason: str | None = None,
    ) -> m.SandboxesActed:
        """End all live sandboxes of a job, or with these labels.

        A job that is still being placed goes on; `job.cancel()` ends that, too.
        """
        return await act(
            self._connection.transport, "stop", job_id=job_id, labels=labels, reason=reason
        )

    # -------------------------------------------------------------------- jobs

    def job(
        self,
        spec: m.SandboxSpec | None = None,
        count: int = 1,
        *,
        deadline_seconds: float = 120,
        labels: Mapping[str, str] | None = None,
        job_id: str | None = None,
        keep: bool = False,
    ) -> AsyncJob:
        """Return a job of `count` sandboxes; entering its block submits it.

        Leaving the block ends the job and its sandboxes, unless `keep`.

        Raises:
            BadRequest: a value does not fit; says which and why.
        """
        return AsyncJob(
            spec,
            count,
            deadline_seconds=deadline_seconds,
            labels=labels,
            job_id=job_id,
            connection=self._connection,
            keep=keep,
        )

    async def get_job(self, job_id: str) -> AsyncJob:
        """Return a job that was submitted before; its ready sandboxes come first.

        Raises:
            NotFound: there is no such job.
        """
        job = AsyncJob(job_id=job_id, connection=self._connection, keep=True)
        await job.open()
        return job

    # ---------------------------------------------------------- function calls

    async def call(
        self,
        code: str | None = None,
        *,
        language: m.Language = "python",
        stdin: str | bytes | None = None,
        files: Mapping[str, str | bytes] | None = None,
        fetch: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
        memory: int | None = None,
        limits: m.CallLimits | None = None,
        environment: str = "debian",
        queue_s: float = 30,
    ) -> CallResult:
        """Run code in a warm sandbox that keeps nothing of it, and return how it ended.

            result = await client.call("print(6 * 7)", timeout_s=5)
            print(result.check().text)

        `files` are put into the call's directory before it begins, and `fetch` names
        those to give back; without `code`, the file `main.py` (.sh .c .cpp .js) is the
        code. `timeout_s` (default 10) is the wall clock's limit, `memory` (bytes) that
        of each process; `limits` has all of them. It waits `queue_s` seconds at most
        for a sandbox. What the code does wrong is in the result, and no error.

        Raises:
            BadRequest: a value does not fit; says which and why.
            NotFound: no node has the environment; names those that exist.
            Busy, NoCapacity: no sandbox was free in time.
            TimedOut: no answer came, though one was due; it may have run.
        """
        wanted = Call(
            code,
            language=language,
            stdin=stdin,
            files=files,
            fetch=fetch,
            env=env,
            timeout_s=timeout_s,
            memory=memory,
            limits=limits or m.CallLimits(),
            environment=environment,
            queue_s=queue_s,
        )
        return call_result_of(await ask(self._connection.transport, wanted.message()))

    async def call_many(
        self, calls: Iterable[str | Call], *, concurrency: int = CALLS_AT_ONCE
    ) -> AsyncIterator[tuple[int, CallResult]]:
        """Make many calls and yield each result, with its number, as it is there.

            async for number, result in client.call_many(Call(code) for code in codes):
                print(number, result.status)

        At most `concurrency` are under way; where nodes are busy they are offered again.
        A call that the platform could not make is a result with status `lost` and its `error`.

        Raises:
            Refused: a call cannot be met (BadRequest, NotFound): the rest is not made.
        """
        async for numbered in many(self._connection, calls, at_once=concurrency):
            yield numbered

    def function(
        self,
        misplaced: None = None,
        *,
        environment: str = "debian",
        timeout_s: float | None = None,
        memory: int | None = None,
        env: Mapping[str, str] | None = None,
        limits: m.CallLimits | None = None,
        queue_s: float = 30,
        with_source: Sequence[Any] = (),
    ) -> AsyncFunctionMaker:
        """Return a decorator: the function then runs in a warm sandbox when it is called.

            @client.function(timeout_s=5, with_source=["import re"])
            def words(text: str) -> list[str]:
                return re.findall(r"[a-z]+", text)

            await words("some text")  # .local(...) calls it here, .map([...]) for many

        Its source is sent, so it may not be a closure, and names from outside its body
        are imported there or stand in `with_source` (functions, classes, text). Its
        arguments and what it returns are JSON values.

        Raises:
            BadRequest: a value does not fit, or the parentheses are missing.
        """
        if misplaced is not None:  # the function itself, of a decorator without parentheses
            raise BadRequest("write @client.function() with its parentheses, and options by name")
        template = Call(
            "",
            env=env,
            timeout_s=timeout_s,
            memory=memory,
            limits=limits or m.CallLimits(),
            environment=environment,
            queue_s=queue_s,
        )
        return AsyncFunctionMaker(template, with_source, lambda: self._connection)

    # ------------------------------------------------------------------- fleet

    async def nodes(self) -> list[m.NodeBeat]:
        """Return the latest heartbeat of each node that is alive."""
        return (await call(self._connection.transport, s.NODE_LIST, m.NodeList())).nodes

    async def drain(self, node: str, *, undo: bool = False) -> None:
        """Let a node take no new sandboxes, or take them again; over NATS, as its administrator.

        Raises:
            Denied: this user may not.
        """
        body = m.NodeDrain(node=node, draining=not undo)
        await call(self._connection.transport, s.NODE_DRAIN, body, within=DRAIN_SECONDS)

    async def usage(
        self, *, node: str | None = None, order: m.UsageOrder = "cpu", limit: int = 100
    ) -> FleetUsage:
        """Return the sandboxes that use most, of all nodes or of one, and each node's sums.

            for used in (await client.usage(order="memory", limit=10)).sandboxes:
                print(used.sandbox_id, used.memory_bytes)

        `order`: "cpu", "cpu_seconds", "memory", "disk", "egress", "processes", "idle".

        Raises:
            NotFound: no node of that name is alive.
        """
        return await ask_fleet(self._connection.transport, node, order, limit)

    async def alerts(
        self,
        sandbox_id: str | None = None,
        *,
        severity: m.Severity | None = None,
        limit: int = 100,
    ) -> list[m.Alert]:
        """Return what the security monitor has to say, newest first.

        `severity`: this or worse.
        """
        body = m.AlertList.of(sandbox_id=sandbox_id, severity=severity, limit=limit)
        return (await call(self._connection.transport, s.ALERT_LIST, body)).alerts

    # ---------------------------------------------------------------- internal

    async def _abandon(self, body: m.SandboxCreate) -> None:
        """End a sandbox whose creation nobody waits for any more; its key finds it."""
        transport = self._connection.transport
        try:
            async with asyncio.timeout(CLEANUP_SECONDS):
                info = await transport.call(s.SANDBOX_CREATE, body, within=CLEANUP_SECONDS)
                await AsyncSandbox(self._connection, info).stop(reason="its creator gave up")
        except (SandfleetError, TimeoutError):
            return  # there is none, or its TTL ends it

    @property
    def _connection(self) -> Connection:
        if self._opened is None:
            raise BadRequest(f"open the client first: use `with` on {type(self).__name__}")
        return self._opened


def _transport(place: Place, name: str) -> AbstractAsyncContextManager[Transport]:
    """Return the transport for `place`; only now is its library imported."""
    is_nats = isinstance(place, NatsPlace)
    module, kind = ("nats", "NatsTransport") if is_nats else ("gateway", "GatewayTransport")
    extra = "nats" if is_nats else "http"
    try:
        found: Any = importlib.import_module(f"{__package__}.{module}_transport")
    except ModuleNotFoundError as problem:
        raise BadRequest(
            f"this way to the platform needs {problem.name!r}: "
            f"install it with `pip install 'sandfleet[{extra}]'`"
        ) from problem
    connect = getattr(found, kind).connect
    return cast(AbstractAsyncContextManager[Transport], connect(place, name))
