"""Answering: each request in a task of its own, and what goes wrong as a `Failure`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TypeVar

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as NatsSubscription

from sandfleet_common.errors import (
    BadRequest,
    Broken,
    Busy,
    SandfleetError,
    TimedOut,
    Unreachable,
)
from sandfleet_common.lifecycle import Tasks
from sandfleet_common.logs import Logger
from sandfleet_common.messages import Failure, Message
from sandfleet_common.subjects import Subject

from .asking import publish
from .link import NatsLink, Subscription
from .settings import FINISH_SECONDS

BodyT = TypeVar("BodyT", bound=Message)
ReplyT = TypeVar("ReplyT", bound=Message)

FAILURE_HEADER = "Sf-Failure"
CONCURRENCY = 16_384
"""Requests under way at once on one subscription; the next is answered `busy`. High, because
a request that waits for a command to end counts too."""


class Answers:
    """What one connection serves, and the requests it is answering."""

    def __init__(self, link: NatsLink, tasks: Tasks, log: Logger) -> None:
        self._link = link
        self._tasks = tasks
        self._log = log
        self._served: list[NatsSubscription] = []
        self._answering: set[asyncio.Task[None]] = set()

    async def serve(
        self,
        subject: Subject[BodyT, ReplyT],
        handler: Callable[[BodyT], Awaitable[ReplyT]],
        *,
        address: str,
        queue: str,
        within: float,
    ) -> Subscription:
        """Answer what is asked on an address."""
        under_way = 0

        async def on_message(message: Msg) -> None:
            nonlocal under_way
            if under_way >= CONCURRENCY:
                busy = Busy(f"{under_way} requests are under way", retry_after_seconds=1)
                await self._reply(message, *_failure(busy))
                return
            under_way += 1
            task = self._tasks.start(self._answer(subject, handler, message, within), "serve")
            self._answering.add(task)
            task.add_done_callback(on_done)

        def on_done(task: asyncio.Task[None]) -> None:
            nonlocal under_way
            under_way -= 1
            self._answering.discard(task)

        inner = await self._link.subscribe(address, on_message, queue)
        self._served.append(inner)
        return Subscription(inner)

    async def finish(self) -> None:
        """Take no more requests, and give those under way a few seconds."""
        try:
            async with asyncio.timeout(FINISH_SECONDS):
                for subscription in self._served:
                    await Subscription(subscription).close()
                if self._answering:
                    await asyncio.wait(self._answering)
        except TimeoutError:
            self._log.warning("bus.answers_cut_short", count=len(self._answering))

    async def _answer(
        self,
        subject: Subject[BodyT, ReplyT],
        handler: Callable[[BodyT], Awaitable[ReplyT]],
        message: Msg,
        within: float,
    ) -> None:
        headers: dict[str, str] | None = None
        try:
            async with asyncio.timeout(within):
                reply = (await handler(subject.body.decode(message.data))).encode()
        except SandfleetError as problem:
            reply, headers = _failure(problem)
        except TimeoutError:
            reply, headers = _failure(
                TimedOut(f"{message.subject} was not done within {within:g} s")
            )
        except Exception as problem:
            self._log.error("bus.handler_broken", subject=message.subject, error=problem)
            reply, headers = _failure(
                Broken("Sandfleet failed inside; its log says more", subject=message.subject)
            )
        await self._reply(message, reply, headers)

    async def _reply(self, message: Msg, reply: bytes, headers: dict[str, str] | None) -> None:
        if not message.reply:
            return
        try:
            try:
                await publish(self._link.client, message.reply, reply, headers=headers)
            except BadRequest as problem:
                too_long = Broken(f"the answer is too long: {problem}", subject=message.subject)
                reply, headers = _failure(too_long)
                await publish(self._link.client, message.reply, reply, headers=headers)
        except Unreachable as problem:
            self._log.warning("bus.reply_lost", subject=message.subject, error=str(problem))


def _failure(error: SandfleetError) -> tuple[bytes, dict[str, str]]:
    failure = Failure.from_error(error)
    try:
        payload = failure.encode()
    except ValueError:
        shown = {k: str(v) for k, v in error.fields.items()}
        payload = json.dumps(
            {"code": error.code, "message": error.message, "fields": shown}
        ).encode()
    return payload, {FAILURE_HEADER: error.code}
