"""A client of the platform: create sandboxes, find them, submit jobs.

async with AsyncClient.connect() as client:
    async with await client.create() as sandbox:
        print((await sandbox.run("uname -a")).text)
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncIterator, Mapping
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

from .calls import call
from .connection import Connection
from .endpoints import NatsPlace, Place, find
from .job import AsyncJob
from .sandbox import CLEANUP_SECONDS, AsyncSandbox
from .transport import Transport

CREATE_SECONDS = 60.0
PAGE_SANDBOXES = 1000


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

    # ------------------------------------------------------------------- fleet

    async def nodes(self) -> list[m.NodeBeat]:
        """Return the latest heartbeat of each node that is alive."""
        return (await call(self._connection.transport, s.NODE_LIST, m.NodeList())).nodes

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
