"""The message bus: the only package that meets NATS.

    async with Bus.connect(settings, log) as bus:
        await bus.serve(subjects.NODE_CREATE, create, node="n1")
        made = await bus.ask(subjects.NODE_CREATE, NodeCreate(...), within=5, node="n1")

Subjects carry their body and reply types, so a wrong body is a type error. An
error travels as a `Failure` under the header `Sf-Failure` and is raised again at
the asker. Nothing here waits without a limit.
"""

from .answering import CONCURRENCY
from .connection import HANDLER_SECONDS, Bus
from .link import Subscription
from .queues import Delivery
from .settings import BusSettings, reconnect_delay

__all__ = [
    "CONCURRENCY",
    "HANDLER_SECONDS",
    "Bus",
    "BusSettings",
    "Delivery",
    "Subscription",
    "reconnect_delay",
]
