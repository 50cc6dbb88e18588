"""Asking again when an answer was lost, without ever doing a thing twice.

Every request that changes something carries a name its sender chose (a command's
id, a creation's key, an upload), so the same request may be sent again and
happens once. The few that have no such name are sent again only when nobody
heard them. All of it ends at the caller's deadline.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any, TypeVar, cast

from sandfleet_common import messages as m
from sandfleet_common import subjects as s
from sandfleet_common.errors import (
    Busy,
    NodeLost,
    NotFound,
    SandboxGone,
    SandfleetError,
    TimedOut,
    Unavailable,
    Unreachable,
)
from sandfleet_common.states import TERMINAL, Origin
from sandfleet_common.subjects import Subject

from .transport import Transport

BodyT = TypeVar("BodyT", bound=m.Message)
ReplyT = TypeVar("ReplyT", bound=m.Message)

CALL_SECONDS = 30.0
"""What an ordinary operation may take, all attempts together."""
ATTEMPT_SECONDS = 10.0
"""One attempt, beyond the time for which its answer is held back on purpose."""
FIRST_PAUSE_SECONDS = 0.05
LONGEST_PAUSE_SECONDS = 2.0

HEARD_ONCE = frozenset(
    subject.pattern
    for subject in (
        s.EXEC_SIGNAL,
        s.FILE_REMOVE,
        s.FILE_RENAME,
        s.FUNCTION_CALL,
        s.ENVIRONMENT_REMOVE,
        s.SNAPSHOT_REMOVE,
    )
)
"""A second time would not mean the same; a function call would run on another node, too."""


def pause(attempt: int, roll: float) -> float:
    """Return seconds to wait after failed `attempt` (from 1); `roll` in 0..1 spreads clients."""
    ceiling = min(LONGEST_PAUSE_SECONDS, FIRST_PAUSE_SECONDS * 2 ** min(attempt - 1, 16))
    return ceiling * (0.5 + roll / 2)


def told_to_wait(problem: Unavailable) -> float:
    """Return for how many seconds the one asked does not want to be asked again."""
    seconds = problem.fields.get("retry_after_seconds")
    return float(seconds) if isinstance(seconds, int | float) else 0.0


def may_repeat(subject: Subject[Any, Any], problem: Unavailable) -> bool:
    """Return whether a request that failed with `problem` may be sent again."""
    if isinstance(problem, (Unreachable, Busy)):
        return True
    return isinstance(problem, TimedOut) and subject.pattern not in HEARD_ONCE


def ended(info: m.SandboxInfo) -> SandfleetError:
    """Return the error that says how a sandbox that is no more came to its end."""
    reason = info.reason or "no reason is on record"
    if info.origin is Origin.NODE_LOST:
        return NodeLost(f"{info.sandbox_id} is gone: {reason}", node=info.node)
    return SandboxGone(
        f"{info.sandbox_id} has ended ({info.state}): {reason}",
        state=info.state,
        reason=info.reason,
        origin=info.origin,
    )


async def call(
    transport: Transport,
    subject: Subject[BodyT, ReplyT],
    body: BodyT,
    *,
    within: float = CALL_SECONDS,
    held: float = 0,
) -> ReplyT:
    """Ask until there is an answer or `within` seconds are over.

    `held` is how long the one asked holds its answer back on purpose.

    Raises:
        TimedOut: no answer came in time; it may have been done.
        Unreachable: nobody was there all the time.
        SandboxGone, NodeLost: the sandbox that was asked is no more; says why.
        SandfleetError: what the one asked says.
    """
    began = asyncio.get_running_loop().time()
    try:
        return await transport.call(subject, body, within=min(within, held + ATTEMPT_SECONDS))
    except Unavailable as problem:
        if not may_repeat(subject, problem):
            raise
        return await _again(transport, subject, body, began + within, held, problem)


async def _again(
    transport: Transport,
    subject: Subject[BodyT, ReplyT],
    body: BodyT,
    ends: float,
    held: float,
    problem: Unavailable,
) -> ReplyT:
    loop = asyncio.get_running_loop()
    attempt = 0
    while True:
        attempt += 1
        await _explain(transport, subject, body, problem)
        wait = pause(attempt, random.random())
        wait = max(wait, told_to_wait(problem) * (1 + random.random() / 4))
        left = ends - loop.time() - wait
        if left <= 0:
            raise problem
        await asyncio.sleep(wait)
        try:
            return await transport.call(subject, body, within=min(left, held + ATTEMPT_SECONDS))
        except Unavailable as again:
            if not may_repeat(subject, again):
                raise
            problem = again


async def _explain(
    transport: Transport, subject: Subject[Any, Any], body: m.Message, problem: Unavailable
) -> None:
    """Ask the record why a sandbox's node is silent; raise when the sandbox is no more."""
    sandbox_id = cast(str, getattr(body, "sandbox_id", ""))
    if not isinstance(problem, Unreachable) or "node" not in subject.holes() or not sandbox_id:
        return
    try:
        info = await transport.call(
            s.SANDBOX_GET, m.SandboxGet(sandbox_id=sandbox_id), within=ATTEMPT_SECONDS
        )
    except NotFound:
        raise
    except SandfleetError:
        return  # nobody knows better: go on asking
    if info.state in TERMINAL:
        raise ended(info) from problem
    transport.learn_home(info.sandbox_id, info.node)  # it may have moved


async def submit(transport: Transport, job: m.JobSubmit, *, within: float = CALL_SECONDS) -> None:
    """Submit a job until it is in the queue or `within` seconds are over.

    Raises:
        TimedOut, Unreachable: the queue did not confirm it; it may be in it all the same.
    """
    loop = asyncio.get_running_loop()
    ends = loop.time() + within
    attempt = 0
    while True:
        try:
            return await transport.submit(job, within=min(within, ATTEMPT_SECONDS))
        except Unavailable:
            attempt += 1
            wait = pause(attempt, random.random())
            if loop.time() + wait >= ends:
                raise
            await asyncio.sleep(wait)
