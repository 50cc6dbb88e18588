"""Live state in Redis: the only module that meets it.

Keys, all under `sf:`:

    sandbox:<id>          hash: state, version, info (SandboxInfo as JSON)
    sandboxes             zset of all ids on record, by the time in the id
    sandboxes:live        likewise, those that live; not those still being placed
    sandboxes:ends        zset of ended ones, by end
    node:<n>:sandboxes    set of live ids
    job:<j>               hash: submit, info
    job:<j>:slots         hash: slot -> sandbox id as assigned last, or FAILED_SLOT
    job:<j>:failures      hash: slot -> SlotFailure
    job:<j>:cancelled     there when somebody asked for its end
    mark:<name>           there until Redis loses its memory
    key:<k>               idempotency key -> sandbox id
    node:<n>              the latest NodeBeat; expires when beats stop
    node:<n>:intact       the boot id whose inventory is here; gone when Redis lost its memory
    alerts, alerts:<id>   lists of Alert, newest first

A sandbox's record is written only by a compare-and-set script compiled from
`states.TRANSITIONS`: a write counts when its version is newer and its state can
be reached from the one on record. So late writes change nothing, and the same
record written again is no conflict.

The record of a sandbox that a scheduler is placing expires by itself, soon after
its deadline: only what a node has taken is indexed, and only its node ends it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import NoScriptError, RedisError

from .errors import Unreachable
from .ids import created_ms
from .logs import Logger
from .messages import (
    Alert,
    AlertList,
    JobInfo,
    JobSubmit,
    NodeBeat,
    SandboxInfo,
    SandboxList,
    SandboxPage,
    Severity,
    SlotFailure,
)
from .scripts import CLAIM_SLOTS, ENDED_SECONDS, SAVE, SWAP, Call, Script, save_call
from .states import TERMINAL

JOB_SECONDS = 86_400
FAILED_SLOT = "-"
"""Holder of a slot that has failed for good."""
BEAT_SECONDS = 10
ALERTS_KEPT = 10_000
ALERTS_KEPT_EACH = 200
_TIMEOUT_SECONDS = 3.0
_CONNECTIONS = 64
_PAGE = 1000


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where Redis is."""

    url: str
    """redis://[:password@]host:port/db or unix://path"""


class Store:
    """Live state. Open one with `Store.connect`.

    Every method raises Unreachable when Redis is down. A call may have taken effect
    then; all but `add_alerts` can be made again.
    """

    def __init__(self, client: aioredis.Redis) -> None:
        self._redis = client

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: StoreSettings, log: Logger) -> AsyncGenerator[Store]:
        """Open a pool of connections.

        Raises:
            Unreachable: Redis does not answer.
        """
        pool = aioredis.BlockingConnectionPool.from_url(  # pyright: ignore[reportUnknownMemberType]
            settings.url,
            max_connections=_CONNECTIONS,
            timeout=_TIMEOUT_SECONDS,
            socket_timeout=_TIMEOUT_SECONDS,
            socket_connect_timeout=_TIMEOUT_SECONDS,
            retry=Retry(ExponentialWithJitterBackoff(cap=0.5, base=0.05), 2),
            health_check_interval=15,
            decode_responses=True,
        )
        client = aioredis.Redis.from_pool(pool)
        store = cls(client)
        try:
            with _mapped():
                await cast(Any, client.ping())
            yield store
        finally:
            await client.aclose()
            log.debug("store.closed")

    async def ping(self) -> None:
        """Check that Redis answers."""
        with _mapped():
            await cast(Any, self._redis.ping())

    async def _run(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        """Run a script any number of times in one round trip; load it when Redis forgot it."""
        if not calls:
            return []
        with _mapped():
            try:
                return await self._send(script, calls)
            except NoScriptError:
                await self._redis.script_load(script.text)
                return await self._send(script, calls)

    async def _send(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        pipe = self._redis.pipeline(transaction=False)
        for keys, args in calls:
            await cast(Any, pipe.evalsha(script.sha, len(keys), *keys, *args))
        return await pipe.execute()

    # --------------------------------------------------------------- sandboxes

    async def save(self, infos: Sequence[SandboxInfo]) -> list[bool]:
        """Write records in one round trip.

        An item is False when what is on record is newer, or cannot lead to the state given.
        """
        answers = await self._run(SAVE, [save_call(info) for info in infos])
        return [bool(answer) for answer in answers]

    async def get(self, sandbox_id: str) -> SandboxInfo | None:
        """Return a sandbox's record, ended ones for an hour."""
        with _mapped():
            text = cast(
                str | None, await cast(Any, self._redis.hget(f"sf:sandbox:{sandbox_id}", "info"))
            )
        return SandboxInfo.model_validate_json(text) if text is not None else None

    async def get_many(self, sandbox_ids: Sequence[str]) -> list[SandboxInfo | None]:
        """Return records in the order asked for."""
        texts: list[str | None] = []
        for start in range(0, len(sandbox_ids), _PAGE):
            with _mapped():
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
        """Return the next page of ids that may match, newest first."""
        ended = _wants_ended(query)
        if query.job_id is not None:
            known = (await self.job_slots(query.job_id)).values()
            ids = sorted({i for i in known if i != FAILED_SLOT}, key=_order, reverse=True)
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
            with _mapped():
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
        with _mapped():
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

    async def live_on(self, node: str) -> set[str]:
        """Return the ids that are live on a node, as far as Redis knows."""
        with _mapped():
            members = await cast(Any, self._redis.smembers(f"sf:node:{node}:sandboxes"))
        return cast(set[str], members)

    async def claim_key(self, key: str, sandbox_id: str, seconds: int = 3600) -> str:
        """Tie an idempotency key to a sandbox id, and return the id that holds it."""
        with _mapped():
            holder = await self._redis.set(
                f"sf:key:{key}", sandbox_id, nx=True, ex=seconds, get=True
            )
        return cast(str | None, holder) or sandbox_id

    async def move_key(self, key: str, sandbox_id: str, seconds: int = 3600) -> None:
        """Tie a key to another id, when the sandbox it was tied to was never created."""
        with _mapped():
            await self._redis.set(f"sf:key:{key}", sandbox_id, ex=seconds)

    async def swap_key(self, key: str, before: str, sandbox_id: str, seconds: int = 3600) -> bool:
        """Tie a key to another id if it is still tied to `before`."""
        answers = await self._run(SWAP, [([f"sf:key:{key}"], [before, sandbox_id, seconds])])
        return bool(answers[0])

    # -------------------------------------------------------------------- jobs

    async def open_job(self, submit: JobSubmit, info: JobInfo) -> bool:
        """Put a new job on record; False when it is there already."""
        name = f"sf:job:{submit.job_id}"
        with _mapped():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hsetnx(name, "submit", submit.model_dump_json())
            # After the submit, so that whoever finds one finds the other.
            pipe.hsetnx(name, "info", info.model_dump_json())
            pipe.expire(name, JOB_SECONDS)
            answers = await pipe.execute()
        return bool(answers[0])

    async def get_job(self, job_id: str) -> tuple[JobSubmit, JobInfo] | None:
        """Return a job's request and where it is."""
        with _mapped():
            submit, info = cast(
                list[str | None],
                await cast(Any, self._redis.hmget(f"sf:job:{job_id}", ["submit", "info"])),
            )
        if submit is None or info is None:
            return None
        return JobSubmit.model_validate_json(submit), JobInfo.model_validate_json(info)

    async def cancel_job(self, job_id: str) -> None:
        """Ask whoever works on a job to end it."""
        with _mapped():
            await self._redis.set(f"sf:job:{job_id}:cancelled", "1", ex=JOB_SECONDS)

    async def is_cancelled(self, job_id: str) -> bool:
        """Return whether somebody asked for a job's end."""
        with _mapped():
            return bool(await self._redis.exists(f"sf:job:{job_id}:cancelled"))

    async def save_job(self, info: JobInfo) -> bool:
        """Write where a job is; False when its request is not on record (any more)."""
        name = f"sf:job:{info.job_id}"
        with _mapped():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hset(name, "info", info.model_dump_json())
            pipe.hexists(name, "submit")
            answers = await pipe.execute()
        return bool(answers[1])

    async def assign_slots(self, job_id: str, slots: Mapping[int, str]) -> None:
        """Record which sandbox each slot was given, before any node hears of it."""
        with _mapped():
            pipe = self._redis.pipeline(transaction=False)
            pipe.hset(f"sf:job:{job_id}:slots", mapping={str(k): v for k, v in slots.items()})
            pipe.expire(f"sf:job:{job_id}:slots", JOB_SECONDS)
            await pipe.execute()

    async def job_slots(self, job_id: str) -> dict[int, str]:
        """Return slot -> sandbox id."""
        with _mapped():
            found = await cast(Any, self._redis.hgetall(f"sf:job:{job_id}:slots"))
        return {int(k): v for k, v in cast(dict[str, str], found).items()}

    async def some_slots(self, job_id: str, slots: Sequence[int]) -> list[str | None]:
        """Return who holds each of some slots: a sandbox id, FAILED_SLOT or None."""
        if not slots:
            return []
        with _mapped():
            found = await cast(
                Any, self._redis.hmget(f"sf:job:{job_id}:slots", [str(n) for n in slots])
            )
        return cast(list[str | None], found)

    async def claim_slots(
        self, job_id: str, claims: Mapping[int, tuple[str | None, str]]
    ) -> dict[int, str]:
        """Give slots to new holders, each only if the holder expected still has it.

        `claims` is slot -> (holder expected, new holder). Returns who holds each slot
        now: when two schedulers work on one job, both go on with the same sandbox.
        """
        if not claims:
            return {}
        args: list[str | float | int] = [JOB_SECONDS]
        for slot, (expected, holder) in claims.items():
            args += [slot, expected or "", holder]
        answers = await self._run(CLAIM_SLOTS, [([f"sf:job:{job_id}:slots"], args)])
        return dict(zip(claims, cast(list[str], answers[0]), strict=True))

    async def fail_slots(self, job_id: str, failures: Sequence[SlotFailure]) -> None:
        """Record slots that ended without a sandbox."""
        if not failures:
            return
        with _mapped():
            pipe = self._redis.pipeline(transaction=False)
            for failure in failures:
                pipe.hset(f"sf:job:{job_id}:failures", str(failure.slot), failure.model_dump_json())
            pipe.expire(f"sf:job:{job_id}:failures", JOB_SECONDS)
            await pipe.execute()

    async def job_failures(self, job_id: str) -> list[SlotFailure]:
        """Return a job's failed slots, in order."""
        with _mapped():
            found = await cast(Any, self._redis.hvals(f"sf:job:{job_id}:failures"))
        parsed = [SlotFailure.model_validate_json(text) for text in cast(list[str], found)]
        return sorted(parsed, key=lambda failure: failure.slot)

    async def some_failures(self, job_id: str, slots: Sequence[int]) -> list[SlotFailure]:
        """Return the failures among some slots, in the order asked for."""
        if not slots:
            return []
        with _mapped():
            found = await cast(
                Any, self._redis.hmget(f"sf:job:{job_id}:failures", [str(n) for n in slots])
            )
        texts = cast(list[str | None], found)
        return [SlotFailure.model_validate_json(text) for text in texts if text is not None]

    # ------------------------------------------------------------------- nodes

    async def beat(self, beat: NodeBeat) -> bool:
        """Record a heartbeat; False when this boot's inventory is not in Redis (any more)."""
        with _mapped():
            pipe = self._redis.pipeline(transaction=False)
            pipe.set(f"sf:node:{beat.node}", beat.model_dump_json(), ex=BEAT_SECONDS)
            pipe.sadd("sf:nodes", beat.node)
            pipe.get(f"sf:node:{beat.node}:intact")
            answers = await pipe.execute()
        return answers[2] == beat.boot

    async def mark_intact(self, node: str, boot: str) -> None:
        """Say that all of a node's sandboxes are on record."""
        with _mapped():
            await self._redis.set(f"sf:node:{node}:intact", boot)

    async def nodes(self) -> list[NodeBeat]:
        """Return the latest heartbeat of each node that still sends them."""
        with _mapped():
            names = sorted(cast(set[str], await cast(Any, self._redis.smembers("sf:nodes"))))
            texts = (
                cast(list[str | None], await self._redis.mget([f"sf:node:{n}" for n in names]))
                if names
                else []
            )
        return [NodeBeat.model_validate_json(text) for text in texts if text is not None]

    async def node_names(self) -> set[str]:
        """Return the names of all nodes that were heard of and not forgotten."""
        with _mapped():
            return cast(set[str], await cast(Any, self._redis.smembers("sf:nodes")))

    async def forget_node(self, node: str) -> None:
        """Forget a node that is lost, until it beats again."""
        with _mapped():
            await cast(Any, self._redis.srem("sf:nodes", node))

    async def leave_mark(self, name: str) -> bool:
        """Leave a mark and return whether it was there; it goes when Redis loses its memory."""
        with _mapped():
            return await self._redis.set(f"sf:mark:{name}", "1", nx=True) is None

    # ------------------------------------------------------------------ alerts

    async def add_alerts(self, alerts: Sequence[Alert]) -> None:
        """Put alerts on record."""
        if not alerts:
            return
        with _mapped():
            pipe = self._redis.pipeline(transaction=False)
            for alert in alerts:
                text = alert.model_dump_json()
                for name, kept in (
                    ("sf:alerts", ALERTS_KEPT),
                    (f"sf:alerts:{alert.sandbox_id}", ALERTS_KEPT_EACH),
                ):
                    pipe.lpush(name, text)
                    pipe.ltrim(name, 0, kept - 1)
                pipe.expire(f"sf:alerts:{alert.sandbox_id}", 7 * 86_400)
            await pipe.execute()

    async def standing(self, sandbox_id: str) -> str | None:
        """Return what the monitors keep of a sandbox, as the text they wrote."""
        with _mapped():
            return cast(str | None, await self._redis.get(f"sf:standing:{sandbox_id}"))

    async def swap_standing(
        self, sandbox_id: str, before: str | None, after: str, seconds: int
    ) -> bool:
        """Replace that text if it is still `before`; False when another monitor was quicker."""
        key = f"sf:standing:{sandbox_id}"
        answers = await self._run(SWAP, [([key], [before or "", after, seconds])])
        return bool(answers[0])

    async def alerts(self, query: AlertList) -> list[Alert]:
        """Return alerts, newest first."""
        name = f"sf:alerts:{query.sandbox_id}" if query.sandbox_id else "sf:alerts"
        with _mapped():
            texts = cast(list[str], await cast(Any, self._redis.lrange(name, 0, -1)))
        order = list(Severity)
        found: list[Alert] = []
        for text in texts:
            alert = Alert.model_validate_json(text)
            if query.severity and order.index(alert.severity) < order.index(query.severity):
                continue
            found.append(alert)
            if len(found) == query.limit:
                break
        return found


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


class _mapped:
    """Turns Redis's exceptions into Unreachable, at this one place."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RedisError | OSError | TimeoutError):
            text = str(error) or type(error).__name__
            raise Unreachable(f"Redis does not answer: {text}") from error


__all__ = ["ENDED_SECONDS", "FAILED_SLOT", "Store", "StoreSettings"]
