"""Nodes that answer function calls as a test tells them, over the real bus.

The code is run as a plain process of this host, where it is run at all; what a real
node does seldom (be busy, lose an answer, fall silent) happens here on request.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus
from sandfleet_common.errors import Busy, SandfleetError
from sandfleet_common.ids import environment_token

_CALLER = """
import json, traceback
try:
    print("\\0" + json.dumps({function}(*json.loads({arguments!r}), **json.loads({keywords!r}))))
except BaseException as problem:
    traceback.print_exc()
    raise SystemExit(1)
"""


@dataclass
class CallsPeer:
    """A node with one environment. A test sets the fields below `faults`."""

    environment: str = "debian"
    asked: list[m.FunctionCall] = field(default_factory=list[m.FunctionCall])
    most_at_once: int = 0
    running: int = 0

    # faults
    busy: int = 0
    """So many calls are refused, the queue being full."""
    retry_after_seconds: float | None = 0.01
    is_silent: bool = False
    """Calls are heard and never answered."""
    fails: SandfleetError | None = None
    result: m.FunctionResult | None = None
    """Answered instead of running anything."""
    over: asyncio.Event = field(default_factory=asyncio.Event)

    async def serve_call(self, call: m.FunctionCall) -> m.FunctionResult:
        """Answer one call."""
        self.asked.append(call)
        if self.busy:
            self.busy -= 1
            raise Busy("the queue is full", retry_after_seconds=self.retry_after_seconds)
        if self.is_silent:
            await self.over.wait()
        if self.fails is not None:
            raise self.fails
        if self.result is not None:
            return self.result
        self.running += 1
        self.most_at_once = max(self.most_at_once, self.running)
        try:
            return await self._run(call)
        finally:
            self.running -= 1

    async def list_nodes(self, _: m.NodeList) -> m.NodePage:
        """Say that there is this node."""
        nothing = m.NodeCapacity(sandboxes=1, cpu=1, memory_bytes=1, disk_bytes=1)
        beat = m.NodeBeat(
            node="n1",
            boot="b",
            sequence=1,
            at=time.time(),
            state=m.NodeState.READY,
            runtimes=["native"],
            environments=[self.environment],
            capacity=nothing,
            requested=nothing,
            starting=0,
            starting_limit=1,
            memory_available_bytes=1,
            load_per_core=0,
            disk_free_bytes=1,
        )
        return m.NodePage(nodes=[beat])

    async def _run(self, call: m.FunctionCall) -> m.FunctionResult:
        code = call.code
        if call.function is not None:
            code += _CALLER.format(
                function=call.function,
                arguments=json.dumps(call.arguments),
                keywords=json.dumps(call.keywords),
            )
        with tempfile.TemporaryDirectory() as text:
            folder = Path(text)
            for name, content in call.files.items():
                (folder / name).write_bytes(content)
            (folder / "main.py").write_text(code)
            program = [sys.executable] if call.language == "python" else [call.language]
            process = await asyncio.create_subprocess_exec(
                *program, "main.py", cwd=folder,
                stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE, env={"PATH": "/usr/bin:/bin", **call.env},
            )  # fmt: skip
            out, err = await process.communicate(call.stdin)
            files = {n: (folder / n).read_bytes() for n in call.fetch if (folder / n).is_file()}
        out, _, value = out.partition(b"\0")
        lines = err.decode().strip().splitlines()
        return m.FunctionResult(
            status="ok" if process.returncode == 0 else "error",
            step=m.CallStep(exit_code=process.returncode, stdout=out, stderr=err),
            value=json.loads(value) if value else None,
            exception=lines[-1] if call.function and lines else None,
            files=files,
            missing=[name for name in call.fetch if name not in files],
            wait_ms=1,
            run_ms=2,
            node="n1",
        )


@asynccontextmanager
async def serving_calls(
    node_bus: Bus, scheduler_bus: Bus, environment: str = "debian"
) -> AsyncGenerator[CallsPeer]:
    """Serve an environment's calls while the block lasts."""
    peer = CallsPeer(environment)
    token = environment_token(environment)
    subscriptions = [
        await node_bus.serve(
            s.FUNCTION_CALL, peer.serve_call, queue=s.FUNCTION_QUEUE, environment=token
        ),
        await scheduler_bus.serve(s.NODE_LIST, peer.list_nodes),
    ]
    await node_bus.flush()
    await scheduler_bus.flush()
    try:
        yield peer
    finally:
        peer.over.set()
        for subscription in subscriptions:
            await subscription.close()
