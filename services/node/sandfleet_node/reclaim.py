"""Cold memory of sandboxes that run and do nothing goes to swap."""

from __future__ import annotations


class Reclaimer:
    """Takes cold memory from idle sandboxes, a little at a time, or at once when there is need."""

    async def reclaim_idle(self, target_bytes: int) -> int:
        """Take cold memory from idle sandboxes, longest idle first, until so much came back.

        Returns:
            How many bytes were given back; fewer than asked for when nothing cold is left, and
            0 when there is nowhere to put it.
        """
        raise NotImplementedError
