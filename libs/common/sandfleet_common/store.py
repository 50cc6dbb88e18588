"""Live state in Redis: the only module that meets it.

Keys, all under `sf:`:

    sandbox:<id>          hash: state, version, info (SandboxInfo as JSON)
    sandboxes:live        zset of ids by creation time; sandboxes:ended likewise by end
    node:<n>:sandboxes    set of live ids
    job:<j>               hash: submit, info
    job:<j>:slots         hash: slot -> sandbox id, as assigned last
    job:<j>:failures      hash: slot -> SlotFailure
    key:<k>               idempotency key -> sandbox id
    node:<n>              the latest NodeBeat; expires when beats stop
    node:<n>:intact       the boot id whose inventory is here; gone when Redis lost its memory
    alerts, alerts:<id>   lists of Alert, newest first

A sandbox's record is written only by a compare-and-set script compiled from
`states.TRANSITIONS`: a write counts when its version is newer and its state can
be reached from the one on record. So duplicates and late writes change nothing.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, cast

import redis.asyncio as aioredis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialWithJitterBackoff
from redis.exceptions import RedisError

from .errors import Unreachable
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
from .states import TERMINAL, TRANSITIONS, State

ENDED_SECONDS = 3600
"""How long the record of a sandbox that has ended is kept."""
JOB_SECONDS = 86_400
BEAT_SECONDS = 10
ALERTS_KEPT = 10_000
ALERTS_KEPT_EACH = 200
_TIMEOUT_SECONDS = 5.0


def reachable(transitions: Mapping[State, frozenset[State]]) -> dict[State, frozenset[State]]:
    """Return for each state all states that some path of one or more steps leads to."""
    closed = {state: set(following) for state, following in transitions.items()}
    for _ in transitions:
        for following in closed.values():
            for state in tuple(following):
                following |= closed[state]
    return {state: frozenset(following) for state, following in closed.items()}


_SWAP = """
-- KEYS: standing. ARGV: text expected ('' for none), new text, seconds to keep it
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[2], 'EX', ARGV[3])
return 1
"""

_SAVE = """
-- KEYS: sandbox, live, ended, node set
-- ARGV: id, state, version, info, created, ended, terminal, keep seconds, reachable-from
local known = redis.call('HMGET', KEYS[1], 'state', 'version')
if known[1] then
  if tonumber(ARGV[3]) <= tonumber(known[2]) then return 0 end
  if not string.find(ARGV[9], ',' .. known[1] .. ',', 1, true) then return 0 end
end
redis.call('HSET', KEYS[1], 'state', ARGV[2], 'version', ARGV[3], 'info', ARGV[4])
if ARGV[7] == '1' then
  redis.call('ZREM', KEYS[2], ARGV[1])
  redis.call('SREM', KEYS[4], ARGV[1])
  redis.call('ZADD', KEYS[3], ARGV[6], ARGV[1])
  redis.call('EXPIRE', KEYS[1], ARGV[8])
else
  redis.call('ZADD', KEYS[2], ARGV[5], ARGV[1])
  redis.call('SADD', KEYS[4], ARGV[1])
end
return 1
"""


def _sources() -> dict[State, str]:
    closure = reachable(TRANSITIONS)
    return {
        state: "," + "".join(f"{s}," for s in State if state in closure[s] or s == state)
        for state in State
    }


_FROM = _sources()


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """Where Redis is."""

    url: str
    """redis://[:password@]host:port/db or unix://path"""


class Store:
    """Live state. Open one with `Store.connect`; every method raises Unreachable when Redis is down."""

    def __init__(self, client: aioredis.Redis) -> None:
        self._redis = client
        self._save = client.register_script(_SAVE)
        self._swap = client.register_script(_SWAP)

    @classmethod
    @asynccontextmanager
    async def connect(cls, settings: StoreSettings, log: Logger) -> AsyncGenerator[Store]:
        """Open a pool of connections.

        Raises:
            Unreachable: Redis does not answer.
        """
        client = cast(
            aioredis.Redis,
            aioredis.Redis.from_url(  # pyright: ignore[reportUnknownMemberType]
                settings.url,
                socket_timeout=_TIMEOUT_SECONDS,
                socket_connect_timeout=_TIMEOUT_SECONDS,
                retry=Retry(ExponentialWithJitterBackoff(cap=1.0, base=0.05), 3),
                health_check_interval=15,
                decode_responses=True,
            ),
        )
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

    # --------------------------------------------------------------- sandboxes

    async def save(self, infos: Sequence[SandboxInfo]) -> list[bool]:
        """Write records in one round trip; an item is False when what is on record is newer,
        or cannot lead to the state given.
        """
        if not infos:
            return []
        with _mapped():
            pipe = self._redis.pipeline(transaction=False)
            for info in infos:
                await self._save(keys=_save_keys(info), args=_save_args(info), client=pipe)
            answers = cast(list[int], await pipe.execute())
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
        if not sandbox_ids:
            return []
        with _mapped():
            pipe = self._redis.pipeline(transaction=False)
            for sandbox_id in sandbox_ids:
                pipe.hget(f"sf:sandbox:{sandbox_id}", "info")
            texts = cast(list[str | None], await pipe.execute())
        return [SandboxInfo.model_validate_json(t) if t is not None else None for t in texts]

    async def list(self, query: SandboxList) -> SandboxPage:
        """Return sandboxes that match, newest first, a page at a time."""
        index = "sf:sandboxes:ended" if query.ended else "sf:sandboxes:live"
        found: list[SandboxInfo] = []
        start = 0
        with _mapped():
            if query.after is not None:
                rank = await self._redis.zrevrank(index, query.after)
                start = 0 if rank is None else int(cast(int, rank)) + 1
        while True:
            with _mapped():
                ids = cast(list[str], await self._redis.zrevrange(index, start, start + 999))
            for position, info in enumerate(await self.get_many(ids)):
                if info is not None and _matches(info, query):
                    found.append(info)
                    if len(found) == query.limit:
                        more = position + 1 < len(ids) or len(ids) == 1000
                        return SandboxPage(sandboxes=found, next=info.sandbox_id if more else None)
            if len(ids) < 1000:
                return SandboxPage(sandboxes=found)
            start += 1000

    async def forget_ended(self, before: float) -> None:
        """Drop from the index those that ended before a time; their records expire themselves."""
        with _mapped():
            await self._redis.zremrangebyscore("sf:sandboxes:ended", "-inf", before)

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

    # -------------------------------------------------------------------- jobs

    async def open_job(self, submit: JobSubmit, info: JobInfo) -> bool:
        """Put a new job on record; False when it is there already."""
        name = f"sf:job:{submit.job_id}"
        with _mapped():
            made = await cast(Any, self._redis.hsetnx(name, "submit", submit.model_dump_json()))
            if made:
                await cast(Any, self._redis.hsetnx(name, "info", info.model_dump_json()))
                await self._redis.expire(name, JOB_SECONDS)
        return bool(made)

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

    async def save_job(self, info: JobInfo) -> None:
        """Write where a job is."""
        with _mapped():
            await cast(
                Any, self._redis.hset(f"sf:job:{info.job_id}", "info", info.model_dump_json())
            )

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

    # ------------------------------------------------------------------- nodes

    async def beat(self, beat: NodeBeat) -> bool:
        """Record a heartbeat; False when this boot's inventory is not in Redis (any more)."""
        with _mapped():
            pipe = self._redis.pipeline(transaction=False)
            pipe.set(f"sf:node:{beat.node}", beat.model_dump_json(), ex=BEAT_SECONDS)
            pipe.sadd("sf:nodes", beat.node)
            pipe.get(f"sf:node:{beat.node}:intact")
            answers = cast(list[Any], await pipe.execute())
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
        with _mapped():
            made = await self._swap(
                keys=[f"sf:standing:{sandbox_id}"], args=[before or "", after, seconds]
            )
        return bool(made)

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


def _save_keys(info: SandboxInfo) -> list[str]:
    return [
        f"sf:sandbox:{info.sandbox_id}",
        "sf:sandboxes:live",
        "sf:sandboxes:ended",
        f"sf:node:{info.node}:sandboxes",
    ]


def _save_args(info: SandboxInfo) -> list[str | float | int]:
    return [
        info.sandbox_id,
        info.state,
        info.version,
        info.model_dump_json(exclude_none=False),
        info.created_at,
        info.ended_at or 0,
        "1" if info.state in TERMINAL else "0",
        ENDED_SECONDS,
        _FROM[info.state],
    ]


def _matches(info: SandboxInfo, query: SandboxList) -> bool:
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


__all__ = ["Store", "StoreSettings", "reachable"]
