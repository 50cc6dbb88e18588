"""Records of nodes: heartbeats, and marks that tell when Redis has lost its memory."""

from __future__ import annotations

from typing import Any, cast

from sandfleet_common.messages import NodeBeat

from .link import RedisLink, mapped

BEAT_SECONDS = 10


class NodeRecords(RedisLink):
    """The part of the store that is about nodes."""

    async def beat(self, beat: NodeBeat) -> bool:
        """Record a heartbeat; False when this boot's inventory is not in Redis (any more)."""
        with mapped():
            pipe = self._redis.pipeline(transaction=False)
            pipe.set(f"sf:node:{beat.node}", beat.model_dump_json(), ex=BEAT_SECONDS)
            pipe.sadd("sf:nodes", beat.node)
            pipe.get(f"sf:node:{beat.node}:intact")
            answers = await pipe.execute()
        return answers[2] == beat.boot

    async def mark_intact(self, node: str, boot: str) -> None:
        """Say that all of a node's sandboxes are on record."""
        with mapped():
            await self._redis.set(f"sf:node:{node}:intact", boot)

    async def nodes(self) -> list[NodeBeat]:
        """Return the latest heartbeat of each node that still sends them."""
        with mapped():
            names = sorted(cast(set[str], await cast(Any, self._redis.smembers("sf:nodes"))))
            texts = (
                cast(list[str | None], await self._redis.mget([f"sf:node:{n}" for n in names]))
                if names
                else []
            )
        return [NodeBeat.model_validate_json(text) for text in texts if text is not None]

    async def node_names(self) -> set[str]:
        """Return the names of all nodes that were heard of and not forgotten."""
        with mapped():
            return cast(set[str], await cast(Any, self._redis.smembers("sf:nodes")))

    async def forget_node(self, node: str) -> None:
        """Forget a node that is lost, until it beats again."""
        with mapped():
            await cast(Any, self._redis.srem("sf:nodes", node))

    async def leave_mark(self, name: str) -> bool:
        """Leave a mark and return whether it was there; it goes when Redis loses its memory."""
        with mapped():
            return await self._redis.set(f"sf:mark:{name}", "1", nx=True) is None
