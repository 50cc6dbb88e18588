"""Serving function calls: which pool, which sandbox, and what came of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from sandfleet_common.errors import NotFound, SandboxFailed, SandboxGone, SandfleetError
from sandfleet_common.ids import new_sandbox_id
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import (
    FUNCTION_ROLE,
    ROLE_LABEL,
    CallStep,
    FunctionCall,
    FunctionResult,
    NodeCreate,
    NodeCreateItem,
    Resources,
    SandboxSpec,
)
from sandfleet_common.states import Origin, State
from sandfleet_node.config import NodeSettings
from sandfleet_node.creation import Creation
from sandfleet_node.ending import Ending
from sandfleet_node.layers import Catalog
from sandfleet_node.metrics import NodeMetrics
from sandfleet_node.sandbox import Sandbox
from sandfleet_node.sandboxes import Sandboxes

from .answers import Answer, Hello, judge
from .fitting import fit
from .memory import Recent
from .pool import CALLS_SERVED, Claim, Pool
from .requests import COMMAND, opening, pack
from .roster import Shape
from .warm import Gone, Warm

LEFT_BY_RESTART = "its node service restarted; warm sandboxes are made anew"
_START_SECONDS = 60.0
_GRACE_SECONDS = 15.0
"""What a zygote may take beyond the time of the call itself."""


def is_warm(sandbox: Sandbox) -> bool:
    """Return whether a sandbox was made for function calls."""
    return sandbox.spec.labels.get(ROLE_LABEL) == FUNCTION_ROLE


class FunctionCalls:
    """The pools of a node, and the way of a call through them."""

    def __init__(
        self,
        settings: NodeSettings,
        creation: Creation,
        sandboxes: Sandboxes,
        ending: Ending,
        catalog: Catalog,
        using: Callable[[Sandbox], AbstractAsyncContextManager[object]],
        oom_kills: Callable[[str], int],
        tasks: Tasks,
        metrics: NodeMetrics,
        log: Logger,
    ) -> None:
        self._settings = settings
        self._creation = creation
        self._sandboxes = sandboxes
        self._ending = ending
        self._catalog = catalog
        self._using = using
        self._oom_kills = oom_kills
        self._tasks = tasks
        self._metrics = metrics
        self._log = log
        self._pools: dict[str, Pool] = {}
        self._warm: dict[str, Warm] = {}
        self._recent = Recent()
        ending.on_end.append(self._on_end)

    @property
    def under_way(self) -> int:
        """How many calls run or wait."""
        return len(self._recent)

    async def call(self, body: FunctionCall) -> FunctionResult:
        """Run a call; the same request again gives the same result.

        Raises:
            NotFound: there is no such environment, or it lacks what the language needs.
            BadRequest: the call cannot be passed on.
            Busy: too many calls wait, or none of their sandboxes was free in time.
            NoCapacity: no warm sandbox runs, and the node takes none.
        """
        return await self._recent.once(body.request_id, lambda: self._call(body), time.monotonic)

    async def _call(self, body: FunctionCall) -> FunctionResult:
        request = pack(body)
        pool = await self._pool(body.environment)
        if pool.hello is not None:
            _check_language(body, pool.hello)
        claim = await pool.claim(body.queue_seconds)
        try:
            if pool.hello is not None:
                _check_language(body, pool.hello)
        except NotFound:
            pool.settled(claim.warm, "")
            raise
        result = await self._run(pool, claim, body, request)
        self._metrics.function_calls.labels(result.status).inc()
        self._metrics.function_wait.observe(claim.wait_seconds)
        self._metrics.function_run.observe(result.run_ms / 1000)
        return result

    async def _run(
        self, pool: Pool, claim: Claim, body: FunctionCall, request: bytes
    ) -> FunctionResult:
        warm = claim.warm
        began = time.monotonic()
        warm.sandbox.touch()
        answer: Answer | None = None
        try:
            async with self._using(warm.sandbox):
                answer = await warm.call(request, _most_seconds(body))
            pool.roster.answered(warm)
        except (Gone, SandboxGone) as problem:
            self._log.warning("function.lost", sandbox=warm.sandbox.id, reason=str(problem))
        finally:
            if answer is None:
                pool.discard(warm, "lost")
        seconds = time.monotonic() - began
        pool.roster.ran(seconds)
        result = (
            FunctionResult(status="lost") if answer is None else self._result(body, answer, warm)
        )
        return result.model_copy(
            update={
                "wait_ms": round(claim.wait_seconds * 1000, 3),
                "run_ms": round(seconds * 1000, 3),
                "sandbox_id": warm.sandbox.id,
                "node": self._settings.name,
                "is_cold": claim.is_cold,
            }
        )

    def _result(self, body: FunctionCall, answer: Answer, warm: Warm) -> FunctionResult:
        steps = answer.steps
        ran_out = False
        if steps[-1].exit_code != 0:
            kills, before = self._oom_kills(warm.sandbox.id), warm.oom_kills
            ran_out, warm.oom_kills = kills > before, kills
        verdict = judge(body, answer, ran_out=ran_out)
        files = dict(zip(body.fetch, answer.files, strict=False))
        fitted = fit(
            0 if verdict.value is None else len(answer.note),
            {name: data for name, data in files.items() if data is not None},
            CallStep() if verdict.status == "compile_error" else steps[-1],
            steps[0] if body.language in ("c", "cpp") else None,
        )
        return FunctionResult(
            status=verdict.status,
            step=fitted.step,
            compiled=fitted.compiled,
            value=verdict.value,
            exception=verdict.exception,
            files=fitted.files,
            missing=[name for name in body.fetch if name not in fitted.files],
        )

    # ------------------------------------------------------------------ pools

    async def _pool(self, name: str) -> Pool:
        environment = self._catalog.recall(name) or await self._catalog.resolve(name)
        key = environment.reference
        pool = self._pools.get(key)
        if pool is None:
            pool = Pool(key, self._shape(), self._start, self._retire, self._tasks, self._log)
            self._pools[key] = pool
            if ":" not in name:
                self._close_older(name, key)
        return pool

    def _shape(self) -> Shape:
        settings = self._settings
        most = settings.function_warm_max or 2 * len(os.sched_getaffinity(0))
        return Shape(
            least=min(settings.function_warm_min, most),
            most=most,
            queue=settings.function_queue,
            idle_seconds=settings.function_idle_seconds,
        )

    def _close_older(self, name: str, newest: str) -> None:
        """Close the pools of earlier versions; each ends with the calls that it runs."""
        for key, pool in list(self._pools.items()):
            if key != newest and key.partition(":")[0] == name:
                pool.close("outdated")
                del self._pools[key]

    async def _start(self, pool: Pool) -> Warm:
        now = time.time()
        item = NodeCreateItem(
            sandbox_id=new_sandbox_id(self._settings.name),
            spec=SandboxSpec(
                environment=pool.environment,
                resources=self._resources(),
                ttl_seconds=None,
                labels={ROLE_LABEL: FUNCTION_ROLE},
            ),
            requested_at=now,
            deadline_at=now + _START_SECONDS,
        )
        outcome = (await self._creation.create(NodeCreate(items=[item]))).outcomes[0]
        if outcome.failure is not None:
            raise outcome.failure.to_error()
        sandbox = self._sandboxes.find(item.sandbox_id)
        if sandbox is None:
            raise SandboxFailed("a warm sandbox ended while it was starting")
        warm = Warm(sandbox, pool.settled)
        self._warm[sandbox.id] = warm
        environment = await self._catalog.resolve(pool.environment)
        imports = _split(environment.notes.get("imports", ""))
        first = opening(
            self._settings.function_calls_each,
            [*self._settings.function_imports, *imports],
            None if pool.hello is None else list(pool.hello.places),
        )
        try:
            hello = await warm.start(COMMAND, first, _START_SECONDS)
        except BaseException as problem:
            text = problem.message if isinstance(problem, SandfleetError) else "cancelled"
            self._retire(warm, f"start: {text}")
            raise
        self._metrics.warm_sandboxes.inc()
        warm.is_counted = True
        self._log.info(
            "function.warm", sandbox=sandbox.id, python=hello.python, languages=hello.languages
        )
        return warm

    def _resources(self) -> Resources:
        settings = self._settings
        return Resources(
            cpu=settings.function_cpu,
            memory_bytes=settings.function_memory_bytes,
            disk_bytes=settings.function_disk_bytes,
            pids=settings.function_pids,
        )

    def _retire(self, warm: Warm, reason: str) -> None:
        """End a warm sandbox, whatever it does."""
        if self._warm.pop(warm.sandbox.id, None) is None:
            return
        warm.end(reason)
        if warm.is_counted:
            self._metrics.warm_sandboxes.dec()
        self._metrics.function_recycles.labels(_kind(reason)).inc()
        self._log.info(
            "function.recycled", sandbox=warm.sandbox.id, calls=warm.calls, reason=reason
        )
        text = f"no longer needed for function calls: {reason}"
        self._ending.begin(warm.sandbox, State.STOPPED, text[:500], Origin.PLATFORM)

    def _on_end(self, sandbox: Sandbox) -> None:
        """Take note that a sandbox ends, whoever wanted it."""
        warm = self._warm.get(sandbox.id)
        if warm is None:
            return
        reason = f"lost: {sandbox.reason}"
        pool = self._pools.get(self._key_of(warm))
        if pool is None:
            self._retire(warm, reason)
        else:
            pool.discard(warm, reason)

    def _key_of(self, warm: Warm) -> str:
        return warm.sandbox.spec.environment

    def end_strangers(self) -> None:
        """End warm sandboxes of an earlier service: nobody knows what they were doing."""
        for sandbox in self._sandboxes:
            if is_warm(sandbox) and sandbox.id not in self._warm:
                self._ending.begin(sandbox, State.STOPPED, LEFT_BY_RESTART, Origin.PLATFORM)

    def sweep(self) -> None:
        """Shrink and repair the pools; forget those that hold nothing."""
        for key, pool in list(self._pools.items()):
            pool.sweep()
            if pool.is_empty and time.monotonic() - pool.used_at > _START_SECONDS:
                del self._pools[key]

    def close(self, reason: str) -> None:
        """Take no more calls into sandboxes; all pools end."""
        for pool in self._pools.values():
            pool.close(reason)
        self._pools.clear()


def _check_language(body: FunctionCall, hello: Hello) -> None:
    if body.language == "python" or body.language in hello.languages:
        return
    has = ", ".join(("python", *hello.languages))
    raise NotFound(
        f"environment {body.environment} has nothing that runs {body.language}; it has: {has}"
    )


def _most_seconds(body: FunctionCall) -> float:
    compiling = body.compile_limits or body.limits
    extra = compiling.wall_seconds if body.language in ("c", "cpp") else 0.0
    return body.limits.wall_seconds + extra + _GRACE_SECONDS


def _split(text: str) -> list[str]:
    return [name for name in text.replace(",", " ").split() if name]


def _kind(reason: str) -> str:
    """Return the label of a reason; what was left behind is `dirty`."""
    first = reason.partition(":")[0]
    return (
        first
        if first in (CALLS_SERVED, "idle", "lost", "outdated", "stopped", "start")
        else "dirty"
    )
