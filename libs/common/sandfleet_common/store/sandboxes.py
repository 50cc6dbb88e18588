"""Records of sandboxes and their indexes, and the keys that make creation idempotent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sandfleet_common.ids import created_ms
from sandfleet_common.messages import SandboxInfo, SandboxList, SandboxPage
from sandfleet_common.states import TERMINAL

from .jobs import FAILED_SLOT, JobRecords
from .link import mapped
from .scripts import SAVE, SWAP, save_call

_PAGE = 1000


class SandboxRecords(JobRecords):
    """The part of the store that is about sandboxes; by way of jobs' slots it finds a job's."""

    async def save(self, infos: Sequence[SandboxInfo]) -> list[bool]:
        """Write records in one round trip.

        An item is False when what is on record is newer, or cannot lead to the state given.
        """
        answers = await self._run(SAVE, [save_call(info) for info in infos])
        return [bool(answer) for answer in answers]

    async def get(self, sandbox_id: str) -> SandboxInfo | None:
        """Return a sandbox's record, ended ones for an hour."""
        with mapped():
            text = cast(
                str | None, await cast(Any, self._redis.hget(f"sf:sandbox:{sandbox_id}", "info"))
            )
        return SandboxInfo.model_validate_json(text) if text is not None else None

    async def get_many(self, sandbox_ids: Sequence[str]) -> list[SandboxInfo | None]:
        """Return records in the order asked for."""
        texts: list[str | None] = []
        for start in range(0, len(sandbox_ids), _PAGE):
            with mapped():
                pipe = self._redis.pipeline(transaction=False)
                for sandbox_id in sandbox_ids[start : start + _PAGE]:
                    pipe.hget(f"sf:sandbox:{sandbox_id}", "info")
                texts += cast(list[str | None], await pipe.execute())
        return [SandboxInfo.model_validate_json(t) if t is not None else None for t in texts]

    async def list(self, query: SandboxList) -> SandboxPage:
        """Return sandboxes that match, newest first, a page at a time.

        Paging goes by the time in the ids, so what comes and goes meanwhile makes it
        neither skip nor repeat anything else. A state that is an end includes the ended.
        """
        found: list[SandboxInfo] = []
        after = query.after
        while True:
            ids = await self._ids(query, after)
            for info in await self.get_many(ids):
                if info is None or not _matches(info, query):
                    continue
                if len(found) == query.limit:
                    return SandboxPage(sandboxes=found, next=found[-1].sandbox_id)
                found.append(info)
            if len(ids) < _PAGE:
                return SandboxPage(sandboxes=found)
            after = ids[-1]

    async def _ids(self, query: SandboxList, after: str | None) -> list[str]:
        """Return the next page of ids that may match, newest first.

        A job's sandboxes may outlive its record: then they are among all the others.
        """
        ended = _wants_ended(query)
        slots = await self.job_slots(query.job_id) if query.job_id is not None else {}
        if slots:
            known = {holder for holder in slots.values() if holder != FAILED_SLOT}
            ids = sorted(known, key=_order, reverse=True)
        elif query.node is not None and not ended:
            ids = sorted(await self.live_on(query.node), key=_order, reverse=True)
        else:
            return await self._index_page("sf:sandboxes" if ended else "sf:sandboxes:live", after)
        if after is not None:
            ids = [i for i in ids if _order(i) < _order(after)]
        return ids[:_PAGE]

    async def _index_page(self, index: str, after: str | None) -> list[str]:
        newest = "+inf" if after is None else created_ms(after)
        ids: list[str] = []
        offset = 0
        while True:
            with mapped():
                page = cast(
                    list[str],
                    await self._redis.zrevrangebyscore(
                        index, newest, "-inf", start=offset, num=_PAGE
                    ),
                )
            ids += page if after is None else [i for i in page if _order(i) < _order(after)]
            if len(ids) >= _PAGE or len(page) < _PAGE:
                return ids[:_PAGE]
            offset += _PAGE

    async def forget_ended(self, before: float) -> int:
        """Drop from the index those that ended before a time; their records expire themselves.

        Returns how many there were, up to a thousand at a time.
        """
        with mapped():
            ids = cast(
                list[str],
                await self._redis.zrangebyscore(
                    "sf:sandboxes:ends", "-inf", before, start=0, num=_PAGE
                ),
            )
            if ids:
                pipe = self._redis.pipeline(transaction=False)
                pipe.zrem("sf:sandboxes", *ids)
                pipe.zrem("sf:sandboxes:ends", *ids)
                await pipe.execute()
        return len(ids)

    async def leave_node(self, node: str, sandbox_id: str) -> None:
        """Take a sandbox that lives on another node now out of a node's index."""
        with mapped():
            await cast(Any, self._redis.srem(f"sf:node:{node}:sandboxes", sandbox_id))

    async def live_on(self, node: str) -> set[str]:
        """Return the ids that are live on a node, as far as Redis knows."""
        with mapped():
            members = await cast(Any, self._redis.smembers(f"sf:node:{node}:sandboxes"))
        return cast(set[str], members)

    async def claim_key(self, key: str, sandbox_id: str, seconds: int = 3600) -> str:
        """Tie an idempotency key to a sandbox id, and return the id that holds it."""
        with mapped():
            holder = await self._redis.set(
                f"sf:key:{key}", sandbox_id, nx=True, ex=seconds, get=True
            )
        return cast(str | None, holder) or sandbox_id

    async def move_key(self, key: str, sandbox_id: str, seconds: int = 3600) -> None:
        """Tie a key to another id, when the sandbox it was tied to was never created."""
        with mapped():
            await self._redis.set(f"sf:key:{key}", sandbox_id, ex=seconds)

    async def swap_key(self, key: str, before: str, sandbox_id: str, seconds: int = 3600) -> bool:
        """Tie a key to another id if it is still tied to `before`."""
        answers = await self._run(SWAP, [([f"sf:key:{key}"], [before, sandbox_id, seconds])])
        return bool(answers[0])


def _order(sandbox_id: str) -> tuple[int, str]:
    """Return what sandboxes are sorted by; Redis breaks ties of its index the same way."""
    return created_ms(sandbox_id), sandbox_id


def _wants_ended(query: SandboxList) -> bool:
    return query.ended or query.state in TERMINAL


def _matches(info: SandboxInfo, query: SandboxList) -> bool:
    if info.state in TERMINAL and not _wants_ended(query):
        return False
    return (
        (query.state is None or info.state == query.state)
        and (query.job_id is None or info.job_id == query.job_id)
        and (query.node is None or info.node == query.node)
        and all(info.spec.labels.get(k) == v for k, v in query.labels.items())
    )
