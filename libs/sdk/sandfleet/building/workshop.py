"""What builders ask of the platform: sandboxes on a stack, layers by key, names for stacks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from sandfleet.calls import CALL_SECONDS, call
from sandfleet.client import AsyncClient
from sandfleet.results import Result
from sandfleet.sandbox import CLEANUP_SECONDS, AsyncSandbox
from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import Broken, Conflict, NotFound, SandfleetError
from sandfleet_common.ids import new_snapshot_id, new_ulid, node_of

from .events import Output, Report, Said, unheard
from .stages import Ground

ROOT = "0"
"""The user whose files layers hold; a number, for there may be no /etc/passwd."""
HOLD_SECONDS = 20.0
FACTS = ("distribution", "libc", "python")
"""Notes of a base layer that say what can be stacked on it."""
BUILT_ON = "built_on."
LAST_LINES = 20
HEARD_SECONDS = 15.0
"""After which everybody knows of what was published."""
HEARD_AGAIN_SECONDS = 0.2
_OUTPUT_LIMIT_BYTES = 64 * m.MIB
_TEMPORARY = "build."
STALE_SECONDS = 86_400.0
"""A name for a moment that is so old has nobody any more."""


class BuildFailed(SandfleetError):
    """A step of a build did not end well; the message says which, with its last line.

    Field `output` has its last lines.
    """

    code = "command_failed"


@dataclass(frozen=True, slots=True)
class Means:
    """What the sandboxes of a build get."""

    resources: m.Resources = field(
        default_factory=lambda: m.Resources(
            cpu=2, memory_bytes=2 * m.GIB, pids=4096, disk_bytes=16 * m.GIB
        )
    )
    network: m.Network = m.Network.BUILD
    timeout_seconds: float = 3600
    """Of the whole build."""
    keep: bool = False
    """Leave the sandbox of a step that failed."""


class Workshop:
    """The platform as a builder sees it."""

    def __init__(
        self, client: AsyncClient, means: Means | None = None, report: Report = unheard
    ) -> None:
        self._client = client
        self._transport = client._connection.transport  # pyright: ignore[reportPrivateUsage]
        self.means = means or Means()
        self.report = report

    # ------------------------------------------------------------ environments

    async def ground(self, reference: str) -> Ground:
        """Return an environment as what to build on.

        Raises:
            NotFound: there is none of that name.
        """
        body = m.EnvironmentGet.of(environment=reference)
        info = await call(self._transport, s.ENVIRONMENT_GET, body)
        return ground_of(info)

    async def publish(self, name: str, ground: Ground, *, source: str = "") -> m.EnvironmentInfo:
        """Name a stack, `name` or `name:version`."""
        plain, _, version = name.partition(":")
        body = m.EnvironmentPublish.of(
            name=plain,
            version=version or None,
            layers=list(ground.layers),
            env=dict(ground.env),
            user=ground.user,
            workdir=ground.workdir,
            notes=trimmed({**ground.facts, **ground.notes}),
            source=source[:500],
        )
        return await call(self._transport, s.ENVIRONMENT_PUBLISH, body)

    async def offer(self, name: str, ground: Ground, *, source: str) -> m.EnvironmentInfo:
        """Name a stack, and return once sandboxes can be created from it, as a rule."""
        info = await self.publish(name, ground, source=source)
        for _ in range(int(HEARD_SECONDS / HEARD_AGAIN_SECONDS)):
            nodes = await self._client.nodes()
            if any(info.name in n.environments or not n.environments_complete for n in nodes):
                break
            await asyncio.sleep(HEARD_AGAIN_SECONDS)
        await _quietly(self._sweep())
        return info

    async def _sweep(self) -> None:
        """Forget names for a moment that builders left behind who were killed in it."""
        body = m.EnvironmentList.of(prefix=_TEMPORARY)
        page = await call(self._transport, s.ENVIRONMENT_LIST, body)
        for found in page.environments:
            if found.created_at < time.time() - STALE_SECONDS:
                forgotten = m.EnvironmentRemove.of(environment=found.name)
                await _quietly(call(self._transport, s.ENVIRONMENT_REMOVE, forgotten))

    # ------------------------------------------------------------------ layers

    async def find(self, key: str) -> m.Layer | None:
        """Return the layer that was packed under `key`."""
        return (await call(self._transport, s.LAYER_FIND, m.LayerFind.of(key=key))).layer

    async def pack(
        self,
        sandbox: AsyncSandbox,
        key: str,
        kind: m.LayerKind,
        *,
        description: str,
        notes: dict[str, str],
        root: str = "/",
        is_oci: bool = False,
    ) -> m.Layer:
        """Pack what a sandbox has written, or its directory `root`, and return the layer.

        Raises:
            SandfleetError: it could not be packed; says why.
        """
        body = m.SandboxSnapshot.of(
            sandbox_id=sandbox.id,
            snapshot_id=new_snapshot_id(node_of(sandbox.id)),
            kind=kind,
            key=key,
            root=root,
            whiteouts="oci" if is_oci else "overlay",
            description=description[:500],
            notes=trimmed(notes),
            wait_seconds=HOLD_SECONDS,
        )
        while True:
            info = await call(
                self._transport,
                s.SNAPSHOT,
                body,
                within=CALL_SECONDS + HOLD_SECONDS,
                held=HOLD_SECONDS,
            )
            if info.state in (m.SnapshotState.READY, m.SnapshotState.FAILED):
                break
        await self._forget(info.snapshot_id)
        if info.failure is not None:
            raise info.failure.to_error()
        if info.layer is None:
            raise Broken(f"{info.snapshot_id} is {info.state} and has no layer")
        return info.layer

    # --------------------------------------------------------------- sandboxes

    @asynccontextmanager
    async def sandbox(self, ground: Ground) -> AsyncGenerator[AsyncSandbox]:
        """Create a sandbox on a stack; it ends with the block.

        When a step fails in it and `keep` was asked for, it stays.
        """
        async with self._named(ground) as reference:
            spec = m.SandboxSpec.of(
                environment=reference,
                resources=self.means.resources,
                network=self.means.network,
                ttl_seconds=self.means.timeout_seconds + 600,
                labels={"sandfleet.build": "1"},
            )
            sandbox = await self._created(spec)
        keep = False
        try:
            yield sandbox
        except BuildFailed:
            keep = self.means.keep
            if keep:
                text = f"kept for a look: sandfleet exec -it {sandbox.id} -- sh"
                self.report(Said("info", text))
            raise
        finally:
            if not keep:
                await _quietly(sandbox.stop(reason="its build step is over"))

    async def run(
        self,
        sandbox: AsyncSandbox,
        argv: Sequence[str],
        *,
        what: str,
        env: dict[str, str] | None = None,
        user: str | None = ROOT,
        cwd: str = "/",
    ) -> None:
        """Run a command of a build; what it prints is reported.

        Raises:
            BuildFailed: it did not exit with 0.
        """
        try:
            command = await sandbox.start(
                list(argv), env=env, user=user, cwd=cwd, output_limit=_OUTPUT_LIMIT_BYTES
            )
        except NotFound as problem:
            raise BuildFailed(f"{what}: {problem.message}") from None
        tail = b""
        async with command:
            async for chunk in command:
                tail = (tail + chunk.data)[-16_384:]
                self.report(Output(chunk.stream, chunk.data))
            result = await command.wait()
        if not result.ok:
            raise _failure(what, result, tail)

    async def feed(
        self, sandbox: AsyncSandbox, argv: Sequence[str], pieces: Iterable[bytes], *, what: str
    ) -> bytes:
        """Run a command as root with `pieces` as its input, and return what it prints.

        Raises:
            BuildFailed: it did not exit with 0.
            NotFound: the sandbox has no such program.
        """
        command = await sandbox.start(list(argv), user=ROOT, cwd="/", stdin=True)
        async with command:
            try:
                async for piece in threaded(pieces):
                    await command.write(piece)
                await command.close_stdin()
            except Conflict:
                pass  # it has ended; how, its result says
            except BaseException:
                await _quietly(command.kill())
                raise
            result = await command.wait()
        if not result.ok:
            raise _failure(what, result, result.stderr)
        return result.stdout

    # ---------------------------------------------------------------- internal

    async def _created(self, spec: m.SandboxSpec) -> AsyncSandbox:
        """Create a sandbox; the schedulers may not have heard yet of an environment."""
        began = time.monotonic()
        while True:
            try:
                return await self._client.create(spec)
            except NotFound:
                if time.monotonic() - began > HEARD_SECONDS:
                    raise
            await asyncio.sleep(HEARD_AGAIN_SECONDS)

    @asynccontextmanager
    async def _named(self, ground: Ground) -> AsyncGenerator[str]:
        """Name a stack for as long as it takes to create a sandbox on it."""
        if ground.reference is not None:
            yield ground.reference
            return
        name = f"{_TEMPORARY}{new_ulid()}"
        info = await self.publish(name, Ground(layers=ground.layers), source="a step of a build")
        try:
            yield f"{info.name}:{info.version}"
        finally:
            body = m.EnvironmentRemove.of(environment=name)
            await _quietly(call(self._transport, s.ENVIRONMENT_REMOVE, body))

    async def _forget(self, snapshot_id: str) -> None:
        """Forget the snapshot; its layer is found by its key."""
        body = m.SnapshotRemove.of(snapshot_id=snapshot_id)
        await _quietly(call(self._transport, s.SNAPSHOT_REMOVE, body))


def ground_of(info: m.EnvironmentInfo) -> Ground:
    """Return an environment as what to build on."""
    base = info.layers[-1]
    facts = {name: base.notes[name] for name in FACTS if name in base.notes}
    return Ground(
        tuple(layer.digest for layer in info.layers),
        dict(info.env),
        info.user,
        info.workdir,
        {name: value for name, value in info.notes.items() if name not in facts},
        facts,
        f"{info.name}:{info.version}",
    )


def built_on(ground: Ground) -> dict[str, str]:
    """Return the notes of a layer that is built on `ground`."""
    return {f"{BUILT_ON}{name}": value for name, value in ground.facts.items()}


def trimmed(notes: dict[str, str]) -> dict[str, str]:
    """Return as many notes as a message takes."""
    return dict(list(notes.items())[:64])


async def threaded(pieces: Iterable[bytes]) -> AsyncIterator[bytes]:
    """Yield from what reads files, in a thread."""
    iterator = iter(pieces)
    while (piece := await asyncio.to_thread(next, iterator, None)) is not None:
        yield piece


async def _quietly(work: Awaitable[object]) -> None:
    """Await what only tidies up, also when the build is being given up."""
    try:
        async with asyncio.timeout(CLEANUP_SECONDS):
            await work
    except (SandfleetError, TimeoutError):
        return  # its time to live ends it


def _failure(what: str, result: Result, output: bytes) -> BuildFailed:
    if result.signal is not None:
        how = f"it was ended by signal {result.signal}"
        if result.signal == 9:
            how += " (out of memory? give it more with --memory)"
    else:
        how = f"it exited with {result.exit_code}"
    lines = output.decode(errors="replace").strip().splitlines()[-LAST_LINES:]
    last = f": {lines[-1][:300]}" if lines else ""
    return BuildFailed(f"{what}: {how}{last}", exit_code=result.exit_code, output=lines)
