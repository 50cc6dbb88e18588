"""Where sandboxes live that have moved: a client's memory of what nodes and records told it."""

from __future__ import annotations

from collections import OrderedDict

from .ids import node_of

KEPT = 10_000


class Homes:
    """Nodes of sandboxes that do not live where their ids say; bounded."""

    def __init__(self) -> None:
        self._moved: OrderedDict[str, str] = OrderedDict()

    def of(self, sandbox_id: str) -> str:
        """Return the node to ask.

        Raises:
            BadRequest: the text is not a sandbox id.
        """
        return self._moved.get(sandbox_id) or node_of(sandbox_id)

    def learn(self, sandbox_id: str, node: str) -> bool:
        """Note where a sandbox lives; return whether that is news."""
        if self.of(sandbox_id) == node:
            return False
        self._moved.pop(sandbox_id, None)
        if node_of(sandbox_id) != node:
            self._moved[sandbox_id] = node
            while len(self._moved) > KEPT:
                self._moved.popitem(last=False)
        return True
