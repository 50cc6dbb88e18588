"""Questions to the platform, and why there was no answer."""

from __future__ import annotations

from typing import Any, TypeVar, cast

from sandfleet import calling
from sandfleet.calls import ended
from sandfleet.nats_transport import NatsTransport
from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.bus import Bus
from sandfleet_common.errors import NotFound, SandfleetError, Unreachable
from sandfleet_common.states import TERMINAL
from sandfleet_common.subjects import Subject

BodyT = TypeVar("BodyT", bound=m.Message)
ReplyT = TypeVar("ReplyT", bound=m.Message)

RECORD_SECONDS = 5.0
"""How long the record of a sandbox is awaited whose node is silent."""


ACT_SECONDS = 60.0
"""More than a scheduler gives to doing something to thousands of sandboxes."""
COLLECT_SECONDS = 60.0
"""What going through a whole store of layers may take."""


def held_seconds(body: m.Message) -> float:
    """Return how long the one asked may hold its answer back on purpose."""
    if isinstance(body, m.SandboxesAct):
        return ACT_SECONDS
    if isinstance(body, m.StoreCollect):
        return COLLECT_SECONDS
    if isinstance(body, m.FunctionCall):
        return calling.held_seconds(body)
    for name in ("wait_seconds", "deadline_seconds"):
        if held := getattr(body, name, None):
            return float(held)
    return 0.0


class Upstream:
    """The platform behind the gateway."""

    def __init__(self, bus: Bus, transport: NatsTransport, ask_seconds: float) -> None:
        self.bus = bus
        self.transport = transport
        self._ask_seconds = ask_seconds

    async def ask(self, subject: Subject[BodyT, ReplyT], body: BodyT) -> ReplyT:
        """Ask once. A node's subject is asked of the node that the sandbox's id names.

        Raises:
            SandboxGone, NodeLost: nobody answers because the sandbox is no more; says why.
            NotFound: nobody answers because no node has the environment, or that name.
            Unreachable: nobody answers, and the sandbox is on record as alive.
            SandfleetError: what the one asked says.
        """
        try:
            return await self.transport.call(
                subject, body, within=self._ask_seconds + held_seconds(body)
            )
        except Unreachable as problem:
            if isinstance(body, m.FunctionCall):
                raise await self._without_nodes(body) from None
            if isinstance(body, m.NodeUsageGet):
                raise await self._without_node(body.node, problem) from None
            if "node" not in subject.holes():
                raise
            return await self._explain(subject, body, problem)

    async def submit(self, job: m.JobSubmit) -> bool:
        """Put a job into the queue; return False if it was there already.

        Raises:
            Unreachable: the queue did not confirm; submitting it again is safe.
        """
        return await self.bus.store(s.JOB_SUBMIT, job, once=job.job_id)

    async def _without_nodes(self, call: m.FunctionCall) -> SandfleetError:
        """Return why no node heard a function call."""
        missing = await calling.absent(self.transport, call.environment)
        return missing or Unreachable(
            f"no node that has the environment {call.environment[:80]!r} answers now; ask again",
            environment=call.environment,
        )

    async def _without_node(self, node: str, problem: Unreachable) -> SandfleetError:
        """Return why a node that was named does not answer."""
        try:
            page = await self.transport.call(s.NODE_LIST, m.NodeList(), within=RECORD_SECONDS)
        except SandfleetError:
            return problem  # nobody knows better
        if node not in {beat.node for beat in page.nodes}:
            return NotFound(f"no node {node!r} is alive", node=node)
        return Unreachable(f"node {node} does not answer now; ask again", node=node)

    async def _explain(
        self, subject: Subject[Any, ReplyT], body: m.Message, problem: Unreachable
    ) -> ReplyT:
        """Answer for a silent node from the record, or ask the one that has the sandbox now."""
        sandbox_id = cast(str, cast(Any, body).sandbox_id)
        try:
            info = await self.transport.call(
                s.SANDBOX_GET, m.SandboxGet(sandbox_id=sandbox_id), within=RECORD_SECONDS
            )
        except NotFound:
            raise
        except SandfleetError:
            raise problem from None  # nobody knows better
        if info.state not in TERMINAL:
            if self.transport.learn_home(sandbox_id, info.node):
                within = self._ask_seconds + held_seconds(body)
                return await self.transport.call(subject, body, within=within)
            node = info.node
            raise Unreachable(
                f"node {node}, which owns {sandbox_id}, does not answer now; "
                "its sandboxes go on, ask again",
                node=node,
            ) from None
        if subject is s.STOP:
            return cast(ReplyT, info)  # ending one that has ended is no error
        raise ended(info) from None
