"""Records of the monitors: alerts, and what they keep of each sandbox."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from sandfleet_common.messages import Alert, AlertList, Severity

from .link import RedisLink, mapped
from .scripts import SWAP

ALERTS_KEPT = 10_000
ALERTS_KEPT_EACH = 200


class AlertRecords(RedisLink):
    """The part of the store that is about security."""

    async def add_alerts(self, alerts: Sequence[Alert]) -> None:
        """Put alerts on record."""
        if not alerts:
            return
        with mapped():
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
        with mapped():
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
        with mapped():
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
