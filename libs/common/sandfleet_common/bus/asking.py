"""Questions under way: each waits for the one answer to an inbox of its own.

One wildcard subscription carries all answers. That a question of ours was denied,
or that the connection broke and came back while it waited, is known here, so an
asker need not sit out its deadline for an answer that cannot come.
"""

from __future__ import annotations

import asyncio
import random
import re
from dataclasses import dataclass, field

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import MaxPayloadError

from sandfleet_common.errors import BadRequest, Denied, Unreachable

from .settings import GRACE_SECONDS

_STATUS = "Status"
_NO_RESPONDERS = "503"
_DENIED = re.compile(r'permissions violation for publish to "([^"]+)"')


@dataclass(slots=True, eq=False)
class Question:
    """One request that waits for its answer."""

    address: str
    payload: bytes
    inbox: str
    resend: bool
    answer: asyncio.Future[Msg | None] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """The reply; None when nobody serves the address."""


class Questions:
    """All requests of one connection that wait."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._waiting: dict[str, Question] = {}
        self._prefix = ""
        self._count = 0
        self._opening = asyncio.Lock()
        self._reconnected_at = float("-inf")

    async def ask(self, address: str, payload: bytes, *, within: float, resend: bool) -> Msg | None:
        """Send a request and return the reply; None when nobody serves the address.

        Raises:
            TimeoutError: no reply within `within` seconds.
            Denied, BadRequest, Unreachable: see `Bus.ask`.
        """
        if not self._prefix:
            await self._open()
        async with asyncio.timeout(within):
            while True:
                reply = await self._once(address, payload, resend)
                if reply is not None or not self._just_reconnected():
                    return reply
                await asyncio.sleep(0.05 + 0.1 * random.random())

    async def reconnected(self) -> None:
        """Send those questions again that may be sent twice: their answers may be lost."""
        self._reconnected_at = asyncio.get_running_loop().time()
        for question in list(self._waiting.values()):
            if question.resend and not question.answer.done():
                await self._client.publish(question.address, question.payload, reply=question.inbox)

    def refused(self, report: str) -> bool:
        """End the questions that a server's permission report is about."""
        match = _DENIED.search(report)
        if match is None:
            return False
        # The client library hands reports on in lower case.
        for question in list(self._waiting.values()):
            if question.address.lower() == match[1] and not question.answer.done():
                question.answer.set_exception(
                    Denied(f"this user may not ask {question.address}", subject=question.address)
                )
        return True

    async def _open(self) -> None:
        async with self._opening:
            if self._prefix:
                return
            prefix = self._client.new_inbox() + "."
            await self._client.subscribe(prefix + "*", cb=self._on_reply)  # pyright: ignore[reportUnknownMemberType]
            self._prefix = prefix

    async def _on_reply(self, message: Msg) -> None:
        question = self._waiting.get(message.subject)
        if question is None or question.answer.done():
            return
        nobody = bool(message.headers) and message.headers.get(_STATUS) == _NO_RESPONDERS
        question.answer.set_result(None if nobody else message)

    async def _once(self, address: str, payload: bytes, resend: bool) -> Msg | None:
        self._count += 1
        inbox = f"{self._prefix}{self._count}"
        question = self._waiting[inbox] = Question(address, payload, inbox, resend)
        try:
            await publish(self._client, address, payload, reply=inbox)
            return await question.answer
        finally:
            del self._waiting[inbox]
            # An error that came after the asker had gone was seen.
            if question.answer.done() and not question.answer.cancelled():
                question.answer.exception()

    def _just_reconnected(self) -> bool:
        return asyncio.get_running_loop().time() - self._reconnected_at < GRACE_SECONDS


async def publish(
    client: Client,
    address: str,
    payload: bytes,
    *,
    reply: str = "",
    headers: dict[str, str] | None = None,
) -> None:
    """Publish, with the client library's errors mapped to ours.

    Raises:
        BadRequest: the payload is larger than the server takes.
        Unreachable: the bus is closed, or down for longer than its buffer lasts.
    """
    try:
        await client.publish(address, payload, reply=reply, headers=headers)
    except MaxPayloadError as problem:
        raise BadRequest(
            f"the message has {len(payload)} bytes; the bus takes {client.max_payload} at most",
            subject=address,
        ) from problem
    except NatsError as problem:
        raise Unreachable(f"the bus is down: {problem}", subject=address) from problem
