"""Sandboxes' standings in Redis, changed by one monitor at a time."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable

from sandfleet_common.errors import BadRequest, Unreachable
from sandfleet_common.store import Store

from .core import Judgement, Standing

TRIES = 20
KEPT_HERE = 10_000
"""Standings kept in memory, for when Redis is away."""


class Standings:
    """Reads a standing, lets it be judged, and writes it if nobody did in between."""

    def __init__(self, store: Store, forget_seconds: int) -> None:
        self._store = store
        self._forget_seconds = forget_seconds
        self._here: OrderedDict[str, Standing] = OrderedDict()

    async def change(self, sandbox_id: str, judged: Callable[[Standing], Judgement]) -> Judgement:
        """Return what `judged` says of a sandbox's standing, once its result is on record.

        It is called again when another monitor was quicker. While Redis is away, what
        this monitor knows by itself must do: an alert too many is better than none.
        """
        try:
            judgement = await self._change_shared(sandbox_id, judged)
        except Unreachable:
            judgement = judged(self._here.get(sandbox_id, Standing()))
        self._here[sandbox_id] = judgement.standing
        self._here.move_to_end(sandbox_id)
        while len(self._here) > KEPT_HERE:
            self._here.popitem(last=False)
        return judgement

    async def _change_shared(
        self, sandbox_id: str, judged: Callable[[Standing], Judgement]
    ) -> Judgement:
        for _ in range(TRIES):
            text = await self._store.standing(sandbox_id)
            judgement = judged(_read(text))
            after = judgement.standing.encode().decode()
            if await self._store.swap_standing(sandbox_id, text, after, self._forget_seconds):
                return judgement
        raise Unreachable(f"{TRIES} times another monitor was quicker with {sandbox_id}")


def _read(text: str | None) -> Standing:
    if text is None:
        return Standing()
    try:
        return Standing.decode(text.encode())
    except BadRequest:
        # Written by a version that is not understood: begin anew rather than judge no more.
        return Standing()
