"""One stream between the gateway and a node, over the bus; a channel uses one after the other."""

from __future__ import annotations

from collections.abc import Callable

from sandfleet_common.bus import Bus, Subscription
from sandfleet_common.errors import Unreachable
from sandfleet_common.homes import Homes
from sandfleet_common.ids import new_ulid
from sandfleet_common.messages import ExecAttach
from sandfleet_common.streams import Kind, StreamFrame
from sandfleet_common.subjects import io_subject

from .flow import Flow


class NodeStream:
    """A stream: the node's frames come to a private inbox, ours go to the node's io subject."""

    def __init__(self, bus: Bus, sandbox_id: str, homes: Homes) -> None:
        self._bus = bus
        self._sandbox_id = sandbox_id
        self._name = new_ulid()
        self._inbox = bus.new_inbox()
        self._homes = homes
        self._subscription: Subscription | None = None
        self.is_open = False
        """The node knows it, and has all input that came before."""

    def request(self, exec_id: str, flow: Flow, request_id: str) -> ExecAttach:
        """Return what to ask of the node: to go on at what the client has taken."""
        return ExecAttach(
            sandbox_id=self._sandbox_id,
            exec_id=exec_id,
            stream=self._name,
            deliver=self._inbox,
            position=flow.taken,
            window_bytes=flow.window_bytes,
            request_id=request_id,
        )

    async def listen(self, hear: Callable[[NodeStream, bytes], None]) -> None:
        """Pass on what comes to the inbox."""

        async def on_message(_: str, data: bytes) -> None:
            hear(self, data)

        self._subscription = await self._bus.subscribe_raw(self._inbox, on_message)

    async def say(self, frame: StreamFrame) -> None:
        """Send a frame to the node.

        Raises:
            Unreachable: the bus is down.
        """
        outward = io_subject(self._homes.of(self._sandbox_id), self._name)
        await self._bus.publish_raw(outward, frame.encode())

    async def close(self) -> None:
        """Stop listening, and let the node forget it; the command goes on."""
        if self._subscription is not None:
            await self._subscription.close()
        try:
            await self.say(StreamFrame(Kind.DETACH))
        except Unreachable:
            return  # the node forgets it by itself after a minute
