"""The connection to Redis: commands, scripts, and what its errors become."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import redis.asyncio as aioredis
from redis.exceptions import NoScriptError, RedisError

from sandfleet_common.errors import Unreachable

from .scripts import Call, Script


class RedisLink:
    """What every part of the store works with."""

    def __init__(self, client: aioredis.Redis) -> None:
        self._redis = client

    async def ping(self) -> None:
        """Check that Redis answers."""
        with mapped():
            await cast(Any, self._redis.ping())

    async def _run(self, script: Script, calls: Sequence[Call]) -> list[Any]:
        """Run a script any number of times in one round trip; load it when Redis forgot it."""
        if not calls:
            return []
        with mapped():
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


class mapped:
    """Turns Redis's exceptions into Unreachable, at this one place."""

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RedisError | OSError | TimeoutError):
            text = str(error) or type(error).__name__
            raise Unreachable(f"Redis does not answer: {text}") from error
